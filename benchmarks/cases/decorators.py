# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A decorated function, called: metrics only, with a span, and switched off. What the caller pays; the drain is off the clock."""

from __future__ import annotations

from typing import Final

from benchmarks.backend import Backend, Function
from benchmarks.calls import work
from benchmarks.case import Case, Operation, Target
from benchmarks.contenders import LABELLED, LEAF, NOTHING, OFF, OPENTELEMETRY, PROMETHEUS, VERL_OTEL, variants
from benchmarks.rounds import loop


def _call(backend: Backend, function: Function) -> Operation:
    return loop("f()", before=backend.empty, close=backend.close, f=function)


def timed(backend: Backend) -> Operation:
    """Call a function that is timed."""
    return _call(backend, backend.timed(work))


def traced(backend: Backend) -> Operation:
    """Call a function that is a span."""
    return _call(backend, backend.traced(work))


CASES: Final = (
    Case(
        "decorator-metrics",
        "decorated function, metrics only",
        variants(timed, NOTHING, VERL_OTEL, LABELLED, OPENTELEMETRY, PROMETHEUS),
        (
            Target(
                "decorator, metrics only, sync, with its memory cap", 500, {OPENTELEMETRY.name: 20, PROMETHEUS.name: 2}
            ),
            Target("timed call, labels at each call", None, {PROMETHEUS.name: 1}, ours=LABELLED.name),
        ),
    ),
    Case(
        "decorator-span",
        "decorated function, span and histogram, not exported",
        variants(traced, NOTHING, LEAF, VERL_OTEL, OPENTELEMETRY),
        (
            Target("decorator with span, leaf, not kept", 500, {OPENTELEMETRY.name: 100}, ours=LEAF.name),
            Target("decorator with span, attached, full Span API, not kept", 1500, {OPENTELEMETRY.name: 20}),
        ),
    ),
    Case(
        "off-span",
        "decorated function with a span, switched off",
        variants(traced, NOTHING, OFF),
        (Target("switched off, with a span", 100),),
    ),
)
