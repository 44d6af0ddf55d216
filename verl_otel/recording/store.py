# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What recording remembers between two drains: ended spans, open spans, and whether it is on at all."""

from __future__ import annotations

import os
import time
from threading import get_ident
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

T = TypeVar("T")

SPAN_BYTES: Final = 1024
"""What one ended span with a dozen attributes takes until it is drained; turns the memory limit into a number of spans."""


class Store:
    """The state of recording in this process. Written by every thread with single atomic operations, without a lock."""

    on = False
    """Whether anything is recorded."""
    capture_content = False
    """Whether exception messages, prompts and answers may be kept."""
    finished: list[Span] = []
    """Ended spans, in the order in which they ended, until the next drain."""
    capacity = 64 * 1024 * 1024 // SPAN_BYTES
    """Ended spans that may wait; more are dropped and counted."""
    opened: dict[Span, None] = {}
    """Structural spans that have begun and not ended (a dict, for its atomic insert and pop and its order)."""
    dropped: dict[int, int] = {}
    """Dropped spans by thread."""
    dropped_points = 0
    """Ready points that found no room to wait; added on the thread that logs."""
    misplaced = 0
    """Spans that ended where they were not current, for example in an async generator closed by another task."""


def keep(span: Span) -> None:
    """Put an ended span where the next drain finds it, or drop and count it."""
    if len(Store.finished) < Store.capacity:
        Store.finished.append(span)
    else:
        count_dropped()


def count_dropped() -> None:
    """Count one span that found no room."""
    thread = get_ident()  # one key per thread: an unlocked ``+= 1`` shared by threads would lose counts
    Store.dropped[thread] = Store.dropped.get(thread, 0) + 1


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
    Store.finished.clear()
    for span in list(Store.opened):
        span.stop = span.start or 1.0  # whoever leaves it only gives the context back: its parent process reports it
    Store.opened.clear()
    Store.dropped.clear()
    Store.misplaced = Store.dropped_points = 0


os.register_at_fork(after_in_child=clear)
