# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's code at which a step or a trajectory of this process stood for longer than usual.

The length of a span says that something was slow, not what it waited for: a lock, a queue, a disk, a child, the pause before a retry. The thread
that watches event loops looks four times a second at which line the thread of the step, and the threads or tasks of the oldest trajectories, are.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from statistics import median
from types import FrameType
from typing import Any, Final, NamedTuple

from verl_otel._internal import own_code, thread_frames
from verl_otel.model import LinkRecord
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.recording.state import keep_span
from verl_otel.semconv import attributes as attr
from verl_otel.watchdog import stack_dumps
from verl_otel.watchdog.stack_dumps import format_frame

STOOD_SECONDS: Final = 0.5
"""Shortest time at one line that is recorded. Trajectories are looked at from half of this age on."""
USUAL_FACTOR: Final = 1.5
"""Time at a line, as a multiple of the median of the last ones, up to which it is usual, and not recorded."""
MAX_TRAJECTORIES: Final = 8
"""Trajectories that are looked at, the oldest: what a step waits for is among them in the end."""
MAX_KNOWN: Final = 2000
"""Trajectories that are remembered until they end."""
MAX_LINES: Final = 256
"""Lines of which it is known how long they usually take."""
REMEMBERED: Final = 5
"""Stays at a line that say what is usual there, if they were in the last `USUAL_STEPS` steps: what seldom happens is not usual."""
USUAL_STEPS: Final = 10
MAX_FRAMES: Final = 64
_SITE: Final = CallSite("stood", hook=True)


class _Stay(NamedTuple):
    """Where something has been since a time."""

    place: tuple[str, int]
    """File and line."""
    line: str
    """The same in words."""
    begin: float
    waiter: weakref.ref[Any] | None = None
    """What its task waits for; None: it is not known. While that is the same, the task stands where it stood."""


class StandingWork:
    """The step and the trajectories of this process that began last, and where each is."""

    def __init__(self) -> None:
        self._where: dict[Span, int | weakref.ref[Any]] = {}
        """The thread, or the task, in which each trajectory began."""
        self._step: int | weakref.ref[Any] | None = None
        """The same of the last step. What it does after the step delays the next one."""
        self._stays: dict[Span | None, _Stay] = {}
        """By trajectory; None: of the step."""
        self._usual: dict[tuple[str, int], deque[tuple[int, float]]] = {}
        """The last stays at each line: the number of the steps before, and the seconds."""
        self._steps = 0
        self._looked = 0.0

    def note(self, span: Span) -> None:
        """Note that a step or a trajectory begins in this thread."""
        verb = span.site.spec.verb
        if verb == "step" or (verb == "trajectory" and len(self._where) < MAX_KNOWN):
            loop = asyncio._get_running_loop()
            task = asyncio.current_task(loop) if loop is not None else None
            where = threading.get_ident() if task is None else weakref.ref(task)
            if verb == "step":
                self._step = where
                self._steps += 1
            else:
                self._where[span] = where

    @property
    def knows_step(self) -> bool:
        """Whether a step has begun in this process since it had nothing to do."""
        return self._step is not None

    def clear(self) -> None:
        """Forget everything: the thread sleeps, because the process has nothing to do."""
        self._where.clear()
        self._stays.clear()
        self._step = None
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Note at which line each is, and record for how long one stood at a line that it has left."""
        looked, self._looked = self._looked or now, now
        oldest = dict(self._find_oldest(now))
        for span in [span for span in self._stays if span not in oldest]:
            self._end(span, now if span is None else span.stop or now)
        frames = thread_frames.read() if any(isinstance(where, int) for where in oldest.values()) else {}
        for span, where in oldest.items():
            stay, waiter = self._stays.get(span), _find_waiter(where)
            if stay is not None and stay.waiter is not None and stay.waiter() is waiter is not None:
                continue
            waits_for = weakref.ref(waiter) if waiter is not None else None
            frame = _find_frame(where, frames)
            place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
            if stay is not None and stay.place == place:
                self._stays[span] = stay._replace(waiter=waits_for)
                continue
            changed = (looked + now) / 2 if stay is not None or span is None else max(looked, span.start)
            if stay is not None:
                self._end(span, changed)
            if frame is not None and place is not None:
                self._stays[span] = _Stay(place, format_frame(frame).strip(), changed, waits_for)

    def _find_oldest(self, now: float) -> Iterator[tuple[Span | None, int | weakref.ref[Any]]]:
        if self._step is not None:
            yield None, self._step
        count = 0
        for span, where in list(self._where.items()):
            if span.stop or not span.start:
                del self._where[span]
            elif now - span.start >= STOOD_SECONDS / 2 and count < MAX_TRAJECTORIES:
                count += 1
                yield span, where

    def _end(self, span: Span | None, end: float) -> None:
        stay = self._stays.pop(span)
        seconds = end - stay.begin
        if seconds < STOOD_SECONDS:
            return
        usual = self._usual.get(stay.place)
        if usual is None:
            if len(self._usual) >= MAX_LINES:
                del self._usual[next(iter(self._usual))]
            usual = self._usual[stay.place] = deque(maxlen=REMEMBERED)
        is_frequent = len(usual) == REMEMBERED and self._steps - usual[0][0] <= USUAL_STEPS
        if not is_frequent or seconds > USUAL_FACTOR * median(known for _, known in usual):
            record = Span(_SITE, {attr.BLOCKED_LINE: stay.line})
            if span is not None:
                context = span.get_span_context()
                link = LinkRecord(context.trace_id, context.span_id, {attr.LINK_TYPE: "culprit"}, "", 0)
                record.link_record(link)
            record.start, record.stop = stay.begin, end
            keep_span(record)
        usual.append((self._steps, seconds))


def _find_waiter(where: int | weakref.ref[Any]) -> asyncio.Future[Any] | None:
    """Return the future that a task waits for; None where there is none, or it is not known."""
    waiter = getattr(where(), "_fut_waiter", None) if not isinstance(where, int) else None
    return waiter if isinstance(waiter, asyncio.Future) else None


def _find_frame(where: int | weakref.ref[Any], frames: dict[int, FrameType]) -> FrameType | None:
    """Return the innermost frame of the user's own code in a thread or a task; None if there is none."""
    if isinstance(where, int):
        stack = list(islice(thread_frames.walk(frames.get(where)), MAX_FRAMES))
    else:
        task = where()
        stack = list(stack_dumps.walk_frames(task.get_coro()))[::-1] if task is not None else []
    return next((frame for frame in stack if own_code.is_own(frame.f_code.co_filename)), None)
