# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is paid by the second and not by the call: the CPU time of the threads of telemetry, as JSON on the standard output.

An idle process has recorded one step. A busy one is an agent loop worker whose trajectories are open for a minute: each has ten turns with
a call of the model and of a tool, and a new one begins when it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KINDS: Final = ("none", "file", "prometheus")
"""Exporters; ``none``: no telemetry."""
SETTLE: Final = 5.0
"""Seconds until the measurement begins."""
LIFE: Final = 66.0
"""Seconds of a trajectory."""
TURNS: Final = 10
_WATCHER: Final = "verl-otel-watch"
Figures = Mapping[str, float]


def thread_seconds() -> dict[str, float]:
    """Return the CPU seconds of each thread of telemetry, by its name."""
    return {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.ident is not None and thread.name.startswith("verl-otel")
    }


async def _trajectory(number: int, draw: random.Random) -> None:
    import verl_otel

    @verl_otel.llm("qwen3-8b")
    async def ask() -> str:
        await asyncio.sleep(draw.uniform(0.6, 1.4) * LIFE / TURNS * 0.85)
        return "x"

    @verl_otel.tool("python")
    async def run() -> str:
        await asyncio.sleep(draw.uniform(0.6, 1.4) * LIFE / TURNS * 0.13)
        return "y"

    await asyncio.sleep(draw.uniform(0, SETTLE))
    index = 0
    while True:
        with verl_otel.trajectory(f"prompt-{number}", index, step=1, agent="tool_agent"):
            for turn in range(TURNS):
                with verl_otel.turn(turn):
                    await ask()
                    await run()
        index += 1


def _read_memory() -> float:
    """Return the memory of this process in MiB; what it shares with others counts in part (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def _run(number: int, seconds: float) -> Figures:
    draw = random.Random(1)  # noqa: S311 - the same waits in every run
    tasks = [asyncio.create_task(_trajectory(index, draw)) for index in range(number)]
    await asyncio.sleep(2 * SETTLE if number else SETTLE)
    before, begin = thread_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    after, elapsed = thread_seconds(), time.monotonic() - begin
    spent = {name: (after[name] - before.get(name, 0.0)) / elapsed for name in after}
    threads, mib = threading.active_count(), _read_memory()
    for task in tasks:
        task.cancel()
    return {"cpu": sum(spent.values()), "watcher": spent.get(_WATCHER, 0.0), "threads": threads, "mib": mib}


def measure(kind: str, number: int, seconds: float, folder: str = "") -> Figures:
    """Return the CPU seconds of a second (all threads of telemetry, and the watcher's), the threads, and the memory.

    Args:
        kind: One of `KINDS`.
        number: Trajectories that are open; 0: an idle process.
        seconds: Length of the measurement.
        folder: Folder of runs; a temporary one if empty.
    """
    if kind == "none":
        return asyncio.run(_run(0, seconds))
    import verl_otel

    with tempfile.TemporaryDirectory() as own:
        os.environ["VERL_OTEL_RUN_DIR"] = folder or own
        verl_otel.init(exporters=kind, memory_mib=1024)
        with verl_otel.step(1):
            pass
        result = asyncio.run(_run(number, seconds))
        verl_otel.shutdown()
    return result


def measure_node(kind: str, processes: int, seconds: float) -> Figures:
    """Return what the idle processes of a run on one node take together."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, kind, "--seconds", str(seconds), "--folder", folder]
        environment = {**os.environ, "VERL_OTEL_RUN_ID": "node"}
        started = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    return {name: sum(each[name] for each in found) for name in found[0]}


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--trajectories", type=int, default=0, help="that are open; 0: an idle process (0)")
    parser.add_argument("--processes", type=int, default=1, help="idle ones of one run on this node (1)")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--folder", default="", help="of runs (a temporary one)")
    arguments = parser.parse_args(argv)
    if arguments.processes > 1:
        figures = measure_node(arguments.kind, arguments.processes, arguments.seconds)
    else:
        figures = measure(arguments.kind, arguments.trajectories, arguments.seconds, arguments.folder)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
