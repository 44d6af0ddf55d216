# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories through the hooks, or reported by hand with the OpenTelemetry SDK: CPU seconds of all threads of this process, as JSON."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

from benchmarks.hooks.stand_ins import SPANS, make_module, make_worker, run_trajectories
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


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hooks", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--trajectories", type=int, default=1000)
    arguments = parser.parse_args(argv)
    print(json.dumps(measure(arguments.kind, arguments.trajectories)))


if __name__ == "__main__":
    main()
