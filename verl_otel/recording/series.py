# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Series: buffers of measurements and their aggregated state, and the registry of all series of this process, bounded in number.

A caller only appends to a list. Folding aggregates whole chunks: sorting 1,000 floats and cutting them at the bounds costs 40 ns a value,
less than aggregating each one (see docs/explanation/decisions/0003-append-measurements-and-aggregate-later.md). The lock of the series
serialises folding; callers only try it: another thread may be suspended while it folds, and a signal handler, a garbage collector callback
or a ``__del__`` may record while its own thread folds.
"""

from __future__ import annotations

import math
import re
import string
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import Exemplar, HistogramValue, Instrument, Labels, Point, Values, cut, fit_64_bits
from verl_otel.recording.attribute_values import error_name, to_name, to_number
from verl_otel.recording.state import RECORDER, take
from verl_otel.semconv.attributes import ERROR_TYPE
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES, MAX_LABEL_NAME_BYTES, MAX_LABELS, METRICS
from verl_otel.semconv.spans import OTHER

if TYPE_CHECKING:
    from verl_otel.recording.sampled_timers import SampledTimer

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
_EXEMPLAR_NS: Final = EXEMPLAR_SECONDS * 1e9


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
        # found again in the registry of the process it arrives in
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
        kept = _Registry.values
        if kept is not None and len(kept) < MAX_KEPT:
            kept.append(Values(self.instrument, self.labels, tuple(chunk), self.bounds))
        self.minimum = min(self.minimum, chunk[0])
        self.maximum = max(self.maximum, chunk[-1])
        self.changed = True

    def offer(self, exemplar: Exemplar) -> None:
        """Keep an exemplar if it is the slowest recent one of its bucket. Call under the drain lock."""
        if self.wants(exemplar.value, exemplar.time_ns):
            self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def wants(self, value: float, time_ns: int) -> bool:
        """Return whether `offer` would keep an exemplar of this value. It is rare, so callers check before they create one."""
        held = self.exemplars.get(bisect_left(self.bounds, value))
        return held is None or value >= held.value or time_ns - held.time_ns > _EXEMPLAR_NS

    def lacks(self, value: float, time_ns: int) -> bool:
        """Return whether the bucket of a value has no recent exemplar."""
        held = self.exemplars.get(bisect_left(self.bounds, value))
        return held is None or time_ns - held.time_ns > _EXEMPLAR_NS

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


# -- Limits of labels. Prometheus rejects the whole scrape of a process for one label that is too long, and for one series with too many labels. The
# limits here are below those of the scrape jobs that verl-otel ships (``label_value_length_limit: 512``, ``label_limit: 40``; see
# ``collector/prometheus.yml``) --

_LETTERS: Final = string.ascii_letters
_RESERVED: Final = re.compile("[^A-Za-z0-9]{2}")
"""Begin of a name that Prometheus reserves: each of the two characters becomes an underscore."""
_SHORT: Final = MAX_LABEL_NAME_BYTES // 4
"""Characters up to which a text is within all limits: a character has four bytes at most."""


def bound_labels(labels: Labels) -> Labels:
    """Return labels within the limits, the same object if they are. Long texts are truncated, labels beyond the limit left out."""
    if len(labels) <= MAX_LABELS:
        for name, value in labels:
            if len(name) > _SHORT or len(value) > _SHORT or name[:1] not in _LETTERS:
                break
        else:
            return labels
    bounded = tuple((_bound_name(name), cut(value, MAX_LABEL_BYTES)) for name, value in labels[:MAX_LABELS])
    return labels if bounded == labels else bounded


def make_labels(given: dict[str, Any]) -> Labels:
    """Return labels from keyword arguments, as text and sorted by name. Never raises."""
    pairs = [(to_name(name), to_name(value)) for name, value in given.items()]
    if len(pairs) > 1:
        pairs.sort()
    return tuple(pairs)


def bound_point(point: Point) -> Point:
    """Return a point with labels within the limits, the same object if they are."""
    labels = bound_labels(point.labels)
    return point if labels is point.labels else point._replace(labels=labels)


def _bound_name(name: str) -> str:
    """Return the name of a label. Names that begin with two underscores are reserved by Prometheus."""
    return cut(f"label{name}" if _RESERVED.match(name) else name, MAX_LABEL_NAME_BYTES)


# -- The registry: all series of this process by name and labels --

MAX_SERIES: Final = 200
"""Series of one metric in one process; further ones share one series with the label values ``other``."""
OVERFLOW: Final[Labels] = (("otel.metric.overflow", "true"),)
"""Labels of the series for measurements with too many sets of label names, as OpenTelemetry defines them."""
MAX_METRICS: Final = 2000
"""Metric names of one process; those of the catalogue do not count."""
MAX_SCALARS: Final = 1000
"""Training scalars of one process."""
MAX_KEPT: Final = 10_000
"""Chunks of values that are kept for a drain; reached only if nothing drains."""

CLEAR_SECONDS: Final = 1.0
"""Seconds that `clear` waits for threads that fold."""


class _Registry:
    """All series of this process. ``dict.setdefault`` decides between two threads that create the same one."""

    series: dict[tuple[str, Labels], Series] = {}
    sizes: dict[str, int] = {}
    kinds: dict[str, type[Series]] = {}
    own_gauges: list[Gauge] = []
    """Gauges of the user, those without labels."""
    values: list[Values] | None = None
    """Values of histograms since the last drain; None where no exporter needs them."""


def keep_values(*, on: bool) -> None:
    """Begin to keep the values of histograms for `take_values`, or stop: an exporter needs them, or none does."""
    _Registry.values = [] if on else None


def take_values() -> list[Values]:
    """Return the values that were folded since the last call. Call under the drain lock."""
    return take(_Registry.values) if _Registry.values else []


def find(kind: type[Series], instrument: Instrument, labels: Labels, bounds: tuple[float, ...] = ()) -> Series:
    """Return the series of these labels, created at the first call; that with the values ``other`` if there are too many."""
    key = (instrument.name, labels)
    existing = _Registry.series.get(key)
    if existing is not None:
        return existing
    bounded = bound_labels(labels)
    if bounded is not labels:
        return find(kind, instrument, bounded, bounds)
    size = _Registry.sizes.get(instrument.name, 0)
    if labels and size >= MAX_SERIES:
        labels = tuple((name, OTHER) for name, _ in labels)
        key = (instrument.name, labels)
        if key not in _Registry.series and size >= 2 * MAX_SERIES - 1:  # too many sets of label names
            key = (instrument.name, OVERFLOW)
        if key in _Registry.series:
            return _Registry.series[key]
    labels = key[1]
    series = Histogram(instrument, labels, bounds) if kind is Histogram else kind(instrument, labels)
    if claim(instrument.name, kind) is not kind:
        return series  # the name has another kind, or there are too many names: this series is never exported
    _Registry.sizes[instrument.name] = _Registry.sizes.get(instrument.name, 0) + 1
    kept = _Registry.series.setdefault(key, series)
    if kept is series and isinstance(series, Gauge) and not labels and instrument.name not in METRICS:
        _Registry.own_gauges.append(series)
    return kept


def take_own_gauges(begin_ns: int, end_ns: int) -> list[tuple[Gauge, float]]:
    """Return the user's gauges without labels that were set in a time, and their values, which the next drain leaves out.

    Times are Unix nanoseconds.
    """
    found = []
    for each in list(_Registry.own_gauges):
        if begin_ns <= each.time_ns <= end_ns:
            each.changed = False  # before the value is read: another thread may set it meanwhile
            found.append((each, each.value))
    return [(each, value) for each, value in found if value is not None]


def bind(instrument: Instrument, labels: Labels) -> BoundCounter:
    """Return the buffer of a counter; one that is never exported if the name belongs to another kind."""
    series = find(Counter, instrument, labels)
    return series.buffer if isinstance(series, Counter) else Counter(instrument, labels).buffer


INSTRUMENTS: Final = {row.name: Instrument(row.name, row.kind, row.unit, row.description) for row in METRICS.values()}
"""The instruments of the catalogue by name."""


def histogram(name: str, labels: Labels = ()) -> Histogram:
    """Return a histogram of the catalogue."""
    series = _Registry.series.get((name, labels)) or find(Histogram, INSTRUMENTS[name], labels, METRICS[name].bounds)
    assert isinstance(series, Histogram)  # noqa: S101 - the catalogue says so
    return series


def counter(name: str, labels: Labels = ()) -> Counter:
    """Return a counter of the catalogue."""
    series = _Registry.series.get((name, labels)) or find(Counter, INSTRUMENTS[name], labels)
    assert isinstance(series, Counter)  # noqa: S101 - the catalogue says so
    return series


def gauge(name: str, labels: Labels = ()) -> Gauge:
    """Return a gauge of the catalogue."""
    series = _Registry.series.get((name, labels)) or find(Gauge, INSTRUMENTS[name], labels)
    assert isinstance(series, Gauge)  # noqa: S101 - the catalogue says so
    return series


def record_failure(series: Histogram | SampledTimer, seconds: float, error: BaseException) -> None:
    """Record a duration that ended with an exception, in the series of its ``error.type``."""
    if not isinstance(series, Histogram):
        series.fail(seconds, error)
    elif RECORDER.on and isinstance(error, GeneratorExit):  # the consumer closed the generator: no failure
        series.record(seconds)
    elif RECORDER.on:
        labels = (*series.labels, (ERROR_TYPE, error_name(error)))
        find(Histogram, series.instrument, labels, series.bounds).record(seconds)


def fold_all(wait: float = -1) -> list[Point]:
    """Fold every buffer and return the points that changed since the last call. Call under the drain lock.

    Args:
        wait: Seconds to wait in all for callers that fold; 0 to only try, -1 to wait without limit. Buffers that are not folded stay.
    """
    now = time.time_ns()
    deadline = time.monotonic() + wait if wait >= 0 else math.inf
    points: list[Point] = []
    for series in list(_Registry.series.values()):
        series.lock.run(partial(_fold, series, now, points), deadline)
    return points


def _fold(series: Series, now: int, points: list[Point]) -> None:
    """Fold one buffer, and append the point if it changed. Call under the lock of the series."""
    try:
        series.fold()
        if series.changed:
            series.changed = False
            points.append(series.point(now))
    except Exception as error:  # other series are not affected
        error_boundary.record_internal_error("fold", error)


def has_new_values() -> bool:
    """Return whether any series has a value that no drain has taken."""
    return any(series.buffer or series.changed for series in list(_Registry.series.values()))


def claim(name: str, kind: type[Series]) -> type[Series] | None:
    """Return the kind of a metric, which the first caller determines for the life of the process; None if there are too many names."""
    if len(_Registry.kinds) >= MAX_METRICS and name not in METRICS:
        return _Registry.kinds.get(name)
    return _Registry.kinds.setdefault(name, kind)


def exists(name: str) -> bool:
    """Return whether this process has recorded to a metric."""
    return _Registry.sizes.get(name, 0) > 0


def count_values() -> int:
    """Return how many values the histograms of this process have taken."""
    return sum(series.count for series in list(_Registry.series.values()) if isinstance(series, Histogram))


def dropped() -> int:
    """Return how many measurements full buffers have dropped in this process."""
    return sum(sum(list(series.dropped.values())) for series in list(_Registry.series.values()))


def clear() -> None:
    """Discard everything that was measured and keep the series, which wrappers hold. May be called while other threads record.

    Waits for `CLEAR_SECONDS` in all for threads that fold. What one of them adds after that is part of what is measured from now on.
    """
    keep_values(on=False)
    deadline = time.monotonic() + CLEAR_SECONDS
    for series in list(_Registry.series.values()):
        if not series.lock.run(series.reset, deadline):
            series.reset()


def _after_fork() -> None:
    for series in list(_Registry.series.values()):
        series.lock = FoldLock()  # a thread of the parent may have held it
    clear()


process_state.register(clear=clear, after_fork=_after_fork)
