# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Downsampling of hardware metrics in files: one value a minute, so that a week of them does not rotate the training's own metrics out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from verl_otel.model import Batch, Labels, Point

SECONDS: Final = 60.0
"""Seconds between two values of one series. One collection of a node with eight GPUs has 43 kB."""


class Downsampler:
    """Selects the points that are written."""

    def __init__(self) -> None:
        self._hardware: frozenset[str] = frozenset()
        """Names of the metrics that are downsampled."""
        self._waiting: dict[tuple[str, Labels], Point] = {}
        self._written: dict[tuple[str, Labels], float] = {}
        """Time of the last write (`time.monotonic`) by series."""
        self._seconds = SECONDS

    def add_metrics(self, batch: Batch) -> None:
        """Downsample the metrics that a batch has as a whole: those of the hardware."""
        self._hardware |= batch.asked

    def select(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to write: the latest of each hardware series once a minute, and all others.

        Args:
            points: The changed points, oldest first.
        """
        if not self._hardware:
            return list(points)
        now = time.monotonic()
        self._waiting |= {
            (point.instrument.name, point.labels): point for point in points if point.instrument.name in self._hardware
        }
        self._written = {key: at for key, at in self._written.items() if now - at < self._seconds}
        due = [key for key in self._waiting if key not in self._written]
        self._written |= dict.fromkeys(due, now)
        return [
            *(point for point in points if point.instrument.name not in self._hardware),
            *(self._waiting.pop(key) for key in due),
        ]

    def release(self) -> None:
        """Let the next `select` return all waiting points: the exporter closes."""
        self._seconds = 0.0
