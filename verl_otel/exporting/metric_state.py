# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Metric state: the latest point of every series with a version, so that each exporter reads from its own cursor."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from verl_otel.model import Labels, Point

MAX_HISTORY: Final = 5_000
"""Replaced gauge values that are held: several steps may end between two reads."""


class MetricState:
    """The latest point of every series of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[tuple[str, Labels], tuple[int, Point]] = {}
        self._history: deque[tuple[int, Point]] = deque(maxlen=MAX_HISTORY)
        self._version = 0

    def update(self, points: Iterable[Point], asked: Collection[str] = ()) -> None:
        """Update the state.

        Args:
            points: The changed points.
            asked: Metrics of which ``points`` has every series. Other series of them are removed, such as those of a GPU that is lost:
                its last value must not be exported any more.
        """
        with self._lock:
            self._version += 1
            points = list(points)
            if asked:
                current = {(point.instrument.name, point.labels) for point in points}
                for key in [key for key in self._points if key[0] in asked and key not in current]:
                    del self._points[key]
            for point in points:
                self._points[(point.instrument.name, point.labels)] = (self._version, point)
                if point.instrument.kind == "gauge":
                    self._history.append((self._version, point))

    def read(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return the current version and the points that changed after version ``since`` (0: all points)."""
        with self._lock:
            return self._version, [point for version, point in self._points.values() if version > since]

    def read_history(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return the result of `read`, preceded by the gauge values that were replaced after ``since``, oldest first.

        A later value of a gauge does not include the earlier ones, unlike that of a counter or histogram.
        """
        with self._lock:
            newer: deque[Point] = deque()
            for version, point in reversed(self._history):
                if version <= since:
                    break
                latest = self._points.get((point.instrument.name, point.labels))
                if latest is None or latest[1] is not point:
                    newer.appendleft(point)
            newer.extend(point for version, point in self._points.values() if version > since)
            return self._version, list(newer)
