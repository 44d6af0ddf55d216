# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals in which this process, or all threads of it but one, ran no Python: garbage collection, no CPU, the interpreter lock, a signal.

A thread sees them when it wakes up late. Why it was late follows from what happened meanwhile: the time that it waited in the run queue
(``/proc/thread-self/schedstat``), the CPU time of the process, and whether the oldest generation was collected. Nothing is put into the
collector: a callback of `gc` in Python would be called twice for each collection, also for the short ones. A thread that sleeps is given a CPU
soon, one that computes is not: so the run queue time of the main thread and of those of event loops is read, too.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span, clock
from verl_otel.recording.state import RECORDER, keep_span
from verl_otel.semconv import attributes as attr

PAUSED_SECONDS: Final = 0.2
"""Shortest pause."""
COLLECTION, CPU, INTERPRETER, PROCESS, EXECUTOR = "collection", "cpu", "interpreter", "process", "executor"
"""Reasons: a collection of garbage; no CPU; a call into C held the interpreter lock; the process was stopped; no thread of the default
executor of an event loop was free."""
QUEUED_SHARE: Final = 0.2
"""Share of a look for which a thread has to wait in the run queue; how long it waited is measured. On a busy machine a
thread that computes waits for a third of the time, in each of its looks."""
JOINED_SECONDS: Final = 0.5
"""Seconds between two parts of one pause: the thread that looks sleeps for a quarter of a second between them."""
MAX_THREADS: Final = 8
STARVED_SHARE: Final = 0.9
"""Share of the time by which this thread woke up late for which it was in the run queue, from which on a collection is not the reason. During a
collection it looks for the interpreter lock every 5 ms, and waits for a CPU each time: beside other programs up to 0.84 of the time."""
IDLE_SHARE: Final = 0.25
"""Share of a CPU below which the process did not compute: one that computes may have to share a CPU with others."""
WAKES_SHARE: Final = 0.25
"""Share of the wake-ups of a thread that waits for the interpreter lock, one for each `sys.getswitchinterval`, from which on this thread waited for it.
A process that is stopped wakes up never."""
_SITE: Final = CallSite("paused", hook=True)


class Pause(NamedTuple):
    """An interval in which the process was paused. Falsy if it has no length."""

    begin: float
    end: float
    reason: str
    queued: float = 0.0
    """Seconds of it in the run queue: a thread that shares a CPU with others runs in between."""

    def __bool__(self) -> bool:
        return self.end > self.begin

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    @property
    def share(self) -> float:
        """Share of it for which nothing ran."""
        return min(1.0, self.queued / self.seconds) if self.reason == CPU and self else 1.0


_NONE: Final = Pause(0.0, 0.0, "")


def record(pause: Pause, instance: str = "") -> None:
    """Record a pause as a span, if it is long enough and this process has something to do.

    Args:
        pause: The pause.
        instance: Another process, without telemetry, which was paused; empty: this one.
    """
    if pause.seconds >= PAUSED_SECONDS and (RECORDER.on if instance else RECORDER.is_active):
        values: dict[str, str | float] = {attr.REASON: pause.reason}
        if instance:
            values[attr.STALL_INSTANCE] = instance
        if pause.reason == CPU:
            values[attr.QUEUED_SECONDS] = min(pause.queued, pause.seconds)
        span = Span(_SITE, values)
        span.start, span.stop = pause.begin, pause.end
        keep_span(span)


class QueueTime:
    """The time that one thread of this process has waited for a CPU."""

    def __init__(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1  # without it a process without a CPU is taken for one that was stopped
        self._seconds = 0.0
        self.take()

    def take(self) -> float:
        """Return the seconds since the last call; 0 if they are not known, or the thread has ended."""
        if self._file < 0:
            return 0.0
        try:
            seconds = int(os.pread(self._file, 128, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0
        passed, self._seconds = seconds - self._seconds, seconds
        return passed

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class PauseDetector:
    """Finds pauses of this process, from a thread that calls it several times a second. All calls come from that thread."""

    def __init__(self) -> None:
        self._own: QueueTime | None = None
        self._others: dict[int, QueueTime] = {}
        """Of the threads that are expected to compute, by their native ids."""
        self._cpu = self._checked = 0.0
        self._collections = self._wakes = 0
        self._pause = _NONE
        """The last one, which may go on."""

    def start(self) -> None:
        """Begin, in the thread that calls."""
        self._own = QueueTime("/proc/thread-self/schedstat")
        self.watch({threading.main_thread().native_id or 0})
        self._find(clock(), 0.0)

    def stop(self) -> None:
        """End, in the same thread."""
        self._end_pause()
        for known in (self._own, *self._others.values()):
            if known is not None:
                known.close()
        self._own, self._others = None, {}

    def watch(self, threads: Iterable[int]) -> None:
        """Read the run queue time of further threads, by their native ids."""
        for thread in threads:
            if thread and thread not in self._others and len(self._others) < MAX_THREADS:
                self._others[thread] = QueueTime(f"/proc/self/task/{thread}/schedstat")

    def skip(self, now: float) -> None:
        """Begin again: the thread has slept because the process had nothing to do."""
        self._end_pause()
        self._find(now, 0.0)

    def check(self, now: float, late: float) -> Pause:
        """Return the part of a pause since the last call; record a pause when it has ended.

        Args:
            now: The time.
            late: Seconds by which the thread woke up late.
        """
        collections = self._collections
        part = self._find(now, late)
        # A collection is counted when it ends. This thread may look before that, while finalizers run: until then the collection looks like
        # another holder of the interpreter lock.
        if self._collections > collections and self._pause.reason == INTERPRETER:
            self._pause = self._pause._replace(reason=COLLECTION)
        if part and part.begin - self._pause.end <= JOINED_SECONDS and part.reason == self._pause.reason:
            self._pause = self._pause._replace(end=part.end, queued=self._pause.queued + part.queued)
        else:
            self._end_pause()
            self._pause = part
        return part

    def _find(self, now: float, late: float) -> Pause:
        cpu, collections = time.process_time(), gc.get_stats()[-1]["collections"]
        used, collected, since = cpu - self._cpu, collections - self._collections, self._checked
        self._cpu, self._collections, self._checked = cpu, collections, now
        wakes = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        woken, self._wakes = wakes - self._wakes, wakes
        waited = self._own.take() if self._own is not None else 0.0
        waited_most = max([known.take() for known in self._others.values()], default=0.0)
        if late < PAUSED_SECONDS:
            return Pause(since, now, CPU, waited_most) if waited_most >= QUEUED_SHARE * (now - since) else _NONE
        # What holds the interpreter lock may also sleep, and a collection may have to share a CPU with other programs.
        held = used >= IDLE_SHARE * (now - since) or woken >= WAKES_SHARE * late / sys.getswitchinterval()
        if collected and held and waited < STARVED_SHARE * late:
            reason = COLLECTION
        elif max(waited, waited_most) >= late / 2:  # also what holds the interpreter lock waits for a CPU
            reason = CPU
        elif held:
            reason = INTERPRETER
        else:
            reason = PROCESS
        return Pause(now - late, now, reason, max(waited, waited_most))

    def _end_pause(self) -> None:
        pause, self._pause = self._pause, _NONE
        record(pause)
