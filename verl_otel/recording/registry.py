# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every series of this process: found by name and labels, bounded in number, folded together."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from verl_otel import _guard
from verl_otel.model import Instrument, Labels, Point
from verl_otel.recording.series import Counter, Gauge, Histogram, Series
from verl_otel.recording.store import Store
from verl_otel.recording.values import error_name
from verl_otel.semconv.attributes import ERROR_TYPE
from verl_otel.semconv.metrics import METRICS
from verl_otel.semconv.spans import OTHER

if TYPE_CHECKING:
    from verl_otel.recording.leaves import Leaf

MAX_SERIES: Final = 200
"""Series of one metric in one process; what would be more goes to one series with the label value ``other``."""
OVERFLOW: Final[Labels] = (("otel.metric.overflow", "true"),)
"""The labels of what has too many names of labels, too; OpenTelemetry's own."""
MAX_METRICS: Final = 2000
"""Names of metrics in one process; those of the catalogue have room always."""
MAX_SCALARS: Final = 1000
"""Training scalars of one process."""


class _Registry:
    """Every series of this process; a dict's ``setdefault`` makes one of two rivals win."""

    series: dict[tuple[str, Labels], Series] = {}
    sizes: dict[str, int] = {}
    kinds: dict[str, type[Series]] = {}


def find(kind: type[Series], instrument: Instrument, labels: Labels, bounds: tuple[float, ...] = ()) -> Series:
    """Return the series of these labels, made at the first call; ``other`` for all labels once there are too many."""
    key = (instrument.name, labels)
    found = _Registry.series.get(key)
    if found is not None:
        return found
    size = _Registry.sizes.get(instrument.name, 0)
    if labels and size >= MAX_SERIES:
        labels = tuple((name, OTHER) for name, _ in labels)
        key = (instrument.name, labels)
        if key not in _Registry.series and size >= 2 * MAX_SERIES - 1:  # ever new names of labels
            key = (instrument.name, OVERFLOW)
        if key in _Registry.series:
            return _Registry.series[key]
    labels = key[1]
    made = Histogram(instrument, labels, bounds) if kind is Histogram else kind(instrument, labels)
    if claim(instrument.name, kind) is not kind:
        return made  # one name is one kind, and names are bounded: this one is never handed out
    _Registry.sizes[instrument.name] = _Registry.sizes.get(instrument.name, 0) + 1
    return _Registry.series.setdefault(key, made)


INSTRUMENTS: Final = {row.name: Instrument(row.name, row.kind, row.unit, row.description) for row in METRICS.values()}
"""The rows of the catalogue as what a series measures."""


def histogram(name: str, labels: Labels = ()) -> Histogram:
    """Return a histogram of the catalogue."""
    found = _Registry.series.get((name, labels)) or find(Histogram, INSTRUMENTS[name], labels, METRICS[name].bounds)
    assert isinstance(found, Histogram)  # noqa: S101 - the catalogue says so
    return found


def counter(name: str, labels: Labels = ()) -> Counter:
    """Return a counter of the catalogue."""
    found = _Registry.series.get((name, labels)) or find(Counter, INSTRUMENTS[name], labels)
    assert isinstance(found, Counter)  # noqa: S101 - the catalogue says so
    return found


def gauge(name: str, labels: Labels = ()) -> Gauge:
    """Return a gauge of the catalogue."""
    found = _Registry.series.get((name, labels)) or find(Gauge, INSTRUMENTS[name], labels)
    assert isinstance(found, Gauge)  # noqa: S101 - the catalogue says so
    return found


def record_success(series: Histogram | Leaf, seconds: float) -> None:
    """Record a duration, unless recording is off."""
    if Store.on:
        series.record(seconds)


def record_failure(series: Histogram | Leaf, seconds: float, error: BaseException) -> None:
    """Record a duration that ended with an exception, in the series of its ``error.type``."""
    if not isinstance(series, Histogram):
        series.fail(seconds, error)
    elif Store.on and isinstance(error, GeneratorExit):  # its consumer has had enough: nothing failed
        series.record(seconds)
    elif Store.on:
        labels = (*series.labels, (ERROR_TYPE, error_name(error)))
        find(Histogram, series.instrument, labels, series.bounds).record(seconds)


def fold_all(wait: float = -1) -> list[Point]:
    """Fold every buffer and return the points that changed since the last time. Call under the drain lock.

    Args:
        wait: Seconds to wait for a caller who folds; 0 to only try, -1 for as long as it takes. Buffers keep what is not folded.
    """
    now = time.time_ns()
    points = []
    for series in list(_Registry.series.values()):
        lock = series.lock
        if not lock.acquire(timeout=wait):
            continue
        try:
            series.fold()
            if series.changed:
                series.changed = False
                points.append(series.point(now))
        except Exception as error:  # it costs this series what it held, and nobody else anything
            _guard.report("fold", error)
        finally:
            lock.release()
    return points


def claim(name: str, kind: type[Series]) -> type[Series] | None:
    """Return the kind of a metric, for as long as this process lives: the one that asked for it first; None: too many names."""
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
    """Forget everything that was measured, but keep the series: wrappers hold them. For a forked child and tests."""
    for series in list(_Registry.series.values()):
        series.lock = threading.Lock()
    reset()


def reset() -> None:
    """Begin every series anew."""
    for series in list(_Registry.series.values()):
        with series.lock:
            series.reset()


os.register_at_fork(after_in_child=clear)
