# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what costs more than before, and whether that is more than noise."""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.case import BASELINE
from benchmarks.results import Results
from benchmarks.statistics import rank_probability
from benchmarks.table import figure
from verl_otel.analysis.significance import holm

LEVEL: Final = 0.05
"""Probability at which a difference is called significant, of all of them together."""
SMALLEST: Final = 0.05
"""Relative difference that is ignored: two builds of the same code differ by as much, by the layout of their memory."""


class Difference(NamedTuple):
    """One variant of one case in both runs."""

    case: str
    variant: str
    a: str
    b: str
    change: float
    """Of the median, relative to A."""
    p: float
    """Probability of such a difference between two runs of the same thing, adjusted for the number of rows."""

    @property
    def outcome(self) -> str:
        """Return "slower", "faster" or "not significant"."""
        if self.p >= LEVEL or abs(self.change) < SMALLEST:
            return "not significant"
        return "slower" if self.change > 0 else "faster"


def compare(a: Results, b: Results) -> list[Difference]:
    """Return every variant that both runs have measured."""
    differences = []
    for case in a.cases:
        other = b.case(case.name)
        for name, before in case.overheads.items():
            after = other.overheads.get(name) if other is not None else None
            old, new = before.estimate, after.estimate if after is not None else None
            if name == BASELINE or after is None or old is None or new is None:
                continue
            change = (new.value - old.value) / old.value if old.value else 0.0
            p = rank_probability(before.values, after.values)
            differences.append(Difference(case.name, name, figure(old, case.unit), figure(new, case.unit), change, p))
    adjusted = holm([difference.p for difference in differences])
    return [difference._replace(p=p) for difference, p in zip(differences, adjusted, strict=True)]


def render(a: Results, b: Results) -> str:
    """Return the comparison as text, and which promises are kept differently."""
    lines = [
        f"{'case':24} {'variant':34} {'A':>28} {'B':>28}  change",
        *(
            f"{row.case:24} {row.variant:34} {row.a:>28} {row.b:>28}  {row.change:+.0%} {row.outcome}"
            for row in compare(a, b)
        ),
    ]
    outcomes = {(case.name, row.title, row.against): row.outcome for case in a.cases for row in case.verdicts}
    for case in b.cases:
        for verdict in case.verdicts:
            before = outcomes.get((case.name, verdict.title, verdict.against))
            if before is not None and before != verdict.outcome:
                lines.append(
                    f"{verdict.title}{f' / {verdict.against}' if verdict.against else ''}: {before} -> {verdict.outcome}"
                )
    return "\n".join(lines)
