# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of one decorated function in this process, until everything is delivered: CPU seconds of all its threads, as JSON.

Every span and every value of a histogram has the same four attributes, given at each call.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Final

from benchmarks.backend import Backend
from benchmarks.contenders import load
from benchmarks.sink import Sink

CALLS: Final = 20_000
PART: Final = 4000
"""Calls after which everything is delivered: a scrape, or the sending."""
LEAST_BYTES: Final = 100
"""Of a span with four attributes, encoded: less has arrived if spans were dropped."""

KINDS: Final[Mapping[str, Callable[[str], Backend]]] = {
    "none": lambda _: Backend(),
    "ours-metrics": lambda _: load("ours", "OursLabelled", exporters="prometheus", kept=False)(),
    "ours-file": lambda _: load("ours", "OursLabelled", exporters="file")(),
    "ours-otlp": lambda url: load("ours", "OursLabelled", exporters="otlp", endpoint=url)(),
    "opentelemetry-metrics": lambda _: load("opentelemetry_sdk", "OpenTelemetry", sampled=False)(),
    "opentelemetry-otlp": lambda url: load("opentelemetry_sdk", "OpenTelemetry", endpoint=url)(),
}
"""What makes a span and a value of a histogram. ``metrics``: the span is not sampled, and a scrape has the histogram."""
SENDING: Final = ("ours-file", "ours-otlp", "opentelemetry-otlp")


def work() -> None:
    """Do nothing: what is left is the cost of being measured."""


def measure(kind: str, calls: int) -> dict[str, float]:
    """Return the CPU seconds of calls, and the bytes that were sent or written.

    Raises:
        RuntimeError: Spans are missing.
    """
    with Sink() as sink, tempfile.TemporaryDirectory() as folder:
        os.environ["VERL_OTEL_RUN_DIR"] = folder
        backend = KINDS[kind](sink.url)
        function = backend.traced(work)

        def call(number: int) -> None:
            for _ in range(0, number, PART):
                for _ in repeat(None, PART):
                    function()
                backend.deliver()

        call(PART)
        before = sink.count_bytes(folder)
        gc.collect()
        begin = time.process_time()
        call(calls)
        cpu = time.process_time() - begin
        received = sink.count_bytes(folder) - before
        backend.close()
    if kind in SENDING and received < LEAST_BYTES * calls:
        raise RuntimeError(f"{received} bytes of {calls} spans: the measurement is invalid")
    return {"cpu": cpu, "bytes": received}


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--calls", type=int, default=CALLS)
    arguments = parser.parse_args(argv)
    print(json.dumps(measure(arguments.kind, arguments.calls)))


if __name__ == "__main__":
    main()
