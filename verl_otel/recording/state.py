# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The state of recording in this process: whether it is on, the spans between two drains, sampling, durations.

One object, `RECORDER`, so that there is one place to reset and one handler of forks. Series are in `verl_otel.recording.series_registry`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Final, TypeVar

from verl_otel._internal import process_state
from verl_otel.recording.duration_stats import DurationTracker
from verl_otel.recording.retention import TrajectoryMarks
from verl_otel.recording.sampling import SamplingPolicy

if TYPE_CHECKING:
    from verl_otel.model import Point
    from verl_otel.recording.span import Span

T = TypeVar("T")

_STOP = attrgetter("stop")
SPAN_BYTES: Final = 1024
"""Bytes of one ended span with a dozen attributes until it is drained; converts the memory limit to a number of spans."""
OPEN_FACTOR: Final = 4
"""Multiple of the capacity up to which open spans take no room from ended ones: an open span without attributes has a quarter of
`SPAN_BYTES`, and the code that opened it holds it anyway."""
ROOT_RESERVE: Final = 2
"""Divisor: one half of the capacity more is for root spans only once there is no room, since a trace without its root is hard to read."""
STALE_SECONDS: Final = 7200.0
"""Age in seconds from which an open span that is no root may be dropped, as one that never ends."""
_SEARCH_BACKOFF: Final = 10
"""After a search that found little room the next one waits for this multiple of its duration."""
_LITTLE_ROOM: Final = 8
"""Divisor: room is little if it is less than an eighth of the capacity."""


class RecorderState:
    """The state of recording in this process. Every thread writes to it by single atomic operations, without a lock.

    An object with slots: CPython 3.11 reads them several times faster than the attributes of a class.
    """

    __slots__ = (
        "_capacity", "begun", "byte_limit", "bytes", "capture_content", "convention_aliases", "drain_lock",
        "dropped", "dropped_points", "durations", "ended_count", "misplaced", "next_search", "on", "pending_points",
        "room", "sampling", "trajectories", "verdict_lines",
    )  # fmt: skip

    def __init__(self) -> None:
        self.on = False
        """Whether anything is recorded."""
        self.capture_content = False
        """Whether exception messages, prompts and answers may be kept."""
        self.convention_aliases = False
        """Whether series and trajectories get the names of the GenAI conventions, too (see `verl_otel.recording.convention_aliases`)."""
        self.verdict_lines = True
        """Whether the log of the training gets a line on what held a step, or the run."""
        self.begun: list[Span] = []
        """Open and ended spans in the order in which they began; a drain takes the ended ones."""
        self.bytes = 0
        """Bytes of large attributes, events and links in those spans, on top of `SPAN_BYTES` for each. Updated without a lock where an
        attribute is set and counted again by each drain, which corrects updates that were lost to a race."""
        self.capacity = 64 * 1024 * 1024 // SPAN_BYTES
        self.next_search = 0.0
        """Time (`time.perf_counter`) from which `find_room` may search again."""
        self.dropped: dict[int, int] = {}
        """Number of dropped spans by thread id."""
        self.dropped_points = 0
        """Pending points that were dropped for want of room; incremented by the thread that adds points."""
        self.misplaced = 0
        """Spans that ended where they were not current, for example in an async generator closed by another task."""
        self.ended_count = 0
        """Spans that have ended and were drained."""
        self.pending_points: list[Point] = []
        """Complete points that wait for the next drain, such as the scalars of a step."""
        self.drain_lock = threading.Lock()
        """Held by the thread that drains. New in a forked child, where the thread that held it does not exist."""
        self.sampling = SamplingPolicy()
        self.trajectories = TrajectoryMarks()
        self.durations = DurationTracker()

    @property
    def capacity(self) -> int:
        """Number of ended spans that `begun` may hold; further ones are measured, dropped and counted."""
        return self._capacity

    @capacity.setter
    def capacity(self, spans: int) -> None:
        self._capacity = spans
        self.byte_limit = spans * SPAN_BYTES
        """Bytes that large attributes, events and links of those spans may have in all: as much as the spans themselves."""
        self.room = spans
        """Number of spans that `begun` may hold: the capacity plus the spans that were open at the last search or drain."""

    @property
    def opened(self) -> list[Span]:
        """The open spans, in the order in which they began."""
        return [span for span in self.begun[:] if span.start and not span.stop]

    def count_open(self) -> int:
        """Return the number of open spans. A tenth of the cost of `opened`, for the drain."""
        return list(map(_STOP, self.begun[:])).count(0.0)

    def __reduce__(self) -> str:
        return "RECORDER"  # unpickled as the state of the process it arrives in


RECORDER: Final = RecorderState()


def keep(span: Span) -> None:
    """Add a span that was not entered to the next drain, or drop and count it."""
    if find_room(root=span.site.spec.root):
        RECORDER.begun.append(span)
    else:
        count_dropped()


def find_room(*, root: bool) -> bool:
    """Return whether one more span can be held although `begun` seems full: open spans do not count.

    A search costs a millisecond with tens of thousands of spans; `_SEARCH_BACKOFF` limits it to a tenth of the caller's time.

    Args:
        root: Whether it is a root span, for which there is additional room.
    """
    begun = RECORDER.begun
    now = time.perf_counter()
    if len(begun) >= RECORDER.room and now >= RECORDER.next_search:
        _make_room(RECORDER.count_open())
        if RECORDER.room - len(begun) < RECORDER.capacity // _LITTLE_ROOM:
            seen = time.perf_counter()
            RECORDER.next_search = seen + _SEARCH_BACKOFF * (seen - now)
    return len(begun) < RECORDER.room + (RECORDER.capacity // ROOT_RESERVE if root else 0)


def _make_room(opened: int) -> None:
    """Set `room` such that open spans take none of the capacity, up to `OPEN_FACTOR` times the capacity."""
    RECORDER.room = RECORDER.capacity + min(opened, OPEN_FACTOR * RECORDER.capacity)


def count_dropped() -> None:
    """Count one dropped span."""
    thread = get_ident()  # one key per thread: an unlocked ``+= 1`` shared by threads would lose counts
    RECORDER.dropped[thread] = RECORDER.dropped.get(thread, 0) + 1


def take_ended(more: Iterable[Span] = ()) -> list[Span]:
    """Remove the ended spans and return them in the order in which they ended. Call under the drain lock.

    Other threads may begin spans meanwhile: they append behind the part that is replaced, and both operations on the list are atomic.

    Args:
        more: Further ended spans, which are not in `begun`.
    """
    begun = RECORDER.begun
    seen = begun[:]
    ended = list(more)
    still_open: list[Span] = []
    for span in seen:
        (ended if span.stop else still_open).append(span)
    if len(still_open) > OPEN_FACTOR * RECORDER.capacity:
        still_open = _drop_stale(still_open, len(still_open) - OPEN_FACTOR * RECORDER.capacity)
    if len(still_open) < len(seen):
        begun[: len(seen)] = still_open  # `ended` still holds the spans that are removed: no destructor runs here
    ended.sort(key=_STOP)
    _make_room(len(still_open))
    RECORDER.bytes = sum([span._detail.bytes for span in still_open if span._detail is not None])
    return [span for span in ended if span._detail is None or not span._detail.unrecorded]


def _drop_stale(opened: list[Span], number: int) -> list[Span]:
    """Drop up to ``number`` stale spans, the oldest first, and return the others. A dropped one is counted, and measured if it ends."""
    before = time.perf_counter() - STALE_SECONDS
    kept: list[Span] = []
    for span in opened:
        if number and 0 < span.start < before and not span.site.spec.root:
            number -= 1
            span.drop()
        else:
            kept.append(span)
    return kept


def take(items: list[T]) -> list[T]:
    """Remove and return the items of a list that other threads append to. Only one thread may take at a time; later items stay."""
    taken = items[:]
    del items[: len(taken)]
    return taken


def wall_offset_ns() -> int:
    """Return Unix time minus `time.perf_counter`, in nanoseconds."""
    return time.time_ns() - int(time.perf_counter() * 1e9)


def clear() -> None:
    """Discard every span, count and pending point. May be called while other threads record."""
    for span in RECORDER.opened:
        span.stop = span.start or 1.0  # its exit only restores the context: the parent process reports it
    RECORDER.begun.clear()
    RECORDER.pending_points.clear()
    RECORDER.dropped.clear()
    RECORDER.misplaced = RECORDER.dropped_points = RECORDER.bytes = RECORDER.ended_count = 0
    RECORDER.room, RECORDER.next_search = RECORDER.capacity, 0.0
    RECORDER.sampling.clear()
    RECORDER.trajectories.clear()
    RECORDER.durations.clear()


def _after_fork() -> None:
    RECORDER.drain_lock = threading.Lock()
    clear()


process_state.register(clear=clear, after_fork=_after_fork)
