# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A counter that is added to."""

from __future__ import annotations

from typing import Final

from benchmarks.backend import ATTRIBUTES, Backend
from benchmarks.case import BASELINE, Case, Operation, Target, Variant
from benchmarks.contenders import OPENTELEMETRY, PROMETHEUS, VERL_OTEL, variants
from benchmarks.rounds import loop


def add(backend: Backend) -> Operation:
    """Add to a counter that was bound to its labels before, where there is such a thing."""
    names = {"c": backend.counter(), "a": dict(ATTRIBUTES)}
    return loop(backend.addition, before=backend.empty, close=backend.close, **names)


CASES: Final = (
    Case(
        "counter",
        "counter, bound to four labels",
        (
            Variant(BASELINE, "an empty statement: the loop itself", lambda: loop("pass")),
            *variants(add, VERL_OTEL, OPENTELEMETRY, PROMETHEUS),
        ),
        (Target("bound counter add", 20, {OPENTELEMETRY.name: 300, PROMETHEUS.name: 15}),),
    ),
)
