# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The folded state: the latest point of every series, with a version for each, so that every reader has a cursor of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from verl_otel.model import Labels, Point


class State:
    """The latest point of every series of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[tuple[str, Labels], tuple[int, Point]] = {}
        self._version = 0

    def update(self, points: Iterable[Point]) -> None:
        """Take newer points."""
        with self._lock:
            self._version += 1
            for point in points:
                self._points[(point.instrument.name, point.labels)] = (self._version, point)

    def read(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return the present version and the points that changed after ``since`` (0: all of them)."""
        with self._lock:
            return self._version, [point for version, point in self._points.values() if version > since]
