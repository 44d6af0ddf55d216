# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A block under ``with``, metrics only and with a span, and a counter that is added to. What the caller pays; the drain is off the clock."""

from __future__ import annotations

from typing import Final

from benchmarks.backend import ATTRIBUTES, Backend
from benchmarks.case import BASELINE, Case, Operation, Target, Variant
from benchmarks.contenders import ONE_TIMER, OPENTELEMETRY, PROMETHEUS, VERL_OTEL, variants
from benchmarks.rounds import loop


def timed(backend: Backend) -> Operation:
    """Enter and leave a block that is timed."""
    return loop(backend.timed_block, before=backend.empty, close=backend.close, r=backend.timed_region())


def traced(backend: Backend) -> Operation:
    """Enter and leave a block that is a span."""
    return loop("with r(): pass", before=backend.empty, close=backend.close, r=backend.traced_region())


def add(backend: Backend) -> Operation:
    """Add to a counter that was bound to its labels before, where there is such a thing."""
    names = {"c": backend.counter(), "a": dict(ATTRIBUTES)}
    return loop(backend.addition, before=backend.empty, close=backend.close, **names)


_EMPTY: Final = Variant(BASELINE, "an empty statement: the loop itself", lambda: loop("pass"))

CASES: Final = (
    Case(
        "with-metrics",
        "block under `with`, metrics only",
        (_EMPTY, *variants(timed, VERL_OTEL, ONE_TIMER, OPENTELEMETRY, PROMETHEUS)),
        (Target("`with`, metrics only", 800, {OPENTELEMETRY.name: 12, PROMETHEUS.name: 2}),),
    ),
    Case(
        "with-span",
        "block under `with`, span and histogram, not exported",
        (_EMPTY, *variants(traced, VERL_OTEL, OPENTELEMETRY)),
        (Target("`with` span", 1750, {OPENTELEMETRY.name: 25}),),
    ),
    Case(
        "counter",
        "counter, bound to four labels",
        (_EMPTY, *variants(add, VERL_OTEL, OPENTELEMETRY, PROMETHEUS)),
        (Target("bound counter add", 65, {OPENTELEMETRY.name: 120, PROMETHEUS.name: 5}),),
    ),
)
