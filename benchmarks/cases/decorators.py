# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A decorated function, called: metrics only, and with a span; plain and ``async``. What the caller pays; the drain is off the clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import repeat
from typing import Any, Final

from benchmarks.backend import Backend, Function
from benchmarks.case import Case, Operation, Target
from benchmarks.contenders import (
    FLOOR,
    LEAF,
    NEVER_DRAINED,
    NOTHING,
    OPENTELEMETRY,
    OPENTELEMETRY_SPANS,
    PROMETHEUS,
    SPANS_ONLY,
    TOOL,
    VERL_OTEL,
    Workload,
    variants,
)
from benchmarks.jobs import job
from benchmarks.rounds import loop


def work() -> None:
    """Do nothing: what is left is the cost of being measured."""


async def work_async() -> None:
    """Do nothing and never wait."""


def drive(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine without an event loop, whose cost would hide what is measured."""
    try:
        function().send(None)
    except StopIteration:
        return


def _call(backend: Backend, function: Function) -> Operation:
    return loop("f()", before=backend.empty, close=backend.close, f=function)


def _run(backend: Backend, function: Function) -> Operation:
    return loop("d(f)", before=backend.empty, close=backend.close, d=drive, f=function)


def timed(backend: Backend) -> Operation:
    """Call a function that is timed."""
    return _call(backend, backend.timed(work))


def timed_async(backend: Backend) -> Operation:
    """Run a coroutine function that is timed."""
    return _run(backend, backend.timed(work_async))


def traced(backend: Backend) -> Operation:
    """Call a function that is a span."""
    return _call(backend, backend.traced(work))


def traced_async(backend: Backend) -> Operation:
    """Run a coroutine function that is a span."""
    return _run(backend, backend.traced(work_async))


def calls_and_delivery(decorate: Callable[[Backend], Callable[[Function], Function]], count: int) -> Workload:
    """Return the work of calling the decorated function and then having delivered what was recorded: a scrape, or the sending.

    Args:
        decorate: Returns how a backend decorates.
        count: Calls of a round.
    """

    def build(backend: Backend) -> Operation:
        function = decorate(backend)(work)

        def run(number: int) -> None:
            for _ in repeat(None, number):
                function()
            backend.deliver()

        return job(run, count, close=backend.close)

    return build


CASES: Final = (
    Case(
        "decorator-metrics",
        "decorated function, metrics only",
        variants(timed, NOTHING, FLOOR, VERL_OTEL, NEVER_DRAINED, OPENTELEMETRY, PROMETHEUS),
        (
            Target(
                "decorator, metrics only, sync, with its memory cap", 500, {OPENTELEMETRY.name: 20, PROMETHEUS.name: 2}
            ),
        ),
    ),
    Case(
        "decorator-metrics-async",
        "decorated coroutine function, metrics only",
        variants(timed_async, NOTHING, FLOOR, VERL_OTEL, OPENTELEMETRY, PROMETHEUS),
        (Target("decorator, metrics only, async", 500, {OPENTELEMETRY.name: 15}),),
    ),
    Case(
        "decorator-span",
        "decorated function, span and histogram, not exported",
        variants(traced, NOTHING, LEAF, VERL_OTEL, TOOL, SPANS_ONLY, OPENTELEMETRY, OPENTELEMETRY_SPANS),
        (
            Target("decorator with span, leaf, not kept", 500, {OPENTELEMETRY.name: 100}, ours=LEAF.name),
            Target("decorator with span, attached, full Span API, not kept", 1500, {OPENTELEMETRY.name: 20}),
        ),
    ),
    Case(
        "decorator-span-async",
        "decorated coroutine function, span and histogram, not exported",
        variants(traced_async, NOTHING, VERL_OTEL, OPENTELEMETRY),
        (Target("async decorator with span", 1500, {OPENTELEMETRY.name: 20}),),
    ),
)
