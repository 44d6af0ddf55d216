# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Merges one job into ``rollout.prometheus.file`` on every node that has this file, as verl does with its own, and reloads Prometheus.

A thread does it: the start of a training does not wait for a disk, a node or a Prometheus. Nothing is done where there is no such file.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations import cluster_store
from verl_otel.recording.attribute_values import to_text
from verl_otel.session.prometheus_file import add as merge_prometheus_job

NODE_SECONDS: Final = 30.0
"""Seconds in which the other nodes have to answer."""
_MAX_NODES: Final = 2000
_NOT_SHARED: Final = (
    "; but the targets of this run are not in {folder} there: let the nodes share VERL_OTEL_RUN_DIR, or run "
    "`verl-otel discover --serve` there and `verl-otel prometheus add --http-sd http://127.0.0.1:9465/`"
)


def begin(config: Any, folder: Path, run_id: str) -> None:
    """Merge the job in a thread, which logs one line for each file.

    Args:
        config: verl's ``PrometheusConfig``, with `file` and `port`.
        folder: The folder of the targets files.
        run_id: The run, whose targets files are in this folder.
    """
    file, port = getattr(config, "file", None), getattr(config, "port", None)
    if not isinstance(file, str) or not file or isinstance(port, bool) or not isinstance(port, int):
        return
    arguments = (file, port, str(folder), run_id)
    threading.Thread(target=_merge_everywhere, args=arguments, name="verl-otel-prometheus", daemon=True).start()


@error_boundary.never_raises("prometheus.yml")
def _merge_everywhere(file: str, port: int, folder: str, run_id: str) -> None:
    lines = [
        text for text in (merge_here(file, port, folder, run_id), *_merge_elsewhere(file, port, folder, run_id)) if text
    ]
    for line in lines or [
        f"no node has {file}, so that no job was added: verl-otel prometheus add --file names another"
    ]:
        error_boundary.warn_once(f"prometheus.yml {line}", "verl-otel: %s", line)


def merge_here(file: str, port: int, folder: str, run_id: str) -> str:
    """Merge the job into the file of this node. Returns one line; empty if this node has no such file."""
    path = Path(file)
    if not path.exists():
        return ""
    addresses = dict.fromkeys(("127.0.0.1", _find_address()))
    urls = [f"http://{address}:{port}" for address in addresses]
    outcome = merge_prometheus_job(path, [f"{folder}/*.json"], urls)
    is_shared = outcome.state == "refused" or any(Path(folder).glob(f"{run_id}@*.json"))
    return f"{outcome.text}{'' if is_shared else _NOT_SHARED.format(folder=folder)}"


def _find_address() -> str:
    """Return the address of this node as verl finds it."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _merge_elsewhere(file: str, port: int, folder: str, run_id: str) -> Iterator[str]:
    """Merge the job on all other nodes of the Ray cluster. Yields one line for each that has the file."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return

    def merge_there() -> str:  # pickled by value: a node without verl-otel does nothing
        try:
            from verl_otel.integrations.verl.prometheus_merge import merge_here as merge
        except ImportError:
            return ""
        return merge(file, port, folder, run_id)

    own = cluster_store.runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node.get("Alive") and node.get("NodeID") != own][:_MAX_NODES]
    task = ray.remote(num_cpus=0, max_retries=0)(merge_there)
    pending = {
        task.options(resources={f"node:{node['NodeManagerAddress']}": 0.001}).remote(): node["NodeManagerAddress"]
        for node in nodes
    }
    done, _ = ray.wait([*pending], num_returns=len(pending), timeout=NODE_SECONDS) if pending else ([], [])
    for reference in done:
        with error_boundary.suppress_errors("prometheus.yml"):
            if line := ray.get(reference, timeout=1):
                yield f"node {pending[reference]}: {to_text(line)}"
