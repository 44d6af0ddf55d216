# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One step in this process, reported by one backend; what it took goes to the standard output as JSON.

A process of its own for each: the most memory that it ever had cannot be taken back.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.agents.step import SPANS, STEP, Agents, Step
from benchmarks.sink import Sink

LEAST_BYTES: Final = 60
"""Of an encoded span, whatever it says: less has come in if spans were dropped."""


def _ours(exporters: str) -> Callable[[str], Agents]:
    def build(endpoint: str) -> Agents:
        from benchmarks.agents.ours import OurAgents

        return OurAgents(exporters, endpoint if exporters == "otlp" else "")

    return build


def _sdk(endpoint: str) -> Agents:
    from benchmarks.agents.opentelemetry_sdk import SdkAgents

    return SdkAgents(endpoint)


def _insight(_: str) -> Agents:
    from benchmarks.agents.rl_insight import InsightAgents

    return InsightAgents()


KINDS: Final[Mapping[str, Callable[[str], Agents]]] = {
    "none": lambda _: Agents(),
    "ours-otlp": _ours("otlp"),
    "ours-file": _ours("file"),
    "ours-prometheus": _ours("prometheus"),
    "opentelemetry": _sdk,
    "rl_insight": _insight,
}
SENDING: Final = ("ours-otlp", "ours-file", "opentelemetry")
"""Who brings every span somewhere."""


def measure(kind: str, trajectories: int) -> dict[str, float]:
    """Do a step and return what it took.

    Args:
        kind: Name of the backend, of `KINDS`.
        trajectories: How many.

    Returns:
        ``cpu``: seconds of all threads until everything has arrived; ``bytes`` that were sent or written; ``memory``: bytes at most,
        imports included; ``delay``: seconds of the event loop's pass that 99 % are not longer than.

    Raises:
        RuntimeError: Less has arrived than there was.
    """
    with Sink() as sink:
        agents = KINDS[kind](sink.url)
        Step(agents, 8).run()  # imports, the session's and the exporters' opening
        agents.deliver()
        before = sink.read()["bytes"] + agents.written()
        gc.collect()
        elsewhere = agents.elsewhere()
        step, begin = Step(agents, trajectories), time.process_time()
        step.run()
        agents.deliver()
        cpu = time.process_time() - begin + agents.elsewhere() - elsewhere
        sent = sink.read()["bytes"] + agents.written() - before
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        agents.close()
    if kind in SENDING and sent < LEAST_BYTES * SPANS * trajectories:
        raise RuntimeError(f"{sent} bytes of {SPANS * trajectories} spans: the measurement is invalid")
    step.delays.sort()
    return {"cpu": cpu, "bytes": sent, "memory": memory, "delay": step.delays[int(0.99 * (len(step.delays) - 1))]}


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--trajectories", type=int, default=STEP)
    arguments = parser.parse_args(argv)
    result: dict[str, Any] = measure(arguments.kind, arguments.trajectories)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
