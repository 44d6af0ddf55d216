# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The longest call: somebody has to fold the buffers, and now and then it is the caller."""

from __future__ import annotations

import time
from itertools import repeat
from typing import Final

from benchmarks.backend import Backend
from benchmarks.case import Case, Operation, Target
from benchmarks.cases.decorators import work
from benchmarks.contenders import NEVER_DRAINED, NOTHING, OPENTELEMETRY, PROMETHEUS, variants

CALLS: Final = 5000


def longest_call(backend: Backend) -> Operation:
    """Call a timed function many times and look at the slowest, in CPU time of its thread: a neighbour's turn is no pause of ours."""
    function, clock = backend.timed(work), time.thread_time

    def run(count: int) -> float:
        longest = 0.0
        for _ in repeat(None, count):
            begin = clock()
            function()
            longest = max(longest, clock() - begin)
        return longest * count  # a round is divided by its number of operations

    return Operation(run, CALLS, backend.close)


CASES: Final = (
    Case(
        "longest-call",
        "the longest of 5,000 timed calls, CPU of its thread",
        variants(longest_call, NOTHING, NEVER_DRAINED, OPENTELEMETRY, PROMETHEUS),
        (Target("longest pause of the caller", 1000, ours=NEVER_DRAINED.name),),
        unit="us",
        clock="cpu",
        steady=False,
        rounds=9,
    ),
)
