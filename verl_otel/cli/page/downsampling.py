# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reduces a long run to what fits into a page. Sums are preserved: short parts are merged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.model import Activity, Segment, Step

SEGMENTS: Final = 300
"""Maximum parts of one critical path."""
ACTIVITIES: Final = 120
"""Maximum activities of one trajectory."""
ROWS: Final = 12_000
"""Maximum steps in the overview."""
POINTS: Final = 30_000
"""Maximum points of all scalars together."""


class PathPart(NamedTuple):
    """A part of a shortened path: its longest segment, its start and end, and the number of merged segments."""

    segment: Segment
    start_ns: int
    end_ns: int
    parts: int


def shorten(path: Sequence[Segment], limit: int = SEGMENTS) -> list[PathPart]:
    """Return a path of at most ``limit`` parts with the same ends and no gap: short neighbours become one part.

    The longest segments stay unchanged; adjacent others are merged under the name of the longest of them.
    """
    if len(path) <= limit:
        return [PathPart(segment, segment.start_ns, segment.end_ns, 1) for segment in path]
    by_length = sorted(range(len(path)), key=lambda index: path[index].start_ns - path[index].end_ns)
    whole = set(by_length[: (limit - 1) // 2])  # between n of them are at most n + 1 groups of others
    kept: list[PathPart] = []
    neighbours: list[Segment] = []
    for index, segment in enumerate(path):
        if index in whole:
            kept += _together(neighbours)
            kept.append(PathPart(segment, segment.start_ns, segment.end_ns, 1))
            neighbours = []
        else:
            neighbours.append(segment)
    return kept + _together(neighbours)


def _together(neighbours: Sequence[Segment]) -> list[PathPart]:
    if not neighbours:
        return []
    longest = max(neighbours, key=lambda segment: segment.end_ns - segment.start_ns)
    return [PathPart(longest, neighbours[0].start_ns, neighbours[-1].end_ns, len(neighbours))]


def longest(activities: Sequence[Activity], limit: int) -> list[Activity]:
    """Return the longest activities in their order; they overlap, so they cannot be merged."""
    if len(activities) <= limit:
        return list(activities)
    chosen = sorted(range(len(activities)), key=lambda index: activities[index].start_ns - activities[index].end_ns)
    return [activities[index] for index in sorted(chosen[:limit])]


def rows(steps: Sequence[Step], limit: int = ROWS) -> list[int]:
    """Return the indexes of the steps with their own row: all, or the slowest of adjacent ones."""
    width = max(1, math.ceil(len(steps) / limit))
    starts = range(0, len(steps), width)
    return [max(range(at, min(at + width, len(steps))), key=lambda index: steps[index].seconds) for at in starts]


def most_wanted(steps: Sequence[Step]) -> Iterable[int]:
    """Yield the steps in the order of relevance: failed, delayed and slow ones, interleaved with evenly spread ones."""
    order = sorted(
        range(len(steps)),
        key=lambda index: (
            not steps[index].path,  # without a path there is little detail
            not steps[index].failed,
            -max((verdict.saved for verdict in steps[index].verdicts), default=0.0),
            -steps[index].seconds,
        ),
    )
    spread = sorted(range(len(steps)), key=lambda index: (not steps[index].path, _bits(index)))
    seen: set[int] = set()
    # two of the worst, then one evenly spread step: slow steps are compared with healthy ones
    for place in range(len(steps)):
        for index in (*order[2 * place : 2 * place + 2], spread[place]):
            if index not in seen:
                seen.add(index)
                yield index


def _bits(index: int) -> int:
    """Return a key that separates neighbours (van der Corput sequence: the bits in reverse)."""
    return int(f"{index:024b}"[::-1], 2)


def thin(xs: Sequence[float], ys: Sequence[float], limit: int) -> tuple[list[float], list[list[float | None]]]:
    """Return at most ``limit`` points of a series: the start of each, and mean, minimum and maximum of the merged values.

    A short series has only one row of values. Non-finite values are None.
    """
    if len(ys) <= limit:
        return list(xs), [[finite(value) for value in ys]]
    width = math.ceil(len(ys) / limit)
    means: list[float | None] = []
    least: list[float | None] = []
    most: list[float | None] = []
    starts = range(0, len(ys), width)
    for at in starts:
        values = [value for value in ys[at : at + width] if math.isfinite(value)]
        means.append(finite(math.fsum(values) / len(values)) if values else None)
        least.append(finite(min(values)) if values else None)
        most.append(finite(max(values)) if values else None)
    return [xs[at] for at in starts], [means, least, most]


def finite(value: float) -> float | None:
    """Return a number with five significant digits; None for a non-finite one."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short  # noqa: PLR2004 - exact as a float
