# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A counter that is added to."""

from __future__ import annotations

from typing import Final

from benchmarks.case import BASELINE, Case, Operation, Target, Variant
from benchmarks.peers import OPENTELEMETRY, PROMETHEUS, VERL_OTEL, variants
from benchmarks.rounds import loop
from benchmarks.telemetry import ATTRIBUTES, Telemetry


def add(telemetry: Telemetry) -> Operation:
    """Add to a counter that was bound to its labels before, where there is such a thing."""
    names = {"c": telemetry.counter(), "a": dict(ATTRIBUTES)}
    return loop(telemetry.addition, before=telemetry.empty, close=telemetry.close, **names)


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
