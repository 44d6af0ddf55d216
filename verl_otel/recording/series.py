# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Series: where measurements wait until somebody folds them.

A caller appends to a list and goes on. Folding takes whole chunks: sorting 1,000 floats and cutting them at the bounds
costs 40 ns a value, less than aggregating each one (measured; see docs/decisions/0003-append-buffers.md). Folders are
serialised by one lock that is only ever *tried* by callers: a signal handler, a garbage collector callback or a ``__del__``
may record while its own thread folds.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, bisect_right
from threading import get_ident
from typing import Final

from verl_otel.model import Exemplar, HistogramValue, Instrument, Labels, Point
from verl_otel.recording.store import Store
from verl_otel.recording.values import error_name
from verl_otel.semconv.attributes import ERROR_TYPE
from verl_otel.semconv.metrics import METRICS
from verl_otel.semconv.spans import OTHER

CHUNK: Final = 1000
"""Values in a buffer at which the caller folds them itself, if nobody folds just then."""
CEILING: Final = 8 * CHUNK
"""Values in a buffer beyond which a measurement is dropped and counted."""
MAX_SERIES: Final = 200
"""Series of one metric in one process; what would be more goes to one series with the label value ``other``."""
MAX_SCALARS: Final = 1000
"""Training scalars of one process."""
EXEMPLAR_SECONDS: Final = 30.0
"""How long an exemplar holds its bucket against smaller values: the slowest of the last half minute is shown."""


class _Lock:
    """The fold lock, replaced as a whole in a forked child (its holder does not exist there)."""

    held = threading.Lock()


def fold_lock() -> threading.Lock:
    """Return the lock under which buffers are folded. Try it; wait for it only on a thread of our own."""
    return _Lock.held


class Series:
    """What the three kinds share: who they are, and a buffer bounded by the caller."""

    __slots__ = ("buffer", "changed", "dropped", "instrument", "labels", "start_ns", "time_ns")

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        self.instrument = instrument
        self.labels = labels
        self.buffer: list[float] = []
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
        lock = _Lock.held
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

    def take(self) -> list[float]:
        """Empty the buffer. Both steps are atomic; what is appended in between stays."""
        buffer = self.buffer
        values = buffer[:]
        del buffer[: len(values)]
        return values

    def fold(self) -> None:
        """Add the buffer to the state. Call under the fold lock."""
        raise NotImplementedError

    def point(self, time_ns: int) -> Point:
        """Return the state as of ``time_ns``. Call under the fold lock, after `fold`."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        return find, (type(self), self.instrument, self.labels, getattr(self, "bounds", ()))


class Histogram(Series):
    """A distribution over fixed bounds, with the slowest recent trace of each bucket."""

    __slots__ = ("bounds", "count", "counts", "exemplars", "maximum", "minimum", "total")

    def __init__(self, instrument: Instrument, labels: Labels, bounds: tuple[float, ...]) -> None:
        super().__init__(instrument, labels)
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.minimum = float("inf")
        self.maximum = float("-inf")
        self.exemplars: dict[int, Exemplar] = {}

    def fold(self) -> None:
        """Add the buffer to the buckets, chunk by chunk (one long sort costs eight times as much a value)."""
        values = self.take()
        for begin in range(0, len(values), CHUNK):
            self._fold_chunk(values[begin : begin + CHUNK])

    def _fold_chunk(self, chunk: list[float]) -> None:
        total = sum(chunk)
        if total != total:  # NaN is the one float unequal to itself
            chunk = [value for value in chunk if value == value]
            total = sum(chunk)
        if not chunk:
            return
        chunk.sort()
        counts, below = self.counts, 0
        for index, bound in enumerate(self.bounds):
            up_to = bisect_right(chunk, bound, below)
            counts[index] += up_to - below
            below = up_to
        counts[-1] += len(chunk) - below
        self.count += len(chunk)
        self.total += total
        self.minimum = min(self.minimum, chunk[0])
        self.maximum = max(self.maximum, chunk[-1])
        self.changed = True

    def offer(self, exemplar: Exemplar) -> None:
        """Keep the trace of one measurement if it is the slowest of its bucket lately. Call under the fold lock."""
        bucket = bisect_left(self.bounds, exemplar.value)
        held = self.exemplars.get(bucket)
        if held is None or exemplar.value >= held.value or exemplar.time_ns - held.time_ns > EXEMPLAR_SECONDS * 1e9:
            self.exemplars[bucket] = exemplar

    def point(self, time_ns: int) -> Point:
        """Return the histogram, cumulative since the series began."""
        value = HistogramValue(
            self.count, float(self.total), float(self.minimum), float(self.maximum), self.bounds, tuple(self.counts)
        )
        return Point(self.instrument, self.labels, self.start_ns, time_ns, value, tuple(self.exemplars.values()))


class Counter(Series):
    """A sum that only grows; negative values are ignored, as OpenTelemetry asks."""

    __slots__ = ("total",)

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        super().__init__(instrument, labels)
        self.total: float = 0

    def fold(self) -> None:
        """Add the buffer to the sum."""
        values = self.take()
        if not values:
            return
        total = sum(values)
        if total != total or min(values) < 0:
            total = sum(value for value in values if value >= 0)
        self.total += total
        self.changed = True

    def point(self, time_ns: int) -> Point:
        """Return the sum since the series began."""
        return Point(self.instrument, self.labels, self.start_ns, time_ns, self.total)


class Gauge(Series):
    """The last value, with the time at which it was set."""

    __slots__ = ("value",)

    def __init__(self, instrument: Instrument, labels: Labels) -> None:
        super().__init__(instrument, labels)
        self.value: float | None = None

    def set(self, value: float, time_ns: int = 0) -> None:
        """Replace the value. ``time_ns`` 0: now."""
        self.value = value
        self.time_ns = time_ns or time.time_ns()
        self.changed = True

    def fold(self) -> None:
        """Do nothing: a gauge has no buffer."""

    def point(self, time_ns: int) -> Point:  # noqa: ARG002 - a gauge's time is that of its value
        """Return the last value."""
        return Point(self.instrument, self.labels, self.start_ns, self.time_ns, 0.0 if self.value is None else self.value)


class _Registry:
    """Every series of this process; a dict's ``setdefault`` makes one of two rivals win."""

    series: dict[tuple[str, Labels], Series] = {}
    sizes: dict[str, int] = {}


def find(kind: type[Series], instrument: Instrument, labels: Labels, bounds: tuple[float, ...] = ()) -> Series:
    """Return the series of these labels, made at the first call; ``other`` for all labels once there are too many."""
    key = (instrument.name, labels)
    found = _Registry.series.get(key)
    if found is not None:
        return found
    if labels and _Registry.sizes.get(instrument.name, 0) >= MAX_SERIES:
        labels = tuple((name, OTHER) for name, _ in labels)
        key = (instrument.name, labels)
        if key in _Registry.series:
            return _Registry.series[key]
    made = Histogram(instrument, labels, bounds) if kind is Histogram else kind(instrument, labels)
    _Registry.sizes[instrument.name] = _Registry.sizes.get(instrument.name, 0) + 1
    return _Registry.series.setdefault(key, made)


_INSTRUMENTS: Final = {row.name: Instrument(row.name, row.kind, row.unit, row.description) for row in METRICS.values()}


def histogram(name: str, labels: Labels = ()) -> Histogram:
    """Return a histogram of the catalogue."""
    found = _Registry.series.get((name, labels)) or find(Histogram, _INSTRUMENTS[name], labels, METRICS[name].bounds)
    assert isinstance(found, Histogram)  # noqa: S101 - the catalogue says so
    return found


def counter(name: str, labels: Labels = ()) -> Counter:
    """Return a counter of the catalogue."""
    found = _Registry.series.get((name, labels)) or find(Counter, _INSTRUMENTS[name], labels)
    assert isinstance(found, Counter)  # noqa: S101 - the catalogue says so
    return found


def gauge(name: str, labels: Labels = ()) -> Gauge:
    """Return a gauge of the catalogue."""
    found = _Registry.series.get((name, labels)) or find(Gauge, _INSTRUMENTS[name], labels)
    assert isinstance(found, Gauge)  # noqa: S101 - the catalogue says so
    return found


def record_success(series: Histogram, seconds: float) -> None:
    """Record a duration, unless recording is off."""
    if Store.on:
        series.record(seconds)


def record_failure(series: Histogram, seconds: float, error: BaseException) -> None:
    """Record a duration that ended with an exception, in the series of its ``error.type``."""
    if Store.on:
        labels = (*series.labels, (ERROR_TYPE, error_name(error)))
        find(Histogram, series.instrument, labels, series.bounds).record(seconds)


def fold_all() -> list[Point]:
    """Fold every buffer and return the points that changed since the last time. Call under the fold lock."""
    now = time.time_ns()
    points = []
    for series in list(_Registry.series.values()):
        series.fold()
        if series.changed:
            series.changed = False
            points.append(series.point(now))
    return points


def exists(name: str) -> bool:
    """Return whether this process has recorded to a metric."""
    return _Registry.sizes.get(name, 0) > 0


def dropped() -> int:
    """Return how many measurements full buffers have dropped in this process."""
    return sum(sum(list(series.dropped.values())) for series in list(_Registry.series.values()))


def clear() -> None:
    """Forget everything that was measured, but keep the series: wrappers hold them. For a forked child and tests."""
    _Lock.held = threading.Lock()
    for series in list(_Registry.series.values()):
        fresh = Histogram(series.instrument, series.labels, series.bounds) if isinstance(series, Histogram) else type(series)(series.instrument, series.labels)
        series.buffer.clear()
        for slot in ("count", "counts", "dropped", "exemplars", "maximum", "minimum", "start_ns", "time_ns", "total", "value"):
            if hasattr(fresh, slot):
                setattr(series, slot, getattr(fresh, slot))
        series.changed = False


os.register_at_fork(after_in_child=clear)
