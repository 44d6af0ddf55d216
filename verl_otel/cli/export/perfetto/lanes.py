# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Places spans on tracks. The slices of one Perfetto track must nest; spans of concurrent work do not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from verl_otel.model import SpanRecord

Row = list[SpanRecord]


def split_rows(spans: Iterable[SpanRecord]) -> list[Row]:
    """Divide the spans of one trace in one process into rows within which they nest.

    Two spans of a row are disjoint, or one contains the other. Each span is placed in the first row that has room, so that sequential
    work stays below its parent.

    Returns:
        Rows in the order of their first span; each sorted by start, outer spans first.
    """
    rows: list[Row] = []
    stacks: list[list[SpanRecord]] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns, bool(span.parent_id), span.span_id)):
        for row, stack in zip(rows, stacks, strict=True):
            while stack and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            if not stack or stack[-1].end_ns >= span.end_ns:
                row.append(span)
                stack.append(span)
                break
        else:
            rows.append([span])
            stacks.append([span])
    return rows


def walk(row: Row) -> Iterator[tuple[SpanRecord, bool]]:
    """Return the begins (True) and ends (False) of the spans of a row in the order in which Perfetto must read them."""
    stack: list[SpanRecord] = []
    for span in row:
        while stack and stack[-1].end_ns <= span.start_ns:
            yield stack.pop(), False
        stack.append(span)
        yield span, True
    while stack:
        yield stack.pop(), False


class Lanes:
    """Numbers of lanes such that the intervals of one lane are disjoint (first fit)."""

    def __init__(self) -> None:
        self._lanes: list[list[tuple[int, int]]] = []

    def place(self, begin_ns: int, end_ns: int) -> int:
        """Return the first lane with room for an interval, and occupy it. Intervals of one lane do not touch."""
        for number, intervals in enumerate(self._lanes):
            place = bisect_left(intervals, (begin_ns, end_ns))
            after_previous = place == 0 or intervals[place - 1][1] < begin_ns
            if after_previous and (place == len(intervals) or end_ns < intervals[place][0]):
                intervals.insert(place, (begin_ns, end_ns))
                return number
        self._lanes.append([(begin_ns, end_ns)])
        return len(self._lanes) - 1
