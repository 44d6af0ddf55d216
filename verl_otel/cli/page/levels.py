# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Levels of detail: what of a long run still fits into a page. Nothing here drops a sum: what is short is put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Activity, Segment, Step

SEGMENTS: Final = 300
"""Parts of one critical path."""
ACTIVITIES: Final = 120
"""Activities of one trajectory."""
ROWS: Final = 12_000
"""Steps in the overview."""
POINTS: Final = 30_000
"""Points of all scalars together."""


class Kept(NamedTuple):
    """A part of a shortened path: the segment that it is named after, its ends, and of how many parts it is."""

    segment: Segment
    start_ns: int
    end_ns: int
    parts: int


def shorten(path: Sequence[Segment], limit: int = SEGMENTS) -> list[Kept]:
    """Return a path of at most ``limit`` parts with the same ends and no gap: short neighbours become one part.

    The longest stay as they are; each run of others between them takes the name of its longest.
    """
    if len(path) <= limit:
        return [Kept(each, each.start_ns, each.end_ns, 1) for each in path]
    by_length = sorted(range(len(path)), key=lambda index: path[index].start_ns - path[index].end_ns)
    whole = set(by_length[: (limit - 1) // 2])  # between n of them lie at most n + 1 runs of others
    kept: list[Kept] = []
    run: list[Segment] = []
    for index, each in enumerate(path):
        if index in whole:
            kept += _together(run)
            kept.append(Kept(each, each.start_ns, each.end_ns, 1))
            run = []
        else:
            run.append(each)
    return kept + _together(run)


def _together(run: Sequence[Segment]) -> list[Kept]:
    if not run:
        return []
    longest = max(run, key=lambda each: each.end_ns - each.start_ns)
    return [Kept(longest, run[0].start_ns, run[-1].end_ns, len(run))]


def longest(activities: Sequence[Activity], limit: int) -> list[Activity]:
    """Return the longest activities in their order; they overlap, so none can be put together with another."""
    if len(activities) <= limit:
        return list(activities)
    chosen = sorted(range(len(activities)), key=lambda index: activities[index].start_ns - activities[index].end_ns)
    return [activities[index] for index in sorted(chosen[:limit])]


def rows(steps: Sequence[Step], limit: int = ROWS) -> list[int]:
    """Return which steps have a row of their own: all, or the slowest of each few neighbours."""
    width = max(1, math.ceil(len(steps) / limit))
    starts = range(0, len(steps), width)
    return [max(range(at, min(at + width, len(steps))), key=lambda index: steps[index].seconds) for at in starts]


def most_wanted(steps: Sequence[Step]) -> Iterable[int]:
    """Yield the steps in the order in which somebody may want to see all of them: failed, held, slow, then here and there."""
    order = sorted(
        range(len(steps)),
        key=lambda index: (
            not steps[index].path,  # without it there is little to see
            not steps[index].failed,
            -max((each.saved for each in steps[index].verdicts), default=0.0),
            -steps[index].seconds,
        ),
    )
    spread = sorted(range(len(steps)), key=lambda index: (not steps[index].path, _bits(index)))
    seen: set[int] = set()
    # two of the worst, then one of those spread evenly: a healthy step is what a slow one is compared with
    for place in range(len(steps)):
        for index in (*order[2 * place : 2 * place + 2], spread[place]):
            if index not in seen:
                seen.add(index)
                yield index


def _bits(index: int) -> int:
    """Return a key that spreads neighbours apart (van der Corput's sequence: the bits in reverse)."""
    return int(f"{index:024b}"[::-1], 2)


def thin(xs: Sequence[float], ys: Sequence[float], limit: int) -> tuple[list[float], list[list[float | None]]]:
    """Return at most ``limit`` points of a line: where each begins, and mean, minimum and maximum of what it stands for.

    A line that is short enough has only one row of values. A value that is no number is none.
    """
    if len(ys) <= limit:
        return list(xs), [[finite(each) for each in ys]]
    width = math.ceil(len(ys) / limit)
    means: list[float | None] = []
    least: list[float | None] = []
    most: list[float | None] = []
    starts = range(0, len(ys), width)
    for at in starts:
        values = [each for each in ys[at : at + width] if math.isfinite(each)]
        means.append(finite(math.fsum(values) / len(values)) if values else None)
        least.append(finite(min(values)) if values else None)
        most.append(finite(max(values)) if values else None)
    return [xs[at] for at in starts], [means, least, most]


def finite(value: float) -> float | None:
    """Return a number with five digits; none for what is no number."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short  # noqa: PLR2004 - exact as a float
