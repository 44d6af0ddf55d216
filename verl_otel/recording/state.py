# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The state of recording in this process: whether it is on, and the spans between two drains.

One object, `RECORDER`, so that there is one place to reset and one handler of forks. Series are in `verl_otel.recording.series`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from operator import attrgetter
from sys import getsizeof
from threading import get_ident
from typing import TYPE_CHECKING, Final, TypeVar

from verl_otel._internal import process_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from verl_otel.model import AttributeValue, EventRecord, LinkRecord, Point
    from verl_otel.recording.span import Span

T = TypeVar("T")

_STOP = attrgetter("stop")
SPAN_BYTES: Final = 1024
"""Bytes of one ended span with a dozen attributes until it is drained; converts the memory limit to a number of spans."""
OPEN_FACTOR: Final = 4
"""Multiple of the capacity: the number of spans that may be open. An open span without attributes has a quarter of `SPAN_BYTES`, and the code that
opened it holds it anyway."""


class RecorderState:
    """The state of recording in this process. Every thread writes to it by single atomic operations, without a lock.

    An object with slots: CPython 3.11 reads them several times faster than the attributes of a class.
    """

    __slots__ = (
        "bytes", "capacity", "capture_content", "convention_aliases", "drain_lock",
        "dropped", "dropped_points", "ended", "ended_count", "misplaced", "note_root", "on",
        "open_spans", "pending_points", "run_id", "verdict_lines", "writes_files",
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
        self.writes_files = True
        """Whether commands find files of this run, so that a line of the log may name one."""
        self.run_id = ""
        """Id of the run, which such a command names; empty: not known."""
        self.open_spans: dict[Span, None] = {}
        """Open spans in the order in which they began."""
        self.ended: list[Span] = []
        """Ended spans until a drain takes them."""
        self.bytes = 0
        """About how many bytes those spans take on top of `SPAN_BYTES` for each. Updated without a lock: a race may lose some until the drain."""
        self.capacity = 64 * 1024 * 1024 // SPAN_BYTES
        """Number of ended spans from which no more begin; further ones are measured, dropped and counted."""
        self.dropped: dict[int, int] = {}
        """Number of dropped spans by thread id."""
        self.dropped_points = 0
        """Pending points that were dropped for want of room; incremented by the thread that adds points."""
        self.misplaced = 0
        """Spans that ended where they were not current, for example in an async generator closed by another task."""
        self.ended_count = 0
        """Spans that have ended and were drained."""
        self.note_root: Callable[[Span], None] | None = None
        """Called in the thread in which a step or a trajectory begins, with its span; None: nothing is watched."""
        self.pending_points: list[Point] = []
        """Complete points that wait for the next drain, such as the scalars of a step."""
        self.drain_lock = threading.Lock()
        """Held by the thread that drains. New in a forked child, where the thread that held it does not exist."""

    @property
    def byte_limit(self) -> int:
        """Bytes that large attributes, events and links of those spans may have in all: as much as the spans themselves."""
        return self.capacity * SPAN_BYTES

    def take_room(self, size: int) -> bool:
        """Take room for what an ended span has beyond `SPAN_BYTES` until the next drain; return whether there was enough."""
        if self.bytes + size > self.byte_limit:
            return False
        self.bytes += size
        return True

    @property
    def is_active(self) -> bool:
        """Whether a span is open, or has ended since the last drain: between two steps none is open for a moment."""
        return bool(self.open_spans or self.ended)

    @property
    def opened(self) -> list[Span]:
        """The open spans, in the order in which they began."""
        return [span for span in list(self.open_spans) if span.start and not span.stop]

    def end(self, span: Span) -> None:
        """Hand a span that was open to the next drain. What has begun is kept: what may end is bounded by what may begin."""
        self.ended.append(span)
        self.open_spans.pop(span, None)

    def __reduce__(self) -> str:
        return "RECORDER"  # unpickled as the state of the process it arrives in


RECORDER: Final = RecorderState()


def keep_span(span: Span) -> None:
    """Add an ended span that was not entered to the next drain, or drop and count it."""
    if len(RECORDER.ended) < RECORDER.capacity:
        RECORDER.ended.append(span)
    else:
        count_dropped()


def count_dropped() -> None:
    """Count one dropped span."""
    thread = get_ident()  # one key per thread: an unlocked ``+= 1`` shared by threads would lose counts
    RECORDER.dropped[thread] = RECORDER.dropped.get(thread, 0) + 1


def take_ended(more: Iterable[Span] = ()) -> list[Span]:
    """Remove the ended spans and return them in the order in which they ended. Call under the drain lock.

    Args:
        more: Further ended spans.
    """
    ended = [*take(RECORDER.ended), *more]
    ended.sort(key=_STOP)
    RECORDER.bytes = 0
    return ended


def take(items: list[T]) -> list[T]:
    """Remove and return the items of a list that other threads append to. Only one thread may take at a time; later items stay."""
    taken = items[:]
    del items[: len(taken)]
    return taken


# -- About how many bytes something takes --

_ENTRY: Final = 100
"""Bytes of a dictionary entry, including the reserve of a growing dictionary."""
_PART: Final = 400
"""Bytes of an event or a link without attributes."""
_SCORE: Final = 32


def weigh(attributes: Mapping[str, AttributeValue]) -> int:
    """Return about how many bytes attributes take, to which another thread may add."""
    return sum([_ENTRY + getsizeof(key) + _weigh_value(value) for key, value in list(attributes.items())])


def _weigh_value(value: AttributeValue) -> int:
    return getsizeof(value) + (sum(map(getsizeof, value)) if type(value) is tuple else 0)


def weigh_beyond(
    attributes: Mapping[str, AttributeValue], parts: Iterable[EventRecord | LinkRecord], scores: tuple[float, ...] = ()
) -> int:
    """Return about how many bytes an ended span takes beyond `SPAN_BYTES`.

    Args:
        attributes: Its own attributes.
        parts: Its events and links.
        scores: All scores of its batch.
    """
    size = weigh(attributes) + sum([_PART + weigh(part.attributes) for part in parts]) + _SCORE * len(scores)
    return max(0, size - SPAN_BYTES)


def wall_offset_ns() -> int:
    """Return Unix time minus `time.perf_counter`, in nanoseconds."""
    return time.time_ns() - int(time.perf_counter() * 1e9)


def clear() -> None:
    """Discard every span, count and pending point. May be called while other threads record."""
    for span in RECORDER.opened:
        span.stop = span.start or 1.0  # its exit only restores the context: the parent process reports it
    RECORDER.open_spans.clear()
    RECORDER.ended.clear()
    RECORDER.pending_points.clear()
    RECORDER.dropped.clear()
    RECORDER.misplaced = RECORDER.dropped_points = RECORDER.bytes = RECORDER.ended_count = 0


def _after_fork() -> None:
    RECORDER.drain_lock = threading.Lock()
    RECORDER.note_root = None  # the thread that watches is in the parent only
    clear()


process_state.register(clear=clear, after_fork=_after_fork)
