# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Divides the time of a run into adjacent windows, from the start of each step to the start of the next one.

A run that was resumed has a gap before each attempt but the first: what lies between the last record of an attempt and the start of the next one
belongs to no window. A window is closed when no more spans can overlap it: what was open in it ends before the longest span of the run would.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from verl_otel.analysis.io.run_files import list_attempts
from verl_otel.analysis.model import Trajectory
from verl_otel.analysis.steps import Draft, join
from verl_otel.analysis.traces.tree import Node, walk

MAX_HELD: Final = 50_000
"""Maximum number of trajectories kept for open windows; above it the oldest window is closed early."""

MAX_SILENCE_NS: Final = 3_600_000_000_000
"""Longest time from the start of a run to its first record. Of a run that has none for longer, the oldest files were removed to limit their size."""

MAX_SECONDS: Final = 1e11
"""Unix time that no run reaches; what is above it is damaged."""

NEVER: Final = (1 << 63) - 1

Item = TypeVar("Item")


def find_restarts(manifest: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the start of each attempt but the first that the manifest of a run lists, in the order of time."""
    return tuple(sorted(filter(None, (_to_ns(attempt.get("started")) for attempt in list_attempts(manifest)[1:]))))


def find_start(manifest: Mapping[str, Any]) -> int:
    """Return when the first attempt started, by the manifest; 0: unknown."""
    attempts = list_attempts(manifest)
    return _to_ns(attempts[0].get("started")) if attempts else 0


def _to_ns(value: object) -> int:
    return round(value * 1e9) if isinstance(value, (int, float)) and 0 < value < MAX_SECONDS else 0


class Window(NamedTuple):
    """An interval of the run, and everything that overlaps it."""

    begin_ns: int
    end_ns: int
    draft: Draft | None
    """The step that starts with it; None before the first step."""
    roots: tuple[Node, ...]
    """Roots of traces that are no trajectories."""
    trajectories: tuple[Trajectory, ...]
    is_last: bool = False
    """Whether it ends with the run, or with an attempt."""
    restarted: bool = False
    """Whether it begins with an attempt that is not the first."""
    next_attempt_ns: int = NEVER
    """Start of the next attempt; `NEVER`: there is none."""


class _IntervalQueue(msgspec.Struct, Generic[Item]):
    """A queue of intervals, queried by windows in the order of time."""

    longest_ns: int = 0
    _coming: list[tuple[int, int, int, Item]] = []
    """A heap by start: start, sequence number, end, item."""
    _present: list[tuple[int, Item]] = []
    _added: int = 0

    def __len__(self) -> int:
        return len(self._coming) + len(self._present)

    def add(self, start_ns: int, end_ns: int, item: Item) -> None:
        self._added += 1
        heapq.heappush(self._coming, (start_ns, self._added, end_ns, item))
        self.longest_ns = max(self.longest_ns, end_ns - start_ns)

    def find_last_end(self, before_ns: int) -> int:
        """Return the last end of an item up to a time; 0 if none has ended."""
        ends = [end for end, _ in self._present] + [end for start, _, end, _ in self._coming if start < before_ns]
        return max((end for end in ends if end <= before_ns), default=0)

    def touching(self, begin_ns: int, end_ns: int) -> tuple[Item, ...]:
        """Return the items that overlap a window and discard those that end in it; windows come in the order of time."""
        while self._coming and self._coming[0][0] < end_ns:
            _, _, end, item = heapq.heappop(self._coming)
            self._present.append((end, item))
        touching = tuple(item for end, item in self._present if end > begin_ns)
        self._present = [present for present in self._present if present[0] > end_ns]
        return touching


class Windows(msgspec.Struct):
    """Collects steps, traces and trajectories, and returns complete windows."""

    _restarts: list[int] = []
    """The start of each attempt but the first, in the order of time."""
    _started_ns: int = 0
    """The start of the first one, before its first record; 0: unknown."""
    _restarted_ns: int = 0
    """Start of the attempt whose first window has not begun; 0: it has."""
    begin_ns: int | None = None
    """Start of the next window; None: there are no spans yet."""
    _drafts: list[Draft] = []
    _is_before: bool = True
    """True until the window of the first step starts."""
    _roots: _IntervalQueue[Node] = msgspec.field(default_factory=_IntervalQueue)
    _trajectories: _IntervalQueue[Trajectory] = msgspec.field(default_factory=_IntervalQueue)

    def note_time(self, time_ns: int) -> None:
        """Extend the start of the run to a time. After the first window is closed the start is fixed."""
        if self.begin_ns is None:
            is_near = 0 < time_ns - self._started_ns <= MAX_SILENCE_NS
            self.begin_ns = self._started_ns if self._started_ns and is_near else time_ns
        elif self._is_before and self._restarted_ns <= time_ns < self.begin_ns:
            self.begin_ns = time_ns

    def add_root(self, node: Node) -> None:
        """Add the root of a trace that is no trajectory."""
        self._roots.add(node.span.start_ns, max(descendant.span.end_ns for descendant in walk(node)), node)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Add a trajectory."""
        self._trajectories.add(trajectory.start_ns, trajectory.end_ns, trajectory)

    def add_step(self, draft: Draft) -> None:
        """Add a step; steps come in the order of their ends."""
        self._drafts.append(draft)

    def merge_step(self, draft: Draft) -> None:
        """Merge what another rank of a distributed loop has recorded of a step, unless its window is closed."""
        for index, known in enumerate(self._drafts):
            if (known.step.attempt, known.step.number) == (draft.step.attempt, draft.step.number):
                self._drafts[index] = join(known, draft)
                return

    def drafts(self) -> tuple[Draft, ...]:
        """Return the steps whose windows are not complete."""
        return tuple(self._drafts)

    def close(self, watermark_ns: int) -> Iterator[Window]:
        """Return the windows that are complete when all spans up to ``watermark_ns`` are known."""
        while self._drafts:
            waits = self._is_before or len(self._drafts) > 1
            if not waits:
                return
            step = self._drafts[0 if self._is_before else 1].step
            end = step.start_ns
            longest = max(self._roots.longest_ns, self._trajectories.longest_ns)
            if end + longest > watermark_ns and len(self._trajectories) <= MAX_HELD:
                return
            yield from self._end_attempts(step.end_ns, end)
            yield self._cut(end)

    def close_all(self, end_ns: int) -> Iterator[Window]:
        """Return the remaining windows, up to the end of the run."""
        yield from self.close(1 << 65)
        if self.begin_ns is not None:
            yield from self._end_attempts(end_ns, end_ns)
            yield self._cut(end_ns)._replace(is_last=True)

    def _end_attempts(self, before_ns: int, latest_ns: int) -> Iterator[Window]:
        """Return the last window of each attempt that a restart follows.

        Args:
            before_ns: Restarts before this time are considered: the end of a step, since a manifest may be written after its first step has begun.
            latest_ns: The restart was not after this time.
        """
        while self._restarts and self._restarts[0] < before_ns:
            restart = self._restarts.pop(0)
            begin, started_ns = self.begin_ns or 0, min(restart, latest_ns)
            if started_ns <= begin:  # no file of the attempt before is here
                continue
            known = [each.find_last_end(started_ns) for each in (self._roots, self._trajectories)]
            last = max(begin, *known, 0 if self._is_before else self._drafts[0].step.end_ns)
            yield self._cut(min(last, started_ns))._replace(is_last=True, next_attempt_ns=restart)
            self._is_before, self.begin_ns, self._restarted_ns = True, started_ns, started_ns

    def _cut(self, end_ns: int) -> Window:
        begin = self.begin_ns or 0
        end = max(begin, end_ns)
        draft = None if self._is_before else self._drafts.pop(0)
        restarted, self._restarted_ns = bool(self._restarted_ns), 0
        self._is_before, self.begin_ns = False, end
        roots, trajectories = self._roots.touching(begin, end), self._trajectories.touching(begin, end)
        following = self._restarts[0] if self._restarts else NEVER
        return Window(begin, end, draft, roots, trajectories, restarted=restarted, next_attempt_ns=following)
