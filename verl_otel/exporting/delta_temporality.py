# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What has happened since the last export, for backends that want it so: differences of the cumulative points, one reader's own.

The differences of a series add up to its cumulative value. A sum of floats that has at most doubled is subtracted without rounding
(P. H. Sterbenz, Floating-Point Computation, 1974), so that the error does not grow with the number of exports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from verl_otel.model import HistogramValue, Labels, Point, to_float

PREFERENCES: Final = ("cumulative", "delta", "lowmemory")
"""Words of ``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE``. Source: OpenTelemetry's specification, "OTLP exporter"."""
_UNKNOWN: Final = (float("inf"), float("-inf"))
"""Minimum and maximum of an interval of which only the whole is known."""


class _Sent(NamedTuple):
    """What the receiver has of one series."""

    start_ns: int
    """Start of the series; another start is a reset."""
    time_ns: int
    """Until when it was sent."""
    total: float
    samples: int = 0
    counts: tuple[int, ...] = ()


class Deltas:
    """Turns cumulative points into differences.

    Counters and histograms become differences, up-down counters and gauges stay what they are. ``lowmemory`` leaves the counters
    that are asked at collection as they are, too: they need no memory that way.

    Args:
        preference: ``delta`` or ``lowmemory``.
        asked: Metrics that have a callback.
    """

    def __init__(self, preference: str, asked: Collection[str] = ()) -> None:
        self._stay = frozenset(asked if preference == "lowmemory" else ())
        self._sent: dict[tuple[str, Labels], _Sent] = {}

    def is_delta(self, point: Point) -> bool:
        """Return whether a point is sent with delta temporality."""
        kind = point.instrument.kind
        return kind == "histogram" or (kind == "counter" and point.instrument.name not in self._stay)

    def convert(self, points: Iterable[Point]) -> list[Point]:
        """Return the points to send and regard them as sent. Series without changes have none."""
        deltas = []
        for point in points:
            delta = self._since(point) if self.is_delta(point) else point
            if delta is not None:
                deltas.append(delta)
        return deltas

    def _since(self, point: Point) -> Point | None:
        key = (point.instrument.name, point.labels)
        value, now, last = point.value, _read(point), self._sent.get(key)
        same = last is not None and last.start_ns == point.start_ns
        begin = last.time_ns if last is not None and same else point.start_ns
        begin = min(begin, point.time_ns)  # the clock may have been set back
        fresh = last is None or not same or _was_reset(last, now)
        if last is None or fresh:
            last = _Sent(point.start_ns, begin, 0, 0, (0,) * len(now.counts))
        difference = _subtract(now.total, last.total)
        self._sent[key] = now
        if isinstance(value, HistogramValue):
            samples = now.samples - last.samples
            if not samples:
                return None
            low, high = (value.minimum, value.maximum) if fresh else _UNKNOWN
            counts = tuple(new - old for new, old in zip(now.counts, last.counts, strict=True))
            value = HistogramValue(samples, difference, low, high, value.bounds, counts)
            exemplars = tuple(exemplar for exemplar in point.exemplars if exemplar.time_ns > begin)
            return point._replace(start_ns=begin, value=value, exemplars=exemplars)
        return point._replace(start_ns=begin, value=difference) if difference or fresh else None


def _read(point: Point) -> _Sent:
    value = point.value
    if isinstance(value, HistogramValue):
        return _Sent(point.start_ns, point.time_ns, value.total, value.samples, value.counts)
    return _Sent(point.start_ns, point.time_ns, value)


def _was_reset(last: _Sent, now: _Sent) -> bool:
    """Return whether a series was reset: it has less than was sent."""
    if now.counts or last.counts:
        return now.samples < last.samples or len(now.counts) != len(last.counts)
    return now.total < last.total


def _subtract(now: float, before: float) -> float:
    """Return a difference; 0 if both values are infinite."""
    if isinstance(now, int) and isinstance(before, int):
        return now - before
    difference = to_float(now) - to_float(before)
    return difference if difference == difference else 0.0
