# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Durations by span name, and spans with recent progress: counted for every span that ended, sampled or not, when it is drained.

The watchdog tells a stall from slow work by them: a stalled span is open for far longer than others of its name took, and nothing ends
below it.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from verl_otel._internal import process_state

MAX_NAMES: Final = 256
"""Span names of one process that have statistics."""
MAX_ACTIVE: Final = 50_000
"""Parents of ended spans that are held until the watchdog takes them, and that it holds."""
MAX_SERVED: Final = 128
"""Served calls of other processes that are held."""
MAX_TOP: Final = 16
"""Longest durations of one name that are held: enough to estimate the tail."""


class DurationStats(NamedTuple):
    """Durations of the ended spans of one name: enough to judge whether another one is extraordinary."""

    ended: int = 0
    top: tuple[float, ...] = ()
    """The longest ones in seconds, the longest first."""

    @property
    def longest(self) -> float:
        """Seconds."""
        return self.top[0] if self.top else 0.0


class Served(NamedTuple):
    """A call of another process that was served here."""

    parent_id: int
    name: str
    end_ns: int


class DurationLog:
    """Durations of one drain by name. They are added to the tracker at once: names are few and ended spans many."""

    __slots__ = ("durations", "parents", "served")

    def __init__(self) -> None:
        self.durations: dict[str, list[float]] = {}
        self.parents: set[int] = set()
        """Ids of parents that had not ended, as far as this process knows; 0 stands for others."""
        self.served: list[Served] = []

    def add(self, name: str, seconds: float, parent_id: int, served_ns: int = 0) -> None:
        """Add one ended span, whether it is kept or not.

        Args:
            name: Its name.
            seconds: Its duration.
            parent_id: Id of its parent; 0: it is a root.
            served_ns: Its end in Unix nanoseconds, if it served a call from another process; else 0.
        """
        durations = self.durations.get(name)
        if durations is None:
            self.durations[name] = [seconds]
        else:
            durations.append(seconds)
        if served_ns:
            self.served.append(Served(parent_id, name, served_ns))


class DurationTracker:
    """Durations of ended spans by name, and which spans have made progress. Off until the watchdog switches it on. Written by the drain."""

    __slots__ = ("_active_parents", "_served", "_stats", "on")

    def __init__(self) -> None:
        self.on = False
        self._stats: dict[str, DurationStats] = {}
        self._active_parents: set[int] = set()
        self._served: deque[Served] = deque(maxlen=MAX_SERVED)

    def switch(self, *, on: bool) -> None:
        """Begin to track, with nothing tracked yet, or stop."""
        self.clear()
        self.on = on

    def clear(self) -> None:
        """Discard everything: a session begins, or this is a forked child."""
        self._stats.clear()
        self._active_parents.clear()
        self._served.clear()

    def add(self, log: DurationLog) -> None:
        """Add the spans of one drain."""
        if not self.on:
            return
        self._served.extend(log.served)
        for name, durations in log.durations.items():
            stats = self._stats.get(name)
            if stats is not None or len(self._stats) < MAX_NAMES:
                self._stats[name] = _add(stats or DurationStats(), durations)
        log.parents.discard(0)
        self._active_parents.update(islice(log.parents, MAX_ACTIVE - len(self._active_parents)))

    def take_active(self) -> set[int]:
        """Return the ids of spans below which something has ended since the last call."""
        active = set(self._active_parents)  # atomic, as the next one: another thread may drain meanwhile, for a scrape
        self._active_parents.difference_update(active)
        return active

    def by_name(self) -> dict[str, DurationStats]:
        """Return the durations by span name."""
        return dict(self._stats)

    def served(self) -> tuple[Served, ...]:
        """Return the calls that were served last."""
        return tuple(self._served)


DURATIONS: Final = DurationTracker()
process_state.register(clear=DURATIONS.clear, after_fork=DURATIONS.clear)


def _add(stats: DurationStats, durations: list[float]) -> DurationStats:
    return DurationStats(stats.ended + len(durations), tuple(heapq.nlargest(MAX_TOP, (*stats.top, *durations))))


def merge(one: DurationStats, other: DurationStats) -> DurationStats:
    """Return the durations of two processes together."""
    return DurationStats(one.ended + other.ended, tuple(sorted(one.top + other.top, reverse=True)[:MAX_TOP]))
