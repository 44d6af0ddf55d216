# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Many series: total CPU of a timed call, drain included, where one function is called and where a hundred are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Operation, Variant
from benchmarks.cases.decorators import work
from benchmarks.jobs import job

CALLS: Final = 100_000


def calls_of_many(series: int, *, on: bool = True) -> Callable[[], Operation]:
    """Return what builds the job of calling some timed functions in turn and draining."""

    def build() -> Operation:
        import verl_otel
        from benchmarks.backends.ours import Ours

        backend = Ours()
        functions = [verl_otel.timed(f"bench.scale.{number}")(work) if on else work for number in range(series)]

        def run(count: int) -> None:
            for function in islice(cycle(functions), count):
                function()
            if on:
                backend.empty()

        return job(run, CALLS, before=backend.empty, close=backend.close)

    return build


CASES: Final = (
    Case(
        "scale",
        "total CPU of a timed call, drain included, by number of series",
        (
            Variant(BASELINE, "no telemetry", calls_of_many(100, on=False)),
            Variant(OURS, "1 series", calls_of_many(1)),
            Variant(f"{OURS}, 100 series", "called in turn", calls_of_many(100)),
        ),
        clock="cpu",
        steady=False,
        rounds=7,
        quick=False,
    ),
)
