# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories through the hooks, or reported by hand with the OpenTelemetry SDK: CPU seconds of all threads of this process, as JSON.

Either of a number of trajectories that run one after the other, or of a second in which some are open: a process with none is idle. Each
open one takes a minute, and a new one begins when it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from benchmarks.hooks.stand_ins import SPANS, Pace, make_module, make_worker, run_trajectories
from benchmarks.sink import Sink

KINDS: Final = ("none", "file", "otlp", "prometheus", "opentelemetry-otlp", "opentelemetry-metrics")
"""Exporters; ``none``: without hooks and telemetry. With ``prometheus`` and ``metrics`` no span is kept: the sampler takes none."""
SENDING: Final = ("file", "otlp", "opentelemetry-otlp")
Action = Callable[[], object]
HOOKED: Final = (
    "AgentLoopWorker._run_agent_loop",
    "AgentLoopWorker._compute_score",
    "ToolAgentLoop._handle_generating_state",
    "ToolAgentLoop._call_tool",
    "LLMServerClient.generate",
    "RewardLoopWorker.compute_score",
)
LEAST_BYTES: Final = 60
"""Of an encoded span: less has arrived if spans were dropped."""
LIFE: Final = 66.0
"""Seconds of an open trajectory."""
SETTLE: Final = 10.0
"""Seconds until a measurement of seconds begins."""


def install_hooks(module: ModuleType) -> Any:
    """Install the hooks in a module of `stand_ins`, and return a worker."""
    from verl_otel.integrations.verl import agent_loop, llm

    for hook in (*agent_loop.HOOKS, *llm.HOOKS):
        if hook.symbol in HOOKED:
            hook.install(module)
    return make_worker(module)


def _start(kind: str, endpoint: str) -> tuple[Any, Action, Action]:
    """Start telemetry; return a worker that reports to it, what delivers everything, and what stops it."""
    if kind == "none":
        return make_worker(make_module()), lambda: None, lambda: None
    if kind.startswith("opentelemetry"):
        from benchmarks.hooks.opentelemetry_sdk import OpenTelemetryWorker

        sampled = kind.endswith("otlp")
        sdk = OpenTelemetryWorker(endpoint if sampled else "", sampled=sampled)
        return sdk.make_worker(), sdk.deliver, sdk.close
    import verl_otel
    from verl_otel import session

    if kind == "otlp":
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    if kind == "prometheus":
        os.environ["OTEL_TRACES_SAMPLER"] = "always_off"
    verl_otel.init(exporters=kind, memory_mib=1024)
    return install_hooks(make_module()), partial(session.flush, 60.0), verl_otel.shutdown


def measure(kind: str, trajectories: int) -> dict[str, float]:
    """Return the CPU seconds of trajectories, until everything is delivered, and the bytes that were sent or written.

    Raises:
        RuntimeError: Spans are missing.
    """
    with Sink() as sink, tempfile.TemporaryDirectory() as folder:
        os.environ["VERL_OTEL_RUN_DIR"] = folder
        worker, deliver, stop = _start(kind, sink.url)
        asyncio.run(run_trajectories(worker, 64))
        deliver()
        before = sink.count_bytes(folder)
        gc.collect()
        begin = time.process_time()
        asyncio.run(run_trajectories(worker, trajectories))
        deliver()
        cpu = time.process_time() - begin
        arrived = sink.count_bytes(folder) - before
        stop()
    if kind in SENDING and arrived < LEAST_BYTES * SPANS * trajectories:
        raise RuntimeError(f"{arrived} bytes of {SPANS * trajectories} spans: the measurement is invalid")
    return {"cpu": cpu, "bytes": arrived}


async def _watch(worker: Any, number: int, seconds: float, folder: Path) -> dict[str, float]:
    """Return what a second takes while some trajectories are open."""

    async def keep_open() -> None:
        await asyncio.sleep(Pace.draw.uniform(0, SETTLE / 2))
        while True:
            await run_trajectories(worker, 1)

    Pace.life = LIFE
    tasks = [asyncio.create_task(keep_open()) for _ in range(number)]
    await asyncio.sleep(SETTLE)
    size, cpu, begin = _count_size(folder), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu, elapsed, written = time.process_time() - cpu, time.monotonic() - begin, _count_size(folder) - size
    for task in tasks:
        task.cancel()
    return {
        "cpu": cpu / elapsed,
        "bytes": written / elapsed,
        "threads": threading.active_count(),
        "mib": _read_memory(),
    }


def _read_memory() -> float:
    """Return the memory of this process in MiB; what it shares with others counts in part (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _count_size(folder: Path) -> int:
    """Return the bytes of what this process has written."""
    return sum(path.stat().st_size for path in folder.rglob(f"*-{os.getpid()}.*") if path.is_file())


def measure_seconds(kind: str, number: int, seconds: float, folder: str = "") -> dict[str, float]:
    """Return what a second takes: CPU seconds, bytes written; the threads, and the memory (PSS: what is shared counts in part).

    Args:
        kind: One of `KINDS`.
        number: Trajectories that are open; 0: an idle process, which has recorded one.
        seconds: Length of the measurement.
        folder: Folder of runs; a temporary one if empty.
    """
    with Sink() as sink, tempfile.TemporaryDirectory() as own:
        os.environ["VERL_OTEL_RUN_DIR"] = folder or own
        worker, deliver, stop = _start(kind, sink.url)
        asyncio.run(run_trajectories(worker, 1))
        deliver()
        result = asyncio.run(_watch(worker, number, seconds, Path(folder or own)))
        stop()
    return result


def measure_node(kind: str, processes: int, seconds: float, number: int = 0) -> dict[str, float]:
    """Return what the processes of a run on one node take: CPU and bytes of one, threads and memory of all.

    Args:
        kind: One of `KINDS`.
        processes: How many.
        seconds: Length of the measurement.
        number: Trajectories that each has open.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.hooks", kind, "--open", str(number), "--seconds", str(seconds)]
        environment = {**os.environ, "VERL_OTEL_RUN_ID": "node"}
        started = [
            subprocess.Popen([*command, "--folder", folder], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    totals = {name: sum(each[name] for each in found) for name in found[0]}
    return {**totals, "cpu": totals["cpu"] / processes, "bytes": totals["bytes"] / processes}


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hooks", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--trajectories", type=int, default=1000, help="that run one after the other (1000)")
    parser.add_argument("--open", type=int, help="measure seconds with so many trajectories open; 0: an idle process")
    parser.add_argument("--processes", type=int, default=1, help="idle ones of one run on this node (1)")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--folder", default="", help="of runs (a temporary one)")
    arguments = parser.parse_args(argv)
    if arguments.processes > 1:
        figures = measure_node(arguments.kind, arguments.processes, arguments.seconds, arguments.open or 0)
    elif arguments.open is not None:
        figures = measure_seconds(arguments.kind, arguments.open, arguments.seconds, arguments.folder)
    else:
        figures = measure(arguments.kind, arguments.trajectories)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
