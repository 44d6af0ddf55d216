# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel compare --json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from verl_otel.analysis import comparison, significance
from verl_otel.analysis.document import Document, Number, about
from verl_otel.cli.documents.base import Answer, HeldSteps, RunId, fill
from verl_otel.cli.headlines import verdict_line
from verl_otel.cli.wording import describe_held


class Counts(Document):
    """Steps that were compared."""

    a: int
    b: int


class Row(Document):
    """What was compared."""

    name: str
    unit: str
    a: significance.Sample
    b: significance.Sample
    change: Annotated[Number, about("relative to A")]
    p: Number
    significant: bool
    detectable: Annotated[Number, about("smallest change that would be significant")]


class HeldOfRun(HeldSteps):
    """Steps of one run."""

    verdict: Annotated[str | None, about("the largest cause, with its step")]


class Held(Document):
    """Steps that something delayed, of all steps."""

    a: HeldOfRun
    b: HeldOfRun


class Resources(Document):
    """Means over the steps that were compared."""

    a: comparison.Resources
    b: comparison.Resources


class Condition(Document):
    """Those of ``--fail-if``."""

    condition: str
    holds: bool
    judged: bool
    reason: str


class Compare(Answer):
    """What differs between two runs."""

    a: RunId
    b: RunId
    steps: Counts
    skipped: Annotated[int, about("steps at the start of each attempt that were left out")]
    enough: Annotated[bool, about("enough steps for a test")]
    noise: Annotated[float, about("relative standard deviation of equivalent runs")]
    rows: tuple[Row, ...]
    explanation: tuple[comparison.Contribution, ...]
    held: Held
    resources: Resources
    scaling: comparison.Scaling | None
    has_gpu: Annotated[bool, about("false: the devices of both runs are ranks on CPUs")]
    notes: Annotated[tuple[str, ...], about("differences in kind, and what was left out")]
    conditions: tuple[Condition, ...]
    next: Annotated[tuple[str, ...], about("commands that explain the two runs, first the one that lost more")]


def make_compare(compared: comparison.Comparison, results: Sequence[tuple[str, object]], a: str, b: str) -> Compare:
    """Return a comparison. Of the commands that follow, the first is about B, or about A if more was lost there.

    Args:
        compared: The comparison.
        results: Conditions and whether they hold.
        a: What a command takes to read A.
        b: The same for B.
    """
    lost_a, lost_b = (each.seconds for each in compared.held)
    held = [
        fill(
            HeldOfRun,
            each,
            steps=each.long,
            text=describe_held(each),
            verdict=None if each.worst is None else verdict_line(each.worst),
        )
        for each in compared.held
    ]
    return fill(
        Compare,
        compared,
        steps=dict(zip("ab", compared.counts, strict=True)),
        rows=[
            fill(Row, row, a=row.difference.a, b=row.difference.b, change=row.difference.change)
            for row in compared.rows
        ],
        explanation=compared.contributions,
        held=dict(zip("ab", held, strict=True)),
        resources=dict(zip("ab", compared.resources, strict=True)),
        conditions=[fill(Condition, result, condition=text) for text, result in results],
        next=[f"verl-otel explain {name}" for name in ((a, b) if lost_a > lost_b else (b, a))],
    )
