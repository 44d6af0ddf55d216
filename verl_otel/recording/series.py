# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Series: buffers of measurements and their aggregated state.

A caller only appends to a list. Folding aggregates whole chunks: sorting 1,000 floats and cutting them at the bounds costs 40 ns a value,
less than aggregating each one (see docs/explanation/decisions/0003-append-measurements-and-aggregate-later.md). The lock of the series
serialises folding; callers only try it: another thread may be suspended while it folds, and a signal handler, a garbage collector callback
or a ``__del__`` may record while its own thread folds.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from verl_otel.model import Exemplar, HistogramValue, Instrument, Labels, Point, fit_64_bits
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.state import RECORDER, take

# -- The lock of a series. Callers try it and never wait, and an exception of a signal handler cannot leave it held --

_FREE: Final = (True,)
POLL_SECONDS: Final = 0.001
"""Seconds between two attempts of a thread that waits. Folding a full buffer takes less."""


class FoldLock:
    """Lets one thread at a time run something.

    Its state is a list that has an item while the lock is free. ``del`` takes the item or fails, at once, and is one bytecode instruction
    after which Python runs no signal handlers. After a call such as ``lock.acquire(blocking=False)`` it does: a handler that raises there
    would leave the lock held. ``with lock`` of the standard library has no such gap, but waits.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = list(_FREE)

    def run(self, function: Callable[[], object], deadline: float = 0.0) -> bool:
        """Call a function while holding the lock.

        Args:
            function: What to call. It must not use this lock.
            deadline: Until when to wait for the lock, as `time.monotonic`; the default is to try once.

        Returns:
            Whether the function was called. False if another thread, or a frame of this thread that was interrupted, holds the lock.
        """
        items = self._items
        while True:
            try:
                del items[0]
            except IndexError:
                if not deadline or time.monotonic() >= deadline:
                    return False
                time.sleep(POLL_SECONDS)
                continue
            try:
                function()
            finally:
                items[:] = _FREE
            return True

    @property
    def is_held(self) -> bool:
        """Whether something is running."""
        return not self._items


CHUNK: Final = 1000
"""Length of a buffer from which the caller folds it, if no other thread does."""
CEILING: Final = 8 * CHUNK
"""Length of a buffer from which measurements are dropped and counted."""
_NUMBERS: Final = frozenset({int, float})
EXEMPLAR_SECONDS: Final = 30.0
"""Seconds for which an exemplar is not replaced by a smaller value of its bucket."""


class Series:
    """Common part of the three kinds: instrument, labels and a bounded buffer."""

    __slots__ = ("buffer", "changed", "dropped", "instrument", "labels", "lock", "start_ns", "time_ns")

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        self.instrument = instrument
        self.labels = labels
        self.buffer: list[float] = []
        self.lock = FoldLock()
        """Held while the buffer is folded. Callers only try it; threads of the session may wait for it. New in a forked child, where the
        thread that held it does not exist."""
        self.reset()

    def reset(self) -> None:
        """Discard all measurements; wrappers keep the series."""
        self.buffer.clear()
        self.dropped: dict[int, int] = {}
        self.start_ns = time.time_ns()
        self.time_ns = self.start_ns
        self.changed = False
        """Whether it changed since the last drain."""

    def record(self, value: float) -> None:
        """Record one measurement. Never blocks, never raises."""
        buffer = self.buffer
        if len(buffer) < CHUNK:
            buffer.append(value)
        else:
            self.spill(value)

    def spill(self, value: float) -> None:
        """Record one measurement in a full buffer: fold the buffer, let it grow, or drop the value. Never blocks."""
        buffer = self.buffer
        if self.lock.run(self.fold) or len(buffer) < CEILING:
            buffer.append(value)
        else:
            # One key per thread: an unlocked ``+= 1`` shared by threads would lose counts.
            thread = get_ident()
            self.dropped[thread] = self.dropped.get(thread, 0) + 1

    def fold(self) -> None:
        """Aggregate the buffer. Call under the lock."""
        raise NotImplementedError

    def point(self, time_ns: int) -> Point:
        """Return the aggregated state as of ``time_ns``. Call under the lock, after `fold`."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        from verl_otel.recording.series_registry import find  # the registry of the process it arrives in

        return find, (type(self), self.instrument, self.labels, getattr(self, "bounds", ()))


class Histogram(Series):
    """A distribution over fixed bounds, with the slowest recent exemplar of each bucket."""

    __slots__ = ("bounds", "count", "counts", "exemplars", "maximum", "minimum", "total")

    def __init__(self, instrument: Instrument, labels: Labels, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        super().__init__(instrument, labels)

    def reset(self) -> None:
        """Discard all measurements."""
        super().reset()
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.minimum = float("inf")
        self.maximum = float("-inf")
        self.exemplars: dict[int, Exemplar] = {}

    def fold(self) -> None:
        """Add the buffer to the buckets, chunk by chunk (one long sort costs eight times as much a value)."""
        values = take(self.buffer)
        for begin in range(0, len(values), CHUNK):
            self._fold_chunk(values[begin : begin + CHUNK])

    def _fold_chunk(self, chunk: list[float]) -> None:
        total = sum(chunk)
        if isinstance(total, int) and abs(total) > sys.float_info.max:
            chunk = [value for value in chunk if abs(value) <= sys.float_info.max / CHUNK]
            total = sum(chunk)
        if total != total:  # NaN is the one float unequal to itself
            chunk = [value for value in chunk if value == value]
            total = sum(chunk)
        if not chunk:
            return
        chunk.sort()
        counts, below = self.counts, 0
        for index, upper in enumerate(self.bounds):
            up_to = bisect_right(chunk, upper, below)
            counts[index] += up_to - below
            below = up_to
        counts[-1] += len(chunk) - below
        self.count += len(chunk)
        self.total += total
        self.minimum = min(self.minimum, chunk[0])
        self.maximum = max(self.maximum, chunk[-1])
        self.changed = True

    def offer(self, exemplar: Exemplar) -> None:
        """Keep an exemplar if it is the slowest recent one of its bucket. Call under the drain lock."""
        if self.wants(exemplar.value, exemplar.time_ns):
            self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def wants(self, value: float, time_ns: int) -> bool:
        """Return whether `offer` would keep an exemplar of this value. It is rare, so callers check before they create one."""
        held = self._held(value, time_ns)
        return held is None or value >= held.value

    def lacks(self, value: float, time_ns: int) -> bool:
        """Return whether the bucket of a value has no recent exemplar."""
        return self._held(value, time_ns) is None

    def _held(self, value: float, time_ns: int) -> Exemplar | None:
        """Return the recent exemplar of the bucket of a value. It is read once: another thread may reset the series meanwhile."""
        held = self.exemplars.get(bisect_left(self.bounds, value))
        return held if held is not None and time_ns - held.time_ns <= EXEMPLAR_SECONDS * 1e9 else None

    def point(self, time_ns: int) -> Point:
        """Return the histogram, cumulative since the series began."""
        value = HistogramValue(
            self.count, float(self.total), float(self.minimum), float(self.maximum), self.bounds, tuple(self.counts)
        )
        return Point(self.instrument, self.labels, self.start_ns, time_ns, value, tuple(self.exemplars.values()))


class BoundCounter(list[float]):
    """One series of a counter: the values that were added and not folded yet. Made by ``verl_otel.counter(...).bind(...)``.

    Adding checks the length of the list and appends to it. ``list.append`` alone would cost an eighth, but without the check a tight loop, or a
    process without a drain thread, would use unlimited memory.

    Example:
        PROMPT = verl_otel.counter("my.tokens", unit="{token}").bind(kind="prompt")
        PROMPT.add(128)
    """

    __slots__ = ("series",)

    series: Counter

    def add(self, value: float) -> None:
        """Add a plain number that is not negative. Never blocks, never raises."""
        if RECORDER.on:
            if len(self) < CHUNK:
                self.append(value)
            else:
                self.series.spill(value)

    def __reduce__(self) -> tuple[Any, ...]:
        from verl_otel.recording.series_registry import bind  # the registry of the process it arrives in

        return bind, (self.series.instrument, self.series.labels)


class Counter(Series):
    """A sum that only grows; negative values are ignored, as OpenTelemetry asks."""

    __slots__ = ("total",)

    buffer: BoundCounter

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        super().__init__(instrument, labels)
        self.buffer = BoundCounter()  # no other thread has it yet
        self.buffer.series = self

    def reset(self) -> None:
        """Discard all measurements."""
        super().reset()
        self.total: float = 0

    def fold(self) -> None:
        """Add the buffer to the sum."""
        values = take(self.buffer)
        if not values:
            return
        try:
            added = _add_up(values)
        except OverflowError:  # an integer among floats that no float can hold
            added = _add_up([number for number in map(to_number, values) if number is not None])
        self.total = fit_64_bits(fit_64_bits(self.total) + fit_64_bits(added))
        self.changed = True

    def point(self, time_ns: int) -> Point:
        """Return the sum since the series began."""
        return Point(self.instrument, self.labels, self.start_ns, time_ns, self.total)


def _add_up(values: list[float]) -> float:
    """Return the sum of the numbers that are not negative. Values of bound counters are not checked when they are added."""
    if not set(map(type, values)) <= _NUMBERS:
        values = [number for number in map(to_number, values) if number is not None]
    total = sum(values)
    if total != total or min(values, default=0) < 0:
        total = sum(value for value in values if value >= 0)
    return total


class Gauge(Series):
    """The last value, with the time at which it was set."""

    __slots__ = ("value",)

    def reset(self) -> None:
        """Discard the value."""
        super().reset()
        self.value: float | None = None

    def record(self, value: float) -> None:
        """Replace the value."""
        self.set(value)

    def set(self, value: float, time_ns: int = 0) -> None:
        """Replace the value. ``time_ns`` 0: now."""
        self.value = value
        self.time_ns = time_ns or time.time_ns()
        self.changed = True

    def fold(self) -> None:
        """Do nothing: a gauge has no buffer."""

    def point(self, time_ns: int) -> Point:  # noqa: ARG002 - a gauge's time is that of its value
        """Return the last value."""
        return Point(
            self.instrument, self.labels, self.start_ns, self.time_ns, 0.0 if self.value is None else self.value
        )
