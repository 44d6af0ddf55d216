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
import tempfile
import threading
import time
from typing import Any, Final

KINDS: Final = ("none", "file", "prometheus")
"""Exporters; ``none``: no telemetry."""
SETTLE: Final = 5.0
"""Seconds until the measurement begins."""
LIFE: Final = 66.0
"""Seconds of a trajectory."""
TURNS: Final = 10
_WATCHER: Final = "verl-otel-watch"


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


async def _run(number: int, seconds: float) -> dict[str, float]:
    draw = random.Random(1)  # noqa: S311 - the same waits in every run
    tasks = [asyncio.create_task(_trajectory(index, draw)) for index in range(number)]
    await asyncio.sleep(2 * SETTLE if number else SETTLE)
    before, begin = thread_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    after, elapsed = thread_seconds(), time.monotonic() - begin
    for task in tasks:
        task.cancel()
    spent = {name: (after[name] - before.get(name, 0.0)) / elapsed for name in after}
    return {"cpu": sum(spent.values()), "watcher": spent.get(_WATCHER, 0.0)}


def measure(kind: str, number: int, seconds: float) -> dict[str, Any]:
    """Return the CPU seconds of a second: those of all threads of telemetry, and of these the watcher's.

    Args:
        kind: One of `KINDS`.
        number: Trajectories that are open; 0: an idle process.
        seconds: Length of the measurement.
    """
    if kind == "none":
        return {"cpu": 0.0, "watcher": 0.0}
    import verl_otel

    with tempfile.TemporaryDirectory() as folder:
        os.environ["VERL_OTEL_RUN_DIR"] = folder
        verl_otel.init(exporters=kind, memory_mib=1024)
        with verl_otel.step(1):
            pass
        result = asyncio.run(_run(number, seconds))
        verl_otel.shutdown()
    return result


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--trajectories", type=int, default=0, help="that are open; 0: an idle process (0)")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args(argv)
    print(json.dumps(measure(arguments.kind, arguments.trajectories, arguments.seconds)))


if __name__ == "__main__":
    main()
