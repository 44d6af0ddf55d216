# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks every node of the running Ray cluster: versions, resources, clock, and whether it reaches the OTLP endpoint of the cluster."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from verl_otel._version import __version__
from verl_otel.cli.check import connections
from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import cluster_endpoint
from verl_otel.integrations.source_inspection import installed_version

CLOCK_READINGS: Final = 3
"""Readings of the clock of a node. Before the first one, a worker process has to start."""
MAX_OFFSET: Final = 1.0
"""Seconds by which the clock of a node may differ."""
_PACKAGES: Final = ("verl", "ray", "torch", "vllm", "sglang")
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


def _ask(ray: Any) -> Iterator[Finding]:
    look = _make_look(_read_endpoint(), _PACKAGES)
    for node in ray.nodes():
        if not node.get("Alive"):
            continue
        name = f"node {node.get('NodeManagerHostname') or node['NodeManagerAddress']}"
        options = {"num_cpus": 0, "resources": {f"node:{node['NodeManagerAddress']}": 0.001}}
        task = ray.remote(look).options(**options)
        answer, offset = _ask_node(ray, task)
        if answer is None:
            yield Finding(
                "fail",
                name,
                "no answer",
                f"run `ray status`, and look at the logs of that node; the timeout is {TIMEOUT:g} s",
            )
            continue
        yield from _judge(name, answer, node.get("Resources") or {})
        if abs(offset) > MAX_OFFSET:
            text = f"{name}: its clock differs by {offset:+.1f} s from that of this machine"
            yield Finding(
                "fail",
                "clocks",
                text,
                "synchronize it: `chronyc tracking` or `timedatectl` on that node shows the state",
            )


def _ask_node(ray: Any, task: Any) -> tuple[dict[str, Any] | None, float]:
    """Return the answer of a node, None without one, and by how many seconds at least its clock differs."""
    answer, offsets = None, []
    for _ in range(CLOCK_READINGS):
        begin = time.time()
        reference = task.remote()
        ready, _ = ray.wait([reference], timeout=TIMEOUT)
        if not ready:
            return answer, 0.0
        answer, end = ray.get(reference), time.time()
        # The clock was read between the two: only what lies outside is a difference.
        offsets.append(min(answer["time"] - begin, 0.0) + max(answer["time"] - end, 0.0))
    return answer, max(offsets, key=abs)


def _judge(name: str, answer: dict[str, Any], resources: Mapping[str, float]) -> Iterator[Finding]:
    version, others = answer["verl_otel"], answer["versions"]
    shown = ", ".join(f"{package} {number}" for package, number in others.items() if number)
    amounts = ", ".join(f"{resources[kind]:g} {kind}" for kind in ("CPU", "GPU", "NPU") if resources.get(kind))
    if version == __version__:
        yield Finding("ok", name, f"verl-otel {version}, {shown}; {amounts}")
    elif version.startswith("!"):
        text = f"verl-otel cannot be loaded there ({version[1:]}); its processes are not recorded"
        yield Finding("fail", name, text, "pip install verl-otel on that node")
    else:
        yield Finding("note", name, f"verl-otel {version}, here {__version__}", "use the same version on every node")
    here = _read_versions()
    different = [
        f"{package} {number}, here {here[package]}" for package, number in others.items() if number != here[package]
    ]
    if different and not version.startswith("!"):
        yield Finding(
            "note", name, f"other versions there: {'; '.join(different)}", "install the same versions on every node"
        )
    if answer["endpoint"]:
        yield from _judge_reach(name, answer)


def _judge_reach(name: str, answer: dict[str, Any]) -> Iterator[Finding]:
    url, problem = answer["endpoint"], answer["problem"]
    proxy = connections.find_proxy(url, answer["proxies"])
    if problem is not None:
        reason, advice = connections.explain(url, problem)
        yield Finding("fail", "OTLP of the cluster", f"from {name}: {reason}", advice)
    elif proxy:
        text = f"from {name}: {proxy} is set there, so what is sent to {url} goes to a proxy"
        host = urlsplit(url).hostname
        yield Finding(
            "fail",
            "OTLP of the cluster",
            text,
            f"add {host} to NO_PROXY in the environment of `ray start` on that node",
        )
    else:
        yield Finding("ok", "OTLP of the cluster", f"{name} reaches {url}")


def _read_endpoint() -> str:
    value = cluster_store.read(cluster_endpoint.KEY)
    found = cluster_endpoint.decode(value) if value else None
    return found.http if found is not None else ""


def _read_versions() -> dict[str, str]:
    return {package: ".".join(re.findall(r"\d+", installed_version(package))[:3]) for package in _PACKAGES}


def _make_look(endpoint: str, packages: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """Return the function that runs on a node. It is pickled by value, so that a node without verl-otel can run it."""

    def look() -> dict[str, Any]:
        import os
        import re
        import socket
        import time
        from importlib import metadata

        versions = {}
        for package in packages:
            try:
                versions[package] = ".".join(re.findall(r"\d+", metadata.version(package))[:3])
            except metadata.PackageNotFoundError:
                versions[package] = ""
        try:
            import verl_otel.plugin

            own = str(verl_otel.__version__)
        except BaseException as error:
            own = f"!{type(error).__name__}: {error}"
        problem: int | str | None = None
        if endpoint:
            host, _, port = endpoint.rpartition("//")[2].rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), 5.0).close()
            except TimeoutError:
                problem = "timeout"
            except OSError as error:
                problem = error.errno if error.errno is not None else str(error)
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        return {
            "verl_otel": own,
            "versions": versions,
            "endpoint": endpoint,
            "problem": problem,
            "proxies": proxies,
            "time": time.time(),
        }

    return look
