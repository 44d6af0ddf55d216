# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""All series of this process by name and labels, bounded in number."""

from __future__ import annotations

import math
import re
import string
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import Instrument, Labels, Point, cut
from verl_otel.recording.attribute_values import error_name, to_name
from verl_otel.recording.series import BoundCounter, Counter, FoldLock, Gauge, Histogram, Series
from verl_otel.recording.state import RECORDER
from verl_otel.semconv.attributes import ERROR_TYPE
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES, MAX_LABEL_NAME_BYTES, MAX_LABELS, METRICS
from verl_otel.semconv.spans import OTHER

if TYPE_CHECKING:
    from verl_otel.recording.sampled_timers import SampledTimer

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


MAX_SERIES: Final = 200
"""Series of one metric in one process; further ones share one series with the label values ``other``."""
OVERFLOW: Final[Labels] = (("otel.metric.overflow", "true"),)
"""Labels of the series for measurements with too many sets of label names, as OpenTelemetry defines them."""
MAX_METRICS: Final = 2000
"""Metric names of one process; those of the catalogue do not count."""
MAX_SCALARS: Final = 1000
"""Training scalars of one process."""

CLEAR_SECONDS: Final = 1.0
"""Seconds that `clear` waits for threads that fold."""


class _Registry:
    """All series of this process. ``dict.setdefault`` decides between two threads that create the same one."""

    series: dict[tuple[str, Labels], Series] = {}
    sizes: dict[str, int] = {}
    kinds: dict[str, type[Series]] = {}


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
    return _Registry.series.setdefault(key, series)


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
    deadline = time.monotonic() + CLEAR_SECONDS
    for series in list(_Registry.series.values()):
        if not series.lock.run(series.reset, deadline):
            series.reset()


def _after_fork() -> None:
    for series in list(_Registry.series.values()):
        series.lock = FoldLock()  # a thread of the parent may have held it
    clear()


process_state.register(clear=clear, after_fork=_after_fork)
