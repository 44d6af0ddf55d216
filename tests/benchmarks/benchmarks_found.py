# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Figures that tests make up."""

from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant
from benchmarks.processes import Measured
from benchmarks.results import Results, summarize

MACHINE = {
    "commit": "abc",
    "python": "CPython 3.11.7",
    "build": "without PGO and LTO, with the GIL",
    "processor": "a processor",
    "cores": "2",
}


def case(**more):
    """A case of a baseline, ours and one peer."""
    variants = tuple(Variant(name, f"{name}, as it is", lambda: Operation(float)) for name in (BASELINE, OURS, "peer"))
    return Case("call", "calling", variants, (Target("a call", 150, {"peer": 10}),), **more)


def measured(ours, peer, baseline=20):
    """What one process found: overheads in nanoseconds, the same in each of three rounds."""
    named = {BASELINE: baseline, OURS: ours + baseline, "peer": peer + baseline}
    return Measured({name: [value * 1e-9] * 3 for name, value in named.items()})


def results(found, machine=None, date="2026-11-21"):
    """A run of one case."""
    made = summarize(case(), found)
    return Results(date, 12.5, len(found), 3, False, {**MACHINE, **(machine or {})}, (0.5, 1.25), (made,))
