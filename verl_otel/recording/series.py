# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Series: where measurements wait until somebody folds them.

A caller appends to a list and goes on. Folding takes whole chunks: sorting 1,000 floats and cutting them at the bounds
costs 40 ns a value, less than aggregating each one (measured; see docs/decisions/0003-append-buffers.md). Folders are
serialised by the series' lock, which is only ever *tried* by callers: a signal handler, a garbage collector callback or a ``__del__``
may record while its own thread folds.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left, bisect_right
from threading import get_ident
from typing import Final

from verl_otel.model import Exemplar, HistogramValue, Instrument, Labels, Point, in_64_bits, to_float
from verl_otel.recording import bound
from verl_otel.recording.store import take
from verl_otel.recording.values import to_number

CHUNK: Final = bound.CHUNK
"""Values in a buffer at which the caller folds them itself, if nobody folds just then."""
CEILING: Final = 8 * CHUNK
"""Values in a buffer beyond which a measurement is dropped and counted."""
_NUMBERS: Final = frozenset({int, float})
EXEMPLAR_SECONDS: Final = 30.0
"""How long an exemplar holds its bucket against smaller values: the slowest of the last half minute is shown."""


class Series:
    """What the three kinds share: who they are, and a buffer bounded by the caller."""

    __slots__ = ("buffer", "changed", "dropped", "instrument", "labels", "lock", "start_ns", "time_ns")

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        self.instrument = instrument
        self.labels = labels
        self.buffer: list[float] = []
        self.lock = threading.Lock()
        """Held while the buffer is folded. Callers only try it; a thread of ours may wait for it. New in a forked child: its holder
        does not exist there."""
        self.reset()

    def reset(self) -> None:
        """Forget every measurement; wrappers go on holding the series."""
        self.buffer.clear()
        self.dropped: dict[int, int] = {}
        self.start_ns = time.time_ns()
        self.time_ns = self.start_ns
        self.changed = False
        """Whether it changed since it was last handed out."""

    def record(self, value: float) -> None:
        """Take one measurement. Never blocks, never raises."""
        buffer = self.buffer
        if len(buffer) < CHUNK:
            buffer.append(value)
        else:
            self.spill(value)

    def spill(self, value: float) -> None:
        """Take one measurement although the buffer is full: fold it, or let it grow, or drop the value."""
        buffer = self.buffer
        lock = self.lock
        if lock.acquire(blocking=False):
            try:
                self.fold()
            finally:
                lock.release()
            buffer.append(value)
        elif len(buffer) < CEILING:
            buffer.append(value)
        else:
            # One key per thread: an unlocked ``+= 1`` shared by threads would lose counts.
            thread = get_ident()
            self.dropped[thread] = self.dropped.get(thread, 0) + 1

    def fold(self) -> None:
        """Add the buffer to the state. Call under its lock."""
        raise NotImplementedError

    def point(self, time_ns: int) -> Point:
        """Return the state as of ``time_ns``. Call under its lock, after `fold`."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        from verl_otel.recording.registry import find  # the registry of the process it arrives in

        return find, (type(self), self.instrument, self.labels, getattr(self, "bounds", ()))


class Histogram(Series):
    """A distribution over fixed bounds, with the slowest recent trace of each bucket."""

    __slots__ = ("bounds", "count", "counts", "exemplars", "maximum", "minimum", "total")

    def __init__(self, instrument: Instrument, labels: Labels, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        super().__init__(instrument, labels)

    def reset(self) -> None:
        """Forget every measurement."""
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
        """Keep the trace of one measurement if it is the slowest of its bucket lately. Call under the drain lock."""
        if self.wants(exemplar.value, exemplar.time_ns):
            self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def wants(self, value: float, time_ns: int) -> bool:
        """Return whether a measurement is the slowest of its bucket lately: most are not, and an exemplar need not be made."""
        return self.lacks(value, time_ns) or value >= self.exemplars[bisect_left(self.bounds, value)].value

    def lacks(self, value: float, time_ns: int) -> bool:
        """Return whether the bucket of a measurement shows no trace, or none of lately."""
        held = self.exemplars.get(bisect_left(self.bounds, value))
        return held is None or time_ns - held.time_ns > EXEMPLAR_SECONDS * 1e9

    def point(self, time_ns: int) -> Point:
        """Return the histogram, cumulative since the series began."""
        value = HistogramValue(
            self.count, float(self.total), float(self.minimum), float(self.maximum), self.bounds, tuple(self.counts)
        )
        return Point(self.instrument, self.labels, self.start_ns, time_ns, value, tuple(self.exemplars.values()))


class Counter(Series):
    """A sum that only grows; negative values are ignored, as OpenTelemetry asks."""

    __slots__ = ("total",)

    buffer: bound.Buffer

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        super().__init__(instrument, labels)
        self.buffer = bound.Buffer()  # nobody else has it yet
        self.buffer.series = self

    def reset(self) -> None:
        """Forget every measurement."""
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
        self.total = _fit(_fit(self.total) + _fit(added))
        self.changed = True

    def point(self, time_ns: int) -> Point:
        """Return the sum since the series began."""
        return Point(self.instrument, self.labels, self.start_ns, time_ns, self.total)


def _add_up(values: list[float]) -> float:
    """Return the sum of what are numbers and not negative. Values of bound counters are what they were given."""
    if not set(map(type, values)) <= _NUMBERS:
        values = [number for number in map(to_number, values) if number is not None]
    total = sum(values)
    if total != total or min(values, default=0) < 0:
        total = sum(value for value in values if value >= 0)
    return total


def _fit(number: float) -> float:
    """Return a number that may be exported: an integer beyond 64 bits becomes a float, infinite beyond all floats."""
    return number if not isinstance(number, int) or in_64_bits(number) else to_float(number)


class Gauge(Series):
    """The last value, with the time at which it was set."""

    __slots__ = ("value",)

    def reset(self) -> None:
        """Forget the value."""
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
