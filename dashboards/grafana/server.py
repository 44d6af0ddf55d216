# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A Grafana for as long as it is needed, provisioned with the boards and one Prometheus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dashboards.grafana.client import Grafana
from verl_otel.cli import stack_components
from verl_otel.cli import stack_components as stack_addresses

HOW: Final = "give the folder of an unpacked Grafana 10.4 to 13, in which bin/grafana is (the standalone Linux binaries of grafana.com/grafana/download)"
OPEN: Final = {
    # No login: every user of the loopback interface can read the boards, and change none.
    "GF_AUTH_ANONYMOUS_ENABLED": "true",
    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
    # No requests to the network, whose answers it would wait for.
    "GF_PLUGINS_PREINSTALL_AUTO_UPDATE": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
}
"""What this Grafana has beside the settings of ``verl-otel stack``: see grafana.com/docs/grafana/latest/setup-grafana/configure-grafana."""


class MissingGrafanaError(Exception):
    """There is no Grafana; in one line, what is missing and how to get it."""


def find(environ: Mapping[str, str]) -> Path:
    """Return the folder of the Grafana that the environment names. Raises `MissingGrafanaError`."""
    given = environ.get("GRAFANA_HOME", "")
    if not given:
        raise MissingGrafanaError(f"GRAFANA_HOME is not set: {HOW}")
    home = Path(given).absolute()
    if not any((home / "bin" / name).exists() for name in ("grafana", "grafana-server")):
        raise MissingGrafanaError(f"GRAFANA_HOME={given} has no bin/grafana: {HOW}")
    return home


@contextlib.contextmanager
def serve(home: Path, prometheus: str, folder: Path) -> Iterator[Grafana]:
    """Run a Grafana as ``verl-otel stack`` does, on a port of the operating system. It is gone at the end.

    Args:
        home: The folder of Grafana.
        prometheus: ``host:port`` of the Prometheus that the boards ask.
        folder: A folder for its data and its log.

    Raises:
        VerlOtelError: It has ended or does not answer; the end of its log is in the message.
    """
    # Nobody listens where Tempo would be: rows that need one are folded, and ask nothing.
    addresses = {**stack_addresses.choose_addresses({}, free=True), "prometheus": prometheus}
    plan = stack_components.Plan(addresses, folder, folder / "targets", tempo=False)
    child = stack_components.make_grafana(home, plan, OPEN)
    try:
        child.start()
        child.wait_ready(threading.Event())
        yield Grafana(plan.url("grafana"))
    finally:
        child.stop()
