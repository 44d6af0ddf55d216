# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The folded state: the latest point of every series, with a version for each, so that every reader has a cursor of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from verl_otel.model import Labels, Point

MAX_HISTORY: Final = 5_000
"""Values of gauges that are remembered beside the latest: those of several steps, should they end between two reads."""


class State:
    """The latest point of every series of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[tuple[str, Labels], tuple[int, Point]] = {}
        self._history: deque[tuple[int, Point]] = deque(maxlen=MAX_HISTORY)
        self._version = 0

    def update(self, points: Iterable[Point], asked: Collection[str] = ()) -> None:
        """Take newer points.

        Args:
            points: What has changed.
            asked: Metrics that are in ``points`` as a whole. A series of them that is not there is gone, such as that of a GPU that
                fell off its bus: nobody is to read its last value for ever.
        """
        with self._lock:
            self._version += 1
            points = list(points)
            if asked:
                there = {(point.instrument.name, point.labels) for point in points}
                for key in [key for key in self._points if key[0] in asked and key not in there]:
                    del self._points[key]
            for point in points:
                self._points[(point.instrument.name, point.labels)] = (self._version, point)
                if point.instrument.kind == "gauge":
                    self._history.append((self._version, point))

    def read(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return the present version and the points that changed after ``since`` (0: all of them)."""
        with self._lock:
            return self._version, [point for version, point in self._points.values() if version > since]

    def read_history(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return what `read` does, and before it the values of gauges that were replaced after ``since``, oldest first.

        A later value of a gauge does not hold the earlier ones, unlike that of a counter or histogram.
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
