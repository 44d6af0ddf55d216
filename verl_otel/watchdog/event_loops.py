# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Event loops of this process: how late they run callbacks, how long they could run none, and what ran instead.

A thread sends each running loop a callback that only notes the time. If it has not run when the next one is due, the thread reads the stack
of the loop. A loop is found when a step or a trajectory begins in it, or by its tasks, so that it may be of any kind (asyncio, uvloop). Nothing is
put into the loop that stays there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from verl_otel._internal import error_boundary, thread_frames
from verl_otel._internal.dead_children import PoolWorkers
from verl_otel.model import LinkRecord
from verl_otel.recording import collection, series
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import context_access
from verl_otel.recording.span import Span, clock
from verl_otel.recording.state import RECORDER, keep_span
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.watchdog import process_pauses, stack_dumps
from verl_otel.watchdog.process_pauses import Pause, PauseDetector
from verl_otel.watchdog.stack_dumps import format_frame
from verl_otel.watchdog.standing import StandingWork

# -- Names the work that blocks an event loop, from the stack of its thread: the innermost span of verl-otel on it or of its task, else the function --

_OWN: Final = str(Path(__file__).resolve().parent.parent)
"""Folder of the library. Only frames of its wrappers are read: to read the variables of others may keep objects alive."""


class BlockingWork:
    """What blocks an event loop."""

    def __init__(self, callback: FrameType | None, line: str, span: Span | None, began: float) -> None:
        self._callback = callback
        self.line = line
        """``File "...", line N in function``, the innermost one of the user's own code (`stack_dumps.find_own`)."""
        self.span = span
        self.span_name = span.name if span is not None else ""
        self.tool = str(span.attributes.get(attr.GEN_AI_TOOL, "")) if span is not None else ""
        self.began = began
        """When it began, on the clock of spans; at the latest when the loop was seen to be blocked."""

    def release(self) -> None:
        """Drop the frame of the callback, which would keep its variables alive."""
        self._callback = None

    def is_same(self, stack: Sequence[FrameType]) -> bool:
        """Return whether the same callback still runs."""
        return stack[-1] is self._callback


def describe(stack: Sequence[FrameType], ran: float, pinged: float) -> BlockingWork | None:
    """Return what blocks an event loop; None without a stack.

    Args:
        stack: The frames of the callback that runs, innermost first.
        ran: When the loop last ran a callback of ours, on the clock of spans.
        pinged: When the one was sent that it does not answer.
    """
    if not stack:
        return None
    span = _find_wrapped(stack) or _find_current(stack[-1])
    began = pinged if span is None or span.start < ran else span.start
    return BlockingWork(stack[-1], format_frame(stack_dumps.find_own(stack)).strip(), span, began)


def _find_wrapped(stack: Sequence[FrameType]) -> Span | None:
    """Return the open span of the innermost decorated function on the stack.

    Spans of hooks do not count: the task may have opened another one inside, which `_find_current` returns.
    """
    for frame in stack:
        name = frame.f_code.co_filename
        if name.startswith(_OWN):
            for value in frame.f_locals.values():
                # One whose constructor runs has no start yet.
                if type(value) is Span and getattr(value, "start", False) and not value.stop and not value.site.hook:
                    return value  # type: ignore[return-value]  # as every span
    return None


def _find_current(callback: FrameType) -> Span | None:
    """Return the open span that is current in the task that runs a callback; None where the loop has no frame that knows the task, as uvloop's."""
    handle = callback if stack_dumps.is_handle(callback) else callback.f_back
    if handle is None or not stack_dumps.is_handle(handle):
        return None
    variables = getattr(handle.f_locals.get("self"), "_context", None)
    if variables is None:
        return None
    access = context_access()
    span = access.span_of(access.read(variables))
    return span if type(span) is Span and span.start and not span.stop else None  # type: ignore[return-value]  # as every span


# -- Blocked event loops of this process: how long no callback of a loop could run, and what ran instead --

PING_SECONDS: Final = 0.25
"""Seconds between two callbacks while the process has open spans."""
IDLE_SECONDS: Final = 1.0
"""Seconds between two callbacks while it has none, and between two searches for loops."""
REST_SECONDS: Final = 2.0
"""Seconds after the last drain with spans until this thread checks nothing any more, and sleeps."""
STEP_REST_SECONDS: Final = 60.0
"""The same in the process of the step: what it does between two steps has no spans, and is known by its line only."""
BLOCKED_SECONDS: Final = 0.2
"""Seconds for which a loop must not run a callback to count as blocked."""
LOOK_SECONDS: Final = 0.1
"""Seconds after which a loop that has not answered is looked at."""
LAG_SECONDS: Final = 60.0
"""Seconds that the lag covers: a scrape interval may be as long."""
MAX_LOOPS: Final = 16
"""Loops of one process that are watched."""
CALLBACK, CALLBACKS = "callback", "callbacks"
"""Reasons: one callback ran; many ran one after the other. The others are those of a process that was paused (`process_pauses`)."""
WORKER: Final = "worker"
"""Reason of both in a process with a rank: Ray runs its methods on the loop, so an update blocks it as planned."""
_SITE: Final = CallSite("blocked", hook=True)


class LoopState:
    """One event loop that is watched."""

    def __init__(self, loop: Any, thread: int, read_clock: Callable[[], float]) -> None:
        self.loop = loop
        self._read_clock = read_clock
        self.pinged = 0.0
        """When the callback was sent that has not been answered yet; 0: none."""
        self.before = self.answered = 0.0
        """When the last two callbacks ran; `answered` is 0 while one is awaited."""
        self.thread = thread
        """Id of its thread; 0: not known before it answers."""
        self.queued: tuple[float, float] | None = None
        """When calls that wait for a thread of its default executor were seen first and last; None: none waits."""
        self.work: BlockingWork | None = None
        """What blocks it; None: it is not known to be blocked."""
        self.paused: dict[str, float] = {}
        """Seconds of the wait in which this process was paused, by reason."""
        self._lags: deque[tuple[float, float]] = deque(maxlen=int(LAG_SECONDS / PING_SECONDS))
        """When the last callbacks ran, and how late."""
        self.is_new = True
        """Whether it was found since the last check: what it runs at that moment need not block it."""
        self._base: FrameType | None = None
        self._changed = False

    def ping(self) -> bool:
        """Send the callback. Return whether the loop takes one."""
        now = self._read_clock()
        self.work, self.paused, self._changed = None, {}, False
        self.before, self.pinged, self.answered = self.answered or now, now, 0.0
        try:
            self.loop.call_soon_threadsafe(self._answer)
        except Exception as error:  # it is closed, or of a kind that does not support it
            error_boundary.may_propagate(error)
            return False
        return True

    def _answer(self) -> None:
        self.thread = threading.get_ident()
        caller = sys._getframe().f_back
        self._base = caller if not stack_dumps.is_handle(caller) else None
        if self.work is not None:
            self.work.release()
        self.answered = self._read_clock()

    def look(self) -> None:
        """Note what the loop does while it does not answer."""
        top = thread_frames.read().get(self.thread) if self.thread else None
        if top is None:
            return
        stack = stack_dumps.find_callback(top, self._base)
        if self.work is None:
            self.work = describe(stack, self.before, self.pinged)
        elif not stack or not self.work.is_same(stack):
            self._changed = True

    def note_lag(self) -> float:
        """Note how late the callback ran that has been answered. Return it."""
        lag = self.answered - self.pinged
        self._lags.append((self.answered, lag))
        return lag

    def read_lags(self, now: float) -> list[float]:
        """Return how late each callback of the last `LAG_SECONDS` ran, and one that is awaited now."""
        lags = [lag for answered, lag in list(self._lags) if now - answered <= LAG_SECONDS]
        if self.pinged and not self.answered:
            lags.append(max(0.0, now - self.pinged))
        return lags

    def note_pause(self, pause: Pause) -> None:
        """Note that the process was paused while the loop may not have answered."""
        seconds = (pause.end - max(pause.begin, self.pinged)) * pause.share
        self.paused[pause.reason] = self.paused.get(pause.reason, 0.0) + max(0.0, seconds)

    def check_executor(self, now: float, *, is_running: bool) -> None:
        """Record the time in which no thread of the default executor was free, when it or the loop has ended.

        It ended soon after calls were last seen to wait: what happened until this look may be something else.
        """
        queue = getattr(getattr(self.loop, "_default_executor", None), "_work_queue", None)
        if is_running and queue is not None and queue.qsize() > 0:
            self.queued = (self.queued[0] if self.queued is not None else now), now
        elif self.queued is not None:
            process_pauses.record(Pause(*self.queued, process_pauses.EXECUTOR))
            self.queued = None

    def find_reason(self, seconds: float) -> str:
        """Return why it was blocked for a number of seconds."""
        if sum(self.paused.values()) >= seconds / 2:
            return max(self.paused, key=lambda reason: self.paused[reason])
        return CALLBACKS if self._changed else CALLBACK


class LoopWatcher:
    """Watches the event loops of this process from a thread.

    Args:
        is_worker: Returns whether this process has a rank.
        read_clock: Returns the time on the clock of spans.
        note_death: Is given pid and end, in words, of each worker of a pool of this process that died.
    """

    def __init__(
        self,
        is_worker: Callable[[], bool],
        read_clock: Callable[[], float] = clock,
        note_death: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        self._is_worker = is_worker
        self._note_death = note_death
        self._read_clock = read_clock
        self.cpu_seconds = 0.0
        """CPU time of the thread."""
        self._states: dict[int, LoopState] = {}
        self._wake = threading.Lock()  # waiting for a lock takes a third of the CPU time of waiting for an event
        self._wake.acquire()
        self._stopped = self._sleeps = False
        self._rests = True
        """Whether the thread sleeps, or looks once in `IDLE_SECONDS`."""
        self._active_until = 0.0
        self._thread: threading.Thread | None = None
        self._next_search = 0.0
        self._pauses = PauseDetector()
        self._standing = StandingWork()
        self._pool_workers = PoolWorkers()

    def start(self) -> None:
        """Start the thread, and report the lag of the loops at each collection."""
        collection.observe(metric_names.EVENT_LOOP_LAG, self.read_lag, removes=True)
        self._thread = threading.Thread(target=self._run, name="verl-otel-loops", daemon=True)
        self._thread.start()
        RECORDER.note_root = self.note_root

    def stop(self, timeout: float) -> None:
        """Stop the thread; wait for it for a number of seconds."""
        if RECORDER.note_root == self.note_root:
            RECORDER.note_root = None
        self._stopped = True
        self._wake_up()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(max(0.0, timeout))
        self._thread = None
        self._states = {}

    def read_lag(self) -> list[collection.Observation]:
        """Return how late the loops ran callbacks; nothing in a process with a rank, whose loop is late as planned."""
        now = self._read_clock()
        lags = sorted(lag for state in list(self._states.values()) for lag in state.read_lags(now))
        if not lags or self._is_worker():
            return []
        values = {"p50": lags[len(lags) // 2], "max": lags[-1]}
        return [(((attr.AGGREGATE, name),), value) for name, value in values.items()]

    def find_blocked(self) -> str:
        """Return the line at which a callback blocks its event loop now; empty if none does."""
        works = (state.work for state in list(self._states.values()))
        return next((work.line for work in works if work is not None), "")

    def note_root(self, span: Span) -> None:
        """Watch the event loop that this thread runs, if any, from now on: it may be blocked before the next search, or end. Never raises.

        A step or a trajectory begins: the thread looks often from now on, also without a loop. Only one that is awake before a pause finds it.
        """
        with error_boundary.suppress_errors("standing"):
            self._standing.note(span)
        if self._rests:
            self._rests = False
            self._active_until = clock() + REST_SECONDS
            self._wake_up()
        loop = asyncio._get_running_loop()
        if loop is None or id(loop) in self._states or len(self._states) >= MAX_LOOPS:
            return
        with error_boundary.suppress_errors("event loops"):
            self._add(loop, threading.get_ident())
            self._active_until = clock() + REST_SECONDS
            self._wake_up()

    def note_activity(self) -> None:
        """Note that spans are open or have ended. Called at each drain that finds some."""
        self._active_until = clock() + (STEP_REST_SECONDS if self._standing.knows_step else REST_SECONDS)
        if self._sleeps:
            self._wake_up()

    def _may_sleep(self) -> bool:
        return not RECORDER.is_active and clock() >= self._active_until

    def _add(self, loop: Any, thread: int) -> None:
        state = LoopState(loop, thread, self._read_clock)
        if state.ping():
            self._states.setdefault(id(loop), state)  # another thread may have found it, too

    def _wake_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken up already
            self._wake.release()

    def _run(self) -> None:
        self._pauses.start()
        with error_boundary.suppress_errors("event loops"):
            self._find_new()  # a loop may be blocked already: it began before the telemetry of its process
        expected = clock() + PING_SECONDS
        while True:
            # Before `_may_sleep`, so that a thread that makes the process active meanwhile wakes this one.
            self._sleeps = self._rests = True
            self._sleeps = self._may_sleep()
            self._rests = not RECORDER.is_active
            is_woken = self._wake.acquire(timeout=-1 if self._sleeps else max(0.0, expected - clock()))
            if self._stopped:
                break
            now = clock()
            if self._sleeps:
                self._pauses.skip(now)
                self._standing.clear()
                expected = now + PING_SECONDS
            elif is_woken:  # a new loop: not so late as a process without spans needs
                expected = min(expected, now + PING_SECONDS)
            if is_woken:
                continue
            with error_boundary.suppress_errors("event loops"):
                self.check(now, now - expected)
            expected = now + (PING_SECONDS if RECORDER.is_active else IDLE_SECONDS)
            if self._states:
                self._look_soon()
            self.cpu_seconds = time.thread_time()
        self._pauses.stop()

    def _look_soon(self) -> None:
        """Look at the loops that have not answered after `LOOK_SECONDS`: one that was blocked shortly does answer before the next check."""
        if self._wake.acquire(timeout=LOOK_SECONDS):
            self._wake_up()  # this thread is wanted for something else
            return
        for state in list(self._states.values()):
            if not state.answered and not state.is_new:
                with error_boundary.suppress_errors("event loops"):
                    state.look()

    def check(self, now: float, late: float) -> None:
        """Check every loop, and where the work of this process stands.

        Args:
            now: The time.
            late: Seconds by which this thread itself is late.
        """
        if not RECORDER.on:
            return
        pause = self._pauses.check(now, late)
        self._standing.look(now)
        for pid, end in self._pool_workers.take_dead():
            self._note_death(pid, end)
        if now >= self._next_search:
            self._next_search = now + IDLE_SECONDS
            self._find_new()
        for key, state in list(self._states.items()):
            if not self._check_loop(state, now, pause):
                del self._states[key]

    def _check_loop(self, state: LoopState, now: float, pause: Pause) -> bool:
        """Record in which time a loop was blocked, look what blocks it, or ask it again. Return whether it goes on."""
        is_running, has_answered = state.loop.is_running(), bool(state.answered)
        if pause and state.pinged:
            state.note_pause(pause)
        if has_answered and state.note_lag() >= BLOCKED_SECONDS:
            _record(state, is_worker=self._is_worker())
        state.check_executor(now, is_running=is_running)
        if not is_running:
            if state.work is not None:  # it ended without an answer, and must not keep the frame of its callback
                state.work.release()
            return False
        is_new, state.is_new = state.is_new, False
        if has_answered:
            return state.ping()
        if not is_new:
            state.look()
        return True

    def _find_new(self) -> None:
        for loop, thread in stack_dumps.find_running_loops().items():
            if id(loop) not in self._states and len(self._states) < MAX_LOOPS:
                self._add(loop, thread)
        threads = {state.thread for state in self._states.values()}
        self._pauses.watch(each.native_id or 0 for each in threading.enumerate() if each.ident in threads)


def _record(state: LoopState, *, is_worker: bool) -> None:
    """Record the time in which a loop was blocked as a span and in a metric."""
    seconds = state.answered - state.pinged
    reason = state.find_reason(seconds)
    work = None
    if reason in (CALLBACK, CALLBACKS):
        work, reason = state.work, WORKER if is_worker else reason
    series.counter(metric_names.EVENT_LOOP_BLOCKED, ((attr.REASON, reason),)).record(seconds)
    attributes: dict[str, Any] = {attr.REASON: reason}
    if work is not None:
        attributes |= {attr.BLOCKED_SPAN: work.span_name, attr.BLOCKED_LINE: work.line, attr.GEN_AI_TOOL: work.tool}
    span = Span(_SITE, {key: value for key, value in attributes.items() if value})
    if work is not None and work.span is not None:
        context = work.span.get_span_context()
        span.link_record(LinkRecord(context.trace_id, context.span_id, {attr.LINK_TYPE: "culprit"}, "", 0))
    begin = state.pinged if work is None else max(state.before, min(state.pinged, work.began))
    span.start, span.stop = begin, state.answered
    keep_span(span)


def watch(
    is_worker: Callable[[], bool] = lambda: False, note_death: Callable[[int, str], None] = lambda *_: None
) -> LoopWatcher | None:
    """Start to watch the event loops of this process; None in a process in which no thread can be started.

    Args:
        is_worker: Returns whether this process has a rank.
        note_death: Is given pid and end, in words, of each worker of a pool of this process that died.
    """
    watcher = LoopWatcher(is_worker, note_death=note_death)
    try:
        watcher.start()
    except RuntimeError:
        return None
    return watcher
