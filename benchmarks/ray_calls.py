# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of an actor in a Ray of this process alone, with our carrier or without; what they took goes to the standard output as JSON.

Usage: python -m benchmarks.ray_calls none|idle|carrying

``none`` is plain Ray, ``idle`` has the plug-in loaded and no span open, ``carrying`` calls inside a trajectory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from statistics import median
from typing import Any, Final

KINDS: Final = ("none", "idle", "carrying")
CALLS: Final = 200
"""Of a batch: few enough that nobody has to wait for the actor to accept more."""
BATCHES: Final = 25


class Callee:
    """An actor that does nothing."""

    def work(self) -> None:
        """Do nothing."""

    def cpu(self) -> float:
        """Return the CPU seconds of this process."""
        return time.process_time()

    def trace(self) -> int:
        """Return the id of the trace that is current, 0 if none is."""
        if "opentelemetry.trace" not in sys.modules:
            return 0
        from opentelemetry import trace

        return trace.get_current_span().get_span_context().trace_id


def measure(kind: str) -> dict[str, float]:
    """Call the actor many times.

    Args:
        kind: One of `KINDS`.

    Returns:
        Seconds of one call: ``caller`` until it has the reference, ``callee`` of the actor's CPU, ``message`` until the answer is there, when
        many are under way.

    Raises:
        RuntimeError: The context did not arrive, or arrived where there was none.
    """
    if kind != "none":
        os.environ |= {"VERL_OTEL_ENABLED": "1", "VERL_OTEL_EXPORTERS": "none"}
        from verl_otel import plugin

        plugin.load()
    import ray

    folder = os.environ.get("VERL_OTEL_RUN_DIR") or tempfile.mkdtemp()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir=folder, object_store_memory=2**27)
    try:
        actor = ray.remote(Callee).remote()
        with _surrounding(kind):
            ray.get([actor.work.remote() for _ in range(CALLS)])
            if bool(ray.get(actor.trace.remote())) != (kind == "carrying"):
                raise RuntimeError(f"{kind}: the measurement is invalid")
            return _call(ray, actor)
    finally:
        ray.shutdown()


def _surrounding(kind: str) -> contextlib.AbstractContextManager[Any]:
    if kind != "carrying":
        return contextlib.nullcontext()
    import verl_otel

    return verl_otel.trajectory("uid", 0)


def _call(ray: Any, actor: Any) -> dict[str, float]:
    callers, messages, clock = [], [], time.perf_counter
    before = ray.get(actor.cpu.remote())
    for _ in range(BATCHES):
        begin = clock()
        waiting = [actor.work.remote() for _ in range(CALLS)]
        callers.append((clock() - begin) / CALLS)
        ray.get(waiting)
        messages.append((clock() - begin) / CALLS)
    callee = (ray.get(actor.cpu.remote()) - before) / (BATCHES * CALLS)
    return {"caller": median(callers), "callee": callee, "message": median(messages)}


def main() -> None:
    """Measure and print."""
    if len(sys.argv) != 2 or sys.argv[1] not in KINDS:  # noqa: PLR2004 - the script and one word
        raise SystemExit(__doc__)
    print(json.dumps(measure(sys.argv[1])))


if __name__ == "__main__":
    main()
