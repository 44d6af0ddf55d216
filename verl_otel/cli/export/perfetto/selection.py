# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Selects the spans of a run that an export holds, in bounded memory: steps always, of trajectories the slowest."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from verl_otel.analysis.model import Process
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.model import SpanRecord


class Written(NamedTuple):
    """A span and the process that wrote it."""

    process: Process
    span: SpanRecord


class Selection:
    """Collects spans by trace. Beyond the limit the fastest trajectories keep their root only; then they are removed.

    Args:
        limit: Maximum number of spans. Traces other than trajectories are kept in any case.
        begin_ns: Spans that ended before are left out.
        end_ns: Spans that began at or after this are left out.
    """

    def __init__(self, limit: int, begin_ns: int, end_ns: int) -> None:
        self.traces: dict[int, list[Written]] = {}
        self.thinned = 0
        """Number of trajectories of which only the root was kept."""
        self.removed = 0
        """Number of trajectories that were left out."""
        self._limit = limit
        self._window = begin_ns, end_ns
        self._count = 0
        self._whole: list[tuple[int, int]] = []
        """Heap of trajectories with all spans: duration, trace id."""
        self._roots: list[tuple[int, int]] = []
        """Heap of trajectories of which only the root is left."""
        self._dropped: set[int] = set()
        self._fastest = [-1, -1]
        """Durations up to which trajectories are thinned, and left out: those of earlier ones that were."""

    def add_all(self, spans: Iterable[tuple[Process, SpanRecord]]) -> None:
        """Add spans in the order in which they were written."""
        begin, end = self._window
        for process, span in spans:
            if span.end_ns >= begin and span.start_ns < end:
                self._add(Written(process, span))

    def _add(self, written: Written) -> None:
        span = written.span
        is_root = span.name == TRAJECTORY and not span.parent_id
        if span.trace_id in self._dropped and not is_root:
            return
        self.traces.setdefault(span.trace_id, []).append(written)
        self._count += 1
        if is_root:
            heapq.heappush(self._whole, (span.end_ns - span.start_ns, span.trace_id))
        self._shrink()

    def _shrink(self) -> None:
        """Leave out spans of the fastest trajectories until the rest fits; one as fast as these is never kept instead."""
        while self._whole and (self._count > self._limit or self._whole[0][0] <= self._fastest[0]):
            self._thin(*heapq.heappop(self._whole))
        while self._roots and (self._count > self._limit or self._roots[0][0] <= self._fastest[1]):
            self._remove(*heapq.heappop(self._roots))

    def _thin(self, duration: int, trace_id: int) -> None:
        members = self.traces[trace_id]
        roots = self.traces[trace_id] = [one for one in members if not one.span.parent_id]
        self._count -= len(members) - len(roots)
        self._fastest[0] = max(self._fastest[0], duration)
        self._dropped.add(trace_id)
        self.thinned += 1
        heapq.heappush(self._roots, (duration, trace_id))

    def _remove(self, duration: int, trace_id: int) -> None:
        self._count -= len(self.traces.pop(trace_id))
        self._fastest[1] = max(self._fastest[1], duration)
        self.thinned -= 1
        self.removed += 1
