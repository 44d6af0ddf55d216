# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the page lists of a run, as bounded plain data: verdicts, stragglers, events, unfinished work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from verl_otel.analysis.facts import Explanation, Step
from verl_otel.cli import first_lines, words
from verl_otel.cli.page import levels

VERDICTS: Final = 1_000
CAUSES: Final = 12
LISTED: Final = 200
EXACT: Final = 2**53
"""Above this, JavaScript's numbers are not exact; ids are written as text."""


def of_verdicts(steps: Sequence[Step]) -> dict[str, Any]:
    """Return the worst verdicts, and by how much steps would have been shorter, by cause."""
    found = [(index, each) for index, step in enumerate(steps) for each in step.verdicts]
    found.sort(key=lambda pair: (-pair[1].saved, -pair[1].step_seconds))
    causes: dict[tuple[str, str], list[float]] = {}
    for _, each in found:
        total = causes.setdefault((each.cause, each.cause_name), [0, 0.0])
        total[0] += 1
        total[1] += each.saved
    ranked = sorted(causes.items(), key=lambda pair: -pair[1][1])[:CAUSES]
    return {
        "count": len(found),
        "rows": [
            [
                index,
                words.show(first_lines.verdict_line(each), words.SENTENCE),
                round(each.saved, 4),
                round(each.seconds, 4),
                words.show(each.cause),
                words.show(each.cause_name),
            ]
            for index, each in found[:VERDICTS]
        ],
        "causes": [
            [words.show(cause), words.show(name), int(count), round(saved, 3)]
            for (cause, name), (count, saved) in ranked
        ],
    }


def of_stragglers(steps: Iterable[Step]) -> list[list[Any]]:
    """Return ranks that came late, over all steps: how often, how much in all and at most, and from what it was seen."""
    found: dict[tuple[str, int, str], list[Any]] = {}
    for each in (each for step in steps for each in step.stragglers):
        row = found.setdefault((each.method, each.rank, each.instance), [0, 0.0, 0.0, Counter()])
        row[0] += 1
        row[1] += each.seconds
        row[2] = max(row[2], each.seconds)
        row[3][each.evidence] += 1
    ranked = sorted(found.items(), key=lambda pair: -pair[1][1])[:LISTED]
    return [
        [
            words.show(method),
            rank,
            words.show(instance),
            count,
            round(total, 3),
            round(most, 3),
            ", ".join(sorted(seen)),
        ]
        for (method, rank, instance), (count, total, most, seen) in ranked
    ]


def of_blind_spots(steps: Iterable[Step]) -> list[str]:
    """Return what of the evidence for stragglers no step shows."""
    found = [set(step.blind_spots) for step in steps]
    return sorted(set.intersection(*found)) if found else []


def of_unfinished(run: Explanation) -> list[list[Any]]:
    """Return the processes that had work open, with some of that work."""
    return [
        [
            words.show(each.process.label),
            each.dead,
            round(each.silent, 1),
            [[words.show(work.span.name), round(work.age, 1), words.show(work.last_child)] for work in each.work[:30]],
            len(each.work),
        ]
        for each in getattr(run.gaps, "unfinished", ())[:LISTED]
    ]


def plain(thing: Any, depth: int = 4) -> Any:
    """Return a bounded copy of anything as what JSON knows."""
    if isinstance(thing, bool) or thing is None:
        return thing
    if isinstance(thing, float):
        return levels.finite(thing)
    if isinstance(thing, int) and abs(thing) < EXACT:
        return thing
    if depth and isinstance(thing, dict):
        return {words.show(key): plain(value, depth - 1) for key, value in list(thing.items())[:40]}
    if depth and isinstance(thing, (list, tuple)):
        return [plain(value, depth - 1) for value in thing[:60]]
    return words.shown_lines(thing)


def of_events(run: Explanation) -> list[list[Any]]:
    """Return stalls and crashes with what was written down of them."""
    return [
        [words.show(each.kind), each.time_ns // 1_000_000, words.show(each.text, words.SENTENCE), plain(each.detail)]
        for each in run.events[:LISTED]
    ]
