# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Replays a schedule: a discrete event simulation of the trainer, the trajectories and the slots that they wait for.

An unchanged schedule replays to the recorded times, to the nanosecond. Slots are granted in the order of arrival, so the anomalies of
list scheduling apply (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969): a faster piece of work can change who comes first,
and then make the whole a little slower.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Final, NamedTuple

# -- The data model of a replay: what the trainer does in order, what each trajectory does in order, and the limits that they share --
#
# Times are nanoseconds. Where a time is absolute, it is that of the recording.

NO_POOL: Final = -1
"""A piece of work that needs no slot."""
UNANCHORED: Final = -1
"""A trajectory that was submitted before the schedule begins, or by nothing that is in it."""


class Pool(NamedTuple):
    """A limit: who comes when all its slots are taken waits, in the order of arrival."""

    kind: str
    """``loop`` (an event loop that tools block), ``server`` (slots of an LLM server) or ``reward`` (threads of a reward worker)."""
    instance: str
    """Process: ``<role>-<number>``."""
    slots: int


class Item(NamedTuple):
    """A piece of a trajectory: first ``lead_ns`` without a slot, then ``hold_ns`` in a slot of its pool, then ``rest_ns`` without."""

    kind: str
    """Kind of segment (`kinds.WORK`)."""
    name: str
    instance: str
    lead_ns: int
    pool: int = NO_POOL
    hold_ns: int = 0
    rest_ns: int = 0

    @property
    def length_ns(self) -> int:
        """How long it takes if it does not wait for a slot."""
        return self.lead_ns + self.hold_ns + self.rest_ns


class Rollout(NamedTuple):
    """A trajectory."""

    trace_id: int
    step: int
    """Index of the step that trained on it."""
    anchor: int
    """Index of the trainer's part at whose start it was submitted, or `UNANCHORED`."""
    offset_ns: int
    """From the start of that part to the start of its first item; absolute where it has no anchor."""
    items: tuple[Item, ...]
    instance: str = ""
    """Its agent loop."""


class Part(NamedTuple):
    """A piece of the trainer's time: work of a fixed length, or waiting for trajectories."""

    kind: str
    name: str
    phase: str
    """Phase of the step; ``between`` after the step."""
    length_ns: int
    """Length of the work; of a wait, 0."""
    step: int
    """Index of its step."""
    awaited: tuple[int, ...] | None = None
    """Indices of the trajectories that it waits for; None: it waits for none."""
    overlapped: bool = False
    """The trainer only starts it, and waits until an earlier one of the same phase has ended."""


class Schedule(NamedTuple):
    """Consecutive steps of a run."""

    begin_ns: int
    """Start of the first step."""
    numbers: tuple[int | None, ...]
    """Number of each step."""
    parts: tuple[Part, ...]
    rollouts: tuple[Rollout, ...]
    pools: tuple[Pool, ...]


_TRAINER: Final = 0
_FREE: Final = 1
"""At one time the trainer moves before slots become free, and these before anything else."""
OTHER: Final = 2
_PART, _BEGIN, _REQUEST, _RELEASE, _END, GIVE_UP = range(6)
"""What happens: a part of the trainer begins; an item begins, asks for a slot, returns it, ends, stops waiting for a slot."""


class Timeline(NamedTuple):
    """When everything happened in a replay."""

    starts_ns: tuple[int, ...]
    """Start of each part of the trainer, and the end of the last one."""
    begins_ns: tuple[int, ...]
    """Start of each trajectory."""
    ends_ns: tuple[int, ...]
    """End of each trajectory."""

    def find_periods(self, schedule: Schedule) -> list[int]:
        """Return the length of each step from its start to the start of the next one."""
        edges = [self.starts_ns[-1]] * (len(schedule.numbers) + 1)
        for part, start in zip(reversed(schedule.parts), reversed(self.starts_ns[:-1]), strict=True):
            edges[part.step] = start
        for index in range(len(edges) - 2, -1, -1):  # a step without a part has no length
            edges[index] = min(edges[index], edges[index + 1])
        return [end - start for start, end in itertools.pairwise(edges)]

    def find_waits(self, schedule: Schedule) -> list[int]:
        """Return how long each step waited for trajectories."""
        waits = [0] * len(schedule.numbers)
        for index, part in enumerate(schedule.parts):
            if part.awaited is not None:
                waits[part.step] += self.starts_ns[index + 1] - self.starts_ns[index]
        return waits


class _Slots:
    """The slots of one pool, and who waits for them."""

    def __init__(self, pool: Pool) -> None:
        self.free = pool.slots
        self.queue: deque[tuple[int, int]] = deque()


class Rollouts:
    """The trajectories of a replay. Events on a heap determine what they do at each time.

    Args:
        items: The pieces of each trajectory.
        pools: The limits that they share.
    """

    def __init__(self, items: list[tuple[Item, ...]], pools: tuple[Pool, ...]) -> None:
        self._items = items
        self._slots = [_Slots(pool) for pool in pools]
        self._events: list[tuple[int, int, int, int, int]] = []
        self.begins = [0] * len(items)
        """Start of each trajectory."""
        self.ends: list[int | None] = [None] * len(items)
        """End of each trajectory; None: it has not ended."""

    def begin(self, rollout: int, time_ns: int) -> None:
        """Let a trajectory begin at a time."""
        self.begins[rollout] = time_ns
        self._push(time_ns, OTHER, rollout, 0, _BEGIN)

    def run(self) -> None:
        """Handle all events."""
        while self._events:
            time_ns, _, rollout, index, what = heapq.heappop(self._events)
            self._handle(time_ns, rollout, index, what)

    def _push(self, time_ns: int, order: int, rollout: int, index: int, what: int) -> None:
        heapq.heappush(self._events, (time_ns, order, rollout, index, what))

    def _handle(self, time_ns: int, rollout: int, index: int, what: int) -> None:
        if what == _REQUEST:
            self._request(time_ns, rollout, index)
        elif what == _RELEASE:
            self._release(time_ns, rollout, index)
        elif what == _END:
            self._advance(time_ns, rollout, index + 1)
        elif what == _BEGIN:
            self._advance(time_ns, rollout, 0)

    def _advance(self, time_ns: int, rollout: int, index: int) -> None:
        """Begin an item, or end the trajectory after its last one."""
        items = self._items[rollout]
        if index == len(items):
            self.ends[rollout] = time_ns
            self._ended(time_ns, rollout)
            return
        item = items[index]
        what = _END if item.pool == NO_POOL else _REQUEST
        self._push(time_ns + item.lead_ns, OTHER, rollout, index, what)

    def _ended(self, time_ns: int, rollout: int) -> None:
        """A trajectory has ended."""

    def _request(self, time_ns: int, rollout: int, index: int) -> None:
        slots = self._slots[self._items[rollout][index].pool]
        if slots.free:
            slots.free -= 1
            self._grant(time_ns, rollout, index)
        else:
            slots.queue.append((rollout, index))

    def _grant(self, time_ns: int, rollout: int, index: int) -> None:
        self._push(time_ns + self._items[rollout][index].hold_ns, _FREE, rollout, index, _RELEASE)

    def _release(self, time_ns: int, rollout: int, index: int) -> None:
        item = self._items[rollout][index]
        slots = self._slots[item.pool]
        if slots.queue:
            self._grant(time_ns, *slots.queue.popleft())
        else:
            slots.free += 1
        self._push(time_ns + item.rest_ns, OTHER, rollout, index, _END)


class _Replay(Rollouts):
    """The trainer, and the trajectories that it submits and waits for."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__([rollout.items for rollout in schedule.rollouts], schedule.pools)
        self._schedule = schedule
        self._anchored: dict[int, list[tuple[int, int]]] = {}
        for index, rollout in enumerate(schedule.rollouts):
            if rollout.anchor == UNANCHORED:
                self.begin(index, rollout.offset_ns)
            else:
                self._anchored.setdefault(rollout.anchor, []).append((index, rollout.offset_ns))
        self._part = -1
        self._missing: set[int] = set()
        self._background: dict[str, tuple[int, int]] = {}
        """By phase, the step of the newest work in the background and its end."""
        self.starts: list[int] = []
        self._push(schedule.begin_ns, _TRAINER, 0, 0, _PART)

    def _handle(self, time_ns: int, rollout: int, index: int, what: int) -> None:
        if what == _PART:
            self._begin_part(time_ns)
        else:
            super()._handle(time_ns, rollout, index, what)

    def _begin_part(self, time_ns: int) -> None:
        self._part += 1
        self.starts.append(time_ns)
        if self._part == len(self._schedule.parts):
            return
        for rollout, offset in self._anchored.get(self._part, ()):
            self.begin(rollout, time_ns + offset)
        part = self._schedule.parts[self._part]
        if part.awaited is not None:
            self._missing = {rollout for rollout in part.awaited if self.ends[rollout] is None}
            if self._missing:
                return
        end = time_ns + part.length_ns
        if part.overlapped:
            end = self._start_in_background(time_ns, part)
        self._push(end, _TRAINER, 0, 0, _PART)

    def _start_in_background(self, time_ns: int, part: Part) -> int:
        """Start work that the trainer does not wait for; return when it goes on: once that of an earlier step has ended."""
        step, until = self._background.get(part.phase, (part.step, time_ns))
        begin = time_ns if step == part.step else max(time_ns, until)
        self._background[part.phase] = (part.step, max(begin, until) + part.length_ns)
        return begin

    def _ended(self, time_ns: int, rollout: int) -> None:
        if rollout in self._missing:
            self._missing.discard(rollout)
            if not self._missing:
                self._push(time_ns + self._schedule.parts[self._part].length_ns, _TRAINER, 0, 0, _PART)


def replay(schedule: Schedule) -> Timeline:
    """Replay a schedule.

    Raises:
        ValueError: A part waits for a trajectory that is submitted after it, so that it never ends.
    """
    run = _Replay(schedule)
    run.run()
    if len(run.starts) <= len(schedule.parts):
        raise ValueError("the schedule waits for a trajectory that never begins")
    return Timeline(tuple(run.starts), tuple(run.begins), tuple(end or 0 for end in run.ends))
