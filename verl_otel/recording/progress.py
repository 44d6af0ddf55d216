# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How long work takes as a rule, and what has just moved: noted for every span that ended, sampled or not, while it is drained.

This is what tells a stall from slow work: a span that is open for far longer than its peers took, below which nothing ends.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from itertools import islice
from typing import Final, NamedTuple

MAX_NAMES: Final = 256
"""Span names of one process that are told apart; others have no peers."""
MAX_MOVED: Final = 50_000
"""Parents of ended spans that are kept until somebody takes them."""
MAX_SERVED: Final = 128
"""Calls of other processes, served and ended, that are remembered."""
MAX_TOP: Final = 16
"""Longest durations of one name that are kept: enough to see how the tail falls off."""


class Peers(NamedTuple):
    """Durations of the spans of one name that ended: what is needed to say whether another one is extraordinary."""

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


class _Progress:
    """What this process has noted. Written by the one who drains."""

    on = False
    """Whether anybody wants to know."""
    peers: dict[str, Peers] = {}
    moved: set[int] = set()
    served: deque[Served] = deque(maxlen=MAX_SERVED)


def switch(*, on: bool) -> None:
    """Begin to note, with nothing known, or stop."""
    clear()
    _Progress.on = on


class Notes:
    """What one drain has seen, by name: noted at once, since names are few and ended spans many."""

    __slots__ = ("durations", "parents", "served")

    def __init__(self) -> None:
        self.durations: dict[str, list[float]] = {}
        self.parents: set[int] = set()
        self.served: list[Served] = []

    def add(self, name: str, seconds: float, parent_id: int, served_ns: int = 0) -> None:
        """Note that a span has ended, whether it is kept or not.

        Args:
            name: Its name.
            seconds: How long it took.
            parent_id: The span around it; 0: it is a root.
            served_ns: When it ended, in Unix nanoseconds, if it was the answer to a call from another process.
        """
        known = self.durations.get(name)
        if known is None:
            self.durations[name] = [seconds]
        else:
            known.append(seconds)
        self.parents.add(parent_id)
        if served_ns:
            self.served.append(Served(parent_id, name, served_ns))


def is_on() -> bool:
    """Return whether anybody wants to know."""
    return _Progress.on


def note_all(notes: Notes) -> None:
    """Take what one drain has seen."""
    if not _Progress.on:
        return
    _Progress.served.extend(notes.served)
    for name, durations in notes.durations.items():
        known = _Progress.peers.get(name)
        if known is not None or len(_Progress.peers) < MAX_NAMES:
            _Progress.peers[name] = _add(known or Peers(), durations)
    notes.parents.discard(0)
    _Progress.moved.update(islice(notes.parents, MAX_MOVED - len(_Progress.moved)))


def _add(known: Peers, durations: list[float]) -> Peers:
    return Peers(known.ended + len(durations), tuple(heapq.nlargest(MAX_TOP, (*known.top, *durations))))


def merge(one: Peers, other: Peers) -> Peers:
    """Return the peers of two processes together."""
    return Peers(one.ended + other.ended, tuple(sorted(one.top + other.top, reverse=True)[:MAX_TOP]))


def take_moved() -> set[int]:
    """Return the ids of spans below which something has ended since the last call."""
    moved = set(_Progress.moved)  # one step, as the next: somebody may drain meanwhile, for a scrape
    _Progress.moved.difference_update(moved)
    return moved


def read_peers() -> dict[str, Peers]:
    """Return the peers by span name."""
    return dict(_Progress.peers)


def read_served() -> tuple[Served, ...]:
    """Return the calls that were served last."""
    return tuple(_Progress.served)


def clear() -> None:
    """Forget everything: another session begins, or this is a forked child."""
    _Progress.peers.clear()
    _Progress.moved.clear()
    _Progress.served.clear()


os.register_at_fork(after_in_child=clear)
