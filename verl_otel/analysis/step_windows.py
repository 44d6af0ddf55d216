# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Divides the time of a run into adjacent windows, from the start of each step to the start of the next one.

A run that was resumed has a gap before each attempt but the first: what lies between two attempts belongs to no window. A window is closed when no more spans can overlap it: what was open in it ends before the longest span of the run would.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Generic, NamedTuple, TypeVar

from verl_otel.analysis.model import Step, Trajectory
from verl_otel.analysis.traces.tree import Node, walk

MAX_HELD: Final = 50_000
"""Maximum number of trajectories kept for open windows; above it the oldest window is closed early."""

MAX_SECONDS: Final = 1e11
"""Unix time that no run reaches; what is above it is damaged."""

Item = TypeVar("Item")


class Restart(NamedTuple):
    """The start of an attempt that is not the first."""

    ended_ns: int
    """End of the attempt before; 0: unknown, it was killed."""
    started_ns: int


def find_restarts(manifest: Mapping[str, Any]) -> tuple[Restart, ...]:
    """Return the restarts that the manifest of a run lists, in the order of time."""
    attempts = manifest.get("attempts")
    listed = [each for each in attempts if isinstance(each, dict)] if isinstance(attempts, list) else []
    restarts = [
        Restart(_to_ns(before.get("ended")), _to_ns(after.get("started"))) for before, after in pairwise(listed)
    ]
    return tuple(sorted((each for each in restarts if each.started_ns), key=lambda each: each.started_ns))


def _to_ns(value: object) -> int:
    return round(value * 1e9) if isinstance(value, (int, float)) and 0 < value < MAX_SECONDS else 0


class Draft(NamedTuple):
    """A step without the data that depends on its whole window (GPU time, cost)."""

    step: Step
    members: tuple[Trajectory, ...]


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


class _IntervalQueue(Generic[Item]):
    """A queue of intervals, queried by windows in the order of time."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._coming: list[tuple[int, int, int, Item]] = []
        """A heap by start: start, sequence number, end, item."""
        self._present: list[tuple[int, Item]] = []
        self._added = 0

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


class Windows:
    """Collects steps, traces and trajectories, and returns complete windows.

    Args:
        restarts: The restarts of the run, in the order of time.
    """

    def __init__(self, restarts: Iterable[Restart] = ()) -> None:
        self._restarts = deque(restarts)
        self._restarted_ns = 0
        """Start of the attempt whose first window has not begun; 0: it has."""
        self.begin_ns: int | None = None
        """Start of the next window; None: there are no spans yet."""
        self._drafts: deque[Draft] = deque()
        self._is_before = True
        """True until the window of the first step starts."""
        self._roots: _IntervalQueue[Node] = _IntervalQueue()
        self._trajectories: _IntervalQueue[Trajectory] = _IntervalQueue()

    def note_time(self, time_ns: int) -> None:
        """Extend the start of the run to a time. After the first window is closed the start is fixed."""
        if self.begin_ns is None or (self._is_before and self._restarted_ns <= time_ns < self.begin_ns):
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
        while self._restarts and self._restarts[0].started_ns < before_ns:
            restart = self._restarts.popleft()
            begin, started_ns = self.begin_ns or 0, min(restart.started_ns, latest_ns)
            if started_ns <= begin:  # no file of the attempt before is here
                continue
            known = [each.find_last_end(started_ns) for each in (self._roots, self._trajectories)]
            last = max(begin, *known, 0 if self._is_before else self._drafts[0].step.end_ns)
            yield self._cut(
                restart.ended_ns if last <= restart.ended_ns <= started_ns else min(last, started_ns)
            )._replace(is_last=True)
            self._is_before, self.begin_ns, self._restarted_ns = True, started_ns, started_ns

    def _cut(self, end_ns: int) -> Window:
        begin = self.begin_ns or 0
        end = max(begin, end_ns)
        draft = None if self._is_before else self._drafts.popleft()
        restarted, self._restarted_ns = bool(self._restarted_ns), 0
        self._is_before, self.begin_ns = False, end
        roots, trajectories = self._roots.touching(begin, end), self._trajectories.touching(begin, end)
        return Window(begin, end, draft, roots, trajectories, restarted=restarted)
