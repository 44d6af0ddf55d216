# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run's time in windows that lie side by side: from the start of each step to the start of the next one.

A window is closed when nothing that touches it can come any more: what was open in it ends before the longest thing of the run would.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from verl_otel.analysis.facts import Step, Trajectory
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.traces import Node, walk

MAX_HELD: Final = 50_000
"""Trajectories that are kept for windows that are not closed yet; with more the oldest window is closed early."""

Thing = TypeVar("Thing")


class Draft(NamedTuple):
    """A step that lacks what only the whole of its window can tell."""

    step: Step
    members: tuple[Trajectory, ...]


class Window(NamedTuple):
    """A part of the run's time, and what touches it."""

    begin_ns: int
    end_ns: int
    draft: Draft | None
    """The step that begins with it; None before the first one."""
    roots: tuple[Node, ...]
    """Of traces that are no trajectories."""
    trajectories: tuple[Packed, ...]


class _Held(Generic[Thing]):
    """Things with a beginning and an end, of which those are asked for that touch one window after the other."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._coming: list[tuple[int, int, int, Thing]] = []
        """A heap by their beginnings: begin, number, end, what it is."""
        self._present: list[tuple[int, Thing]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._coming) + len(self._present)

    def add(self, start_ns: int, end_ns: int, thing: Thing) -> None:
        self._added += 1
        heapq.heappush(self._coming, (start_ns, self._added, end_ns, thing))
        self.longest_ns = max(self.longest_ns, end_ns - start_ns)

    def touching(self, begin_ns: int, end_ns: int) -> tuple[Thing, ...]:
        """Return what touches a window, and let go what ends in it; windows come in the order of time."""
        while self._coming and self._coming[0][0] < end_ns:
            _, _, end, thing = heapq.heappop(self._coming)
            self._present.append((end, thing))
        found = tuple(thing for end, thing in self._present if end > begin_ns)
        self._present = [each for each in self._present if each[0] > end_ns]
        return found


class Windows:
    """Gathers what happened and returns windows that are complete."""

    def __init__(self) -> None:
        self.begin_ns: int | None = None
        """Where the next window begins; None: nothing was seen yet."""
        self._drafts: deque[Draft] = deque()
        self._is_before = True
        """No step's window has begun."""
        self._roots: _Held[Node] = _Held()
        self._trajectories: _Held[Packed] = _Held()

    def saw(self, time_ns: int) -> None:
        """Note that the run was there at a time. Once the first window is closed the beginning stays."""
        if self.begin_ns is None or (self._is_before and time_ns < self.begin_ns):
            self.begin_ns = time_ns

    def add_root(self, node: Node) -> None:
        """Take a trace that is no trajectory."""
        self._roots.add(node.span.start_ns, max(each.span.end_ns for each in walk(node)), node)

    def add_trajectory(self, trajectory: Packed) -> None:
        """Take a trajectory."""
        self._trajectories.add(trajectory.start_ns, trajectory.end_ns, trajectory)

    def add_step(self, draft: Draft) -> None:
        """Take a step; steps come in the order of their ends."""
        self._drafts.append(draft)

    def close(self, watermark_ns: int) -> Iterator[Window]:
        """Return the windows to which nothing can be added when everything up to ``watermark_ns`` is known."""
        while self._drafts:
            waits = self._is_before or len(self._drafts) > 1
            if not waits:
                return
            end = self._drafts[0 if self._is_before else 1].step.start_ns
            longest = max(self._roots.longest_ns, self._trajectories.longest_ns)
            if end + longest > watermark_ns and len(self._trajectories) <= MAX_HELD:
                return
            yield self._cut(end)

    def close_all(self, end_ns: int) -> Iterator[Window]:
        """Return the rest, up to the end of the run."""
        yield from self.close(1 << 65)
        if self.begin_ns is not None:
            yield self._cut(end_ns)

    def _cut(self, end_ns: int) -> Window:
        begin = self.begin_ns or 0
        end = max(begin, end_ns)
        draft = None if self._is_before else self._drafts.popleft()
        self._is_before, self.begin_ns = False, end
        return Window(begin, end, draft, self._roots.touching(begin, end), self._trajectories.touching(begin, end))
