# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What recording remembers between two drains: spans that are open or ended, and whether it is on at all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

T = TypeVar("T")

_STOP = attrgetter("stop")
SPAN_BYTES: Final = 1024
"""What one ended span with a dozen attributes takes until it is drained; turns the memory limit into a number of spans."""
OPEN: Final = 4
"""Open spans, as a multiple of the capacity, that take no room from those that end: an open span of which nothing was said is a
quarter of what is reckoned for an ended one, and whoever opened it holds it anyway."""
RESERVE: Final = 2
"""The part of the capacity, one half, that is for roots alone once there is no room: a trace without its root is hard to read."""
FORGOTTEN_AFTER: Final = 7200.0
"""Seconds after which a span that is open still, and no root, may be taken for one that never ends."""
_PATIENCE: Final = 10
"""Where little room was found it is looked for again after this multiple of the time that looking took."""
_WORTH_IT: Final = 8
"""Room is little if it is less than this part of the capacity, an eighth."""


class _Store:
    """The state of recording in this process. Written by every thread with single atomic operations, without a lock.

    An object and not a class: CPython 3.11 reads the slots of an object several times faster than the attributes of a class.
    """

    __slots__ = (
        "_capacity",
        "begun",
        "capture_content",
        "dropped",
        "dropped_points",
        "look_from",
        "misplaced",
        "on",
        "room",
    )

    def __init__(self) -> None:
        self.on = False
        """Whether anything is recorded."""
        self.capture_content = False
        """Whether exception messages, prompts and answers may be kept."""
        self.begun: list[Span] = []
        """Spans in the order in which they began, open and ended ones, until a drain takes those that have ended."""
        self.capacity = 64 * 1024 * 1024 // SPAN_BYTES
        self.look_from = 0.0
        """Monotonic seconds from which room may be looked for."""
        self.dropped: dict[int, int] = {}
        """Dropped spans by thread."""
        self.dropped_points = 0
        """Ready points that found no room to wait; added on the thread that logs."""
        self.misplaced = 0
        """Spans that ended where they were not current, for example in an async generator closed by another task."""

    @property
    def capacity(self) -> int:
        """Ended spans that may be in that list; more are measured, dropped and counted."""
        return self._capacity

    @capacity.setter
    def capacity(self, spans: int) -> None:
        self._capacity = spans
        self.room = spans
        """Spans that may be in that list: the capacity, and those that were open when somebody looked."""

    @property
    def opened(self) -> list[Span]:
        """The spans that have begun and not ended, in the order in which they began."""
        return [span for span in self.begun[:] if span.start and not span.stop]

    def __reduce__(self) -> str:
        return "Store"  # whoever holds it finds that of the process it arrives in


Store: Final = _Store()


class DrainLock:
    """The lock of the one who takes ended spans. Replaced as a whole in a forked child: its holder does not exist there."""

    held = threading.Lock()


def keep(span: Span) -> None:
    """Put a span that was not opened as others are where the next drain finds it, or drop and count it."""
    if find_room(root=span.site.spec.root):
        Store.begun.append(span)
    else:
        count_dropped()


def find_room(*, root: bool) -> bool:
    """Return whether one more span may be remembered, now that there seems to be no room: those that are open take none.

    Looking costs a millisecond where there are tens of thousands of spans, and callers spend a tenth of their time on it at most.

    Args:
        root: Whether it is a root, for which there is room when there is none for others.
    """
    begun = Store.begun
    now = time.perf_counter()
    if len(begun) >= Store.room and now >= Store.look_from:
        _make_room(list(map(_STOP, begun[:])).count(0.0))
        if Store.room - len(begun) < Store.capacity // _WORTH_IT:
            seen = time.perf_counter()
            Store.look_from = seen + _PATIENCE * (seen - now)
    return len(begun) < Store.room + (Store.capacity // RESERVE if root else 0)


def _make_room(opened: int) -> None:
    """Have room for as many spans as may end, besides those that are open."""
    Store.room = Store.capacity + min(opened, OPEN * Store.capacity)


def count_dropped() -> None:
    """Count one span that found no room."""
    thread = get_ident()  # one key per thread: an unlocked ``+= 1`` shared by threads would lose counts
    Store.dropped[thread] = Store.dropped.get(thread, 0) + 1


def take_ended(more: Iterable[Span] = ()) -> list[Span]:
    """Take the spans that have ended, in the order in which they did. Call under the drain lock.

    Others begin spans meanwhile: they append behind what is looked at, and both steps on the list itself are atomic.

    Args:
        more: Ended spans that come from elsewhere.
    """
    begun = Store.begun
    seen = begun[:]
    ended = list(more)
    still_open: list[Span] = []
    for span in seen:
        (ended if span.stop else still_open).append(span)
    if len(still_open) > OPEN * Store.capacity:
        still_open = _forget(still_open, len(still_open) - OPEN * Store.capacity)
    if len(still_open) < len(seen):
        begun[: len(seen)] = still_open  # what has ended is still held by the other list: nothing is destroyed here
    ended.sort(key=_STOP)
    _make_room(len(still_open))
    return [span for span in ended if span._detail is None or not span._detail.lost]


def _forget(opened: list[Span], number: int) -> list[Span]:
    """Return open spans without the oldest of those that never end, as it seems: measured if they do, and counted as dropped."""
    before = time.perf_counter() - FORGOTTEN_AFTER
    kept: list[Span] = []
    for span in opened:
        if number and 0 < span.start < before and not span.site.spec.root:
            number -= 1
            span.forget()
        else:
            kept.append(span)
    return kept


def take(items: list[T]) -> list[T]:
    """Empty a list that others append to. Both steps are atomic; what comes in between stays. One taker at a time."""
    taken = items[:]
    del items[: len(taken)]
    return taken


def wall_offset_ns() -> int:
    """Return what has to be added to the monotonic clock, in nanoseconds, to get the Unix time of now."""
    return time.time_ns() - int(time.perf_counter() * 1e9)


def clear() -> None:
    """Forget every span. For a forked child, whose parent will report them, and for tests."""
    for span in Store.opened:
        span.stop = span.start or 1.0  # whoever leaves it only gives the context back: its parent process reports it
    Store.begun.clear()
    Store.dropped.clear()
    Store.misplaced = Store.dropped_points = 0
    Store.room, Store.look_from = Store.capacity, 0.0


def _after_fork_in_child() -> None:
    DrainLock.held = threading.Lock()
    clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
