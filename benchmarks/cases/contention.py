# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What threads of telemetry take from the training: they hold the interpreter's lock while they drain, encode and send.

A fixed piece of Python is timed while 4,000 spans, made just before, are drained, encoded and sent to another process. What it takes longer than
without them was taken by those threads.
"""

from __future__ import annotations

import time
from itertools import repeat
from threading import Thread
from typing import Final

from benchmarks.backend import Backend
from benchmarks.case import OURS, Case, Operation
from benchmarks.cases.decorators import work
from benchmarks.cases.kept_spans import SPANS, ours, theirs
from benchmarks.contenders import NOTHING, Contender, variants

_LOOPS: Final = 1_500_000
"""Of the fixed piece: some tenths of a second, longer than anybody needs to send the spans."""


def _compute() -> int:
    total = 0
    for number in range(_LOOPS):
        total += number & 1
    return total


def computing_while_sending(backend: Backend) -> Operation:
    """Make spans, then compute while another thread has them sent."""
    function = backend.traced(work)

    def run(count: int) -> float:
        for _ in repeat(None, SPANS):
            function()
        sender = Thread(target=backend.deliver)
        begin = time.perf_counter()
        sender.start()
        _compute()
        seconds = time.perf_counter() - begin
        sender.join()
        return seconds * count

    return Operation(run, 1, backend.close)


CASES: Final = (
    Case(
        "contention",
        "a fixed piece of Python while 4,000 spans are drained, encoded and sent",
        variants(
            computing_while_sending,
            NOTHING,
            Contender(OURS, "span with 4 attributes, exporters: otlp", ours),
            Contender("opentelemetry", "SDK, batch processor, OTLP over HTTP", theirs),
        ),
        unit="ms",
        rounds=5,
        quick=False,
    ),
)
