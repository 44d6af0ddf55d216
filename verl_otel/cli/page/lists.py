# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the lists of the page to bounded plain data: verdicts, stragglers, events, unfinished work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from verl_otel._internal import printable
from verl_otel.analysis.model import Explanation, Step
from verl_otel.cli import formatting
from verl_otel.cli.page import downsampling
from verl_otel.cli.report import headlines

VERDICTS: Final = 1_000
CAUSES: Final = 12
LISTED: Final = 200
EXACT: Final = 2**53
"""Above this, JavaScript's numbers are not exact; ids are written as text."""


def of_verdicts(steps: Sequence[Step], every: Sequence[Step]) -> dict[str, Any]:
    """Return the verdicts with the largest savings, and the sum of savings by cause.

    Args:
        steps: The steps that are shown, whose verdicts are listed.
        every: All steps of the run, whose verdicts are counted.
    """
    indexed = [(index, verdict) for index, step in enumerate(steps) for verdict in step.verdicts]
    indexed.sort(key=lambda pair: (-pair[1].saved, -pair[1].step_seconds))
    causes: dict[tuple[str, str], list[float]] = {}
    for verdict in (verdict for step in every for verdict in step.verdicts):
        total = causes.setdefault((verdict.cause, verdict.cause_name), [0, 0.0])
        total[0] += 1
        total[1] += verdict.saved
    ranked = sorted(causes.items(), key=lambda pair: -pair[1][1])[:CAUSES]
    return {
        "count": sum(len(step.verdicts) for step in every),
        "rows": [
            [
                index,
                printable.show(headlines.verdict_line(verdict), formatting.SENTENCE),
                round(verdict.saved, 4),
                round(verdict.seconds, 4),
                printable.show(verdict.cause),
                printable.show(verdict.cause_name),
            ]
            for index, verdict in indexed[:VERDICTS]
        ],
        "causes": [
            [printable.show(cause), printable.show(name), int(count), round(saved, 3)]
            for (cause, name), (count, saved) in ranked
        ],
    }


def of_stragglers(steps: Iterable[Step]) -> list[list[Any]]:
    """Return late ranks over all steps: number of delays, their sum and maximum, and the evidence."""
    rows: dict[tuple[str, int, str], list[Any]] = {}
    for straggler in (straggler for step in steps for straggler in step.stragglers):
        row = rows.setdefault((straggler.method, straggler.rank, straggler.instance), [0, 0.0, 0.0, Counter()])
        row[0] += 1
        row[1] += straggler.seconds
        row[2] = max(row[2], straggler.seconds)
        row[3][straggler.evidence] += 1
    ranked = sorted(rows.items(), key=lambda pair: -pair[1][1])[:LISTED]
    return [
        [
            printable.show(method),
            rank,
            printable.show(instance),
            count,
            round(total, 3),
            round(most, 3),
            ", ".join(sorted(seen)),
        ]
        for (method, rank, instance), (count, total, most, seen) in ranked
    ]


def of_blind_spots(steps: Iterable[Step]) -> list[str]:
    """Return the kinds of evidence for stragglers that no step contains."""
    blind_spots = [set(step.blind_spots) for step in steps]
    return sorted(set.intersection(*blind_spots)) if blind_spots else []


def of_unfinished(run: Explanation) -> list[list[Any]]:
    """Return the processes with open spans, and some of these."""
    return [
        [
            printable.show(unfinished.process.label),
            unfinished.dead,
            round(unfinished.silent, 1),
            [
                [printable.show(work.span.name), round(work.age, 1), printable.show(work.last_child)]
                for work in unfinished.work[:30]
            ],
            len(unfinished.work),
        ]
        for unfinished in run.completeness.unfinished[:LISTED]
    ]


def plain(value: Any, depth: int = 4) -> Any:
    """Return a bounded copy of a value in types that JSON supports."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return downsampling.finite(value)
    if isinstance(value, int) and abs(value) < EXACT:
        return value
    if depth and isinstance(value, dict):
        return {printable.show(key): plain(item, depth - 1) for key, item in list(value.items())[:40]}
    if depth and isinstance(value, (list, tuple)):
        return [plain(item, depth - 1) for item in value[:60]]
    return printable.show_lines(value)


def of_events(run: Explanation) -> list[list[Any]]:
    """Return stalls and crashes with their recorded details."""
    return [
        [
            printable.show(event.kind),
            event.time_ns // 1_000_000,
            printable.show(event.text, formatting.SENTENCE),
            plain(event.detail),
        ]
        for event in run.events[:LISTED]
    ]
