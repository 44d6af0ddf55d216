# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks on every node of the running Ray cluster whether verl-otel is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from verl_otel._version import __version__

TIMEOUT: Final = 60.0
"""Timeout in seconds for the answer of a node."""


class Finding(NamedTuple):
    """The result of one check."""

    state: Literal["ok", "note", "fail"]
    subject: str
    text: str
    advice: str = ""


def ask_nodes() -> Iterator[Finding]:
    """Yield a finding for each node, or one for the cluster if it cannot be reached."""
    try:
        import ray
    except ImportError:
        yield Finding("fail", "cluster", "Ray is not installed here", "run this check where the training runs")
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        yield Finding(
            "fail",
            "cluster",
            f"no running Ray cluster: {str(error).splitlines()[0]}",
            "start it, or say where it is (RAY_ADDRESS, and RAY_AUTH_MODE as the cluster has it)",
        )
        return
    try:
        yield from _ask(ray)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()


def _ask(ray: object) -> Iterator[Finding]:
    remote, nodes, get, wait = ray.remote, ray.nodes, ray.get, ray.wait  # type: ignore[attr-defined]  # ray has no type hints

    def look() -> str:
        """Return the installed version; pickled by value, so that a node without verl-otel can run it."""
        try:
            import verl_otel.plugin

            return str(verl_otel.__version__)
        except BaseException as error:
            return f"!{type(error).__name__}: {error}"

    for node in nodes():
        if not node.get("Alive"):
            continue
        name = f"node {node.get('NodeManagerHostname') or node['NodeManagerAddress']}"
        resource = f"node:{node['NodeManagerAddress']}"
        reference = remote(look).options(num_cpus=0, resources={resource: 0.001}).remote()
        ready, _ = wait([reference], timeout=TIMEOUT)
        answer = get(reference) if ready else "!no answer"
        if answer == __version__:
            yield Finding("ok", name, f"verl-otel {answer}", "")
        elif answer.startswith("!"):
            yield Finding(
                "fail",
                name,
                f"verl-otel cannot be loaded there ({answer[1:]}); its processes are not recorded",
                "pip install verl-otel on that node",
            )
        else:
            yield Finding("note", name, f"verl-otel {answer}, here {__version__}", "use the same version on every node")
