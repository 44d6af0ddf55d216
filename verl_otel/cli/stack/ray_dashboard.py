# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray beside the stack: variables for ``ray start``, a job for Ray's own metrics, and Ray's boards in the stack's Grafana.

Ray's dashboard embeds panels of its own boards from a Grafana, and asks a Prometheus that scrapes Ray.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files

ALSO_PORT: Final = {"prometheus": "PROMETHEUS_PORT", "grafana": "GF_SERVER_HTTP_PORT"}
"""Variables of other guides and of Grafana with the port of a listener; those of the stack win."""
_TARGETS: Final = "prom_metrics_service_discovery.json"
_BOARDS: Final = "session_latest/metrics/grafana/dashboards"
_PROVIDER: Final = """apiVersion: 1
providers:
  - {{name: Ray, orgId: 1, folder: Ray, type: file, options: {{path: {path}}}}}
"""


def find_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which Ray keeps the files of this machine, as Ray finds it."""
    return Path(environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp") / "ray"  # noqa: S108 - Ray's place


def make_variables(prometheus: str, grafana: str = "") -> str:
    """Return the variables for ``ray start --head``, as a shell takes them.

    Args:
        prometheus: The URL of Prometheus.
        grafana: The URL of Grafana; empty without one.

    Example:
        "RAY_PROMETHEUS_HOST=http://127.0.0.1:9090 RAY_GRAFANA_HOST=... RAY_GRAFANA_IFRAME_HOST=..." (the last: as the browser reaches it)
    """
    words = [f"RAY_PROMETHEUS_HOST={prometheus}"]
    if grafana:
        words += [f"RAY_GRAFANA_HOST={grafana}", f"RAY_GRAFANA_IFRAME_HOST={grafana}"]
    return " ".join(words)


def find_targets() -> Path:
    """Return the file in which Ray lists the targets of its own metrics."""
    return find_folder(os.environ) / _TARGETS


def make_job() -> str:
    """Return a scrape job for Ray's own metrics, to be appended to ``scrape_configs`` of `prometheus.yml`."""
    path = json.dumps(str(find_targets()))
    return f"  # Ray's own metrics, for its dashboard.\n  - job_name: ray\n    file_sd_configs: [{{files: [{path}]}}]\n"


def add_boards(provisioning: Path, folder: Path) -> Path:
    """Return a provisioning folder for Grafana that has Ray's boards, too; the given one if Ray has written none here.

    Args:
        provisioning: The folder that comes with verl-otel.
        folder: Grafana's folder in the data of the stack.

    Raises:
        OSError: It cannot be written.
    """
    boards = find_folder(os.environ) / _BOARDS
    if not boards.is_dir():
        return provisioning
    made = folder / "provisioning"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(provisioning, made)
    safe_files.write_atomically(made / "dashboards" / "ray.yaml", _PROVIDER.format(path=json.dumps(str(boards))))
    return made
