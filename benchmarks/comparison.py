# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what costs more than before, and whether that is more than noise."""

from __future__ import annotations

from benchmarks.case import BASELINE
from benchmarks.results import Results
from benchmarks.statistics import BETWEEN_RUNS, NOT_SIGNIFICANT, Estimate
from benchmarks.table import figure


def judge(before: Estimate, after: Estimate) -> str:
    """Return "slower" or "faster" where the intervals are apart by more than two runs of the same code differ; else "not significant"."""
    if after.low > before.high * (1 + BETWEEN_RUNS):
        return "slower"
    return "faster" if after.high * (1 + BETWEEN_RUNS) < before.low else NOT_SIGNIFICANT


def render(a: Results, b: Results) -> str:
    """Return every variant that both runs have measured, as text."""
    lines = [f"{'case':24} {'variant':34} {'A':>28} {'B':>28}  change"]
    for case in a.cases:
        other = b.case(case.name)
        if other is None:
            continue
        for name, before in case.overheads.items():
            after = other.overheads.get(name)
            old, new = before.estimate, after.estimate if after is not None else None
            if name == BASELINE or old is None or new is None:
                continue
            change = (new.value - old.value) / old.value if old.value else 0.0
            sides = f"{figure(old, case.unit):>28} {figure(new, case.unit):>28}"
            lines.append(f"{case.name:24} {name:34} {sides}  {change:+.0%} {judge(old, new)}")
    return "\n".join(lines)
