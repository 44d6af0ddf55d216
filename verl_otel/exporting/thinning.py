# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What files hold of hardware: one value a minute, so that a week of it does not push the training's own metrics out of rotated files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from verl_otel.model import Batch, Labels, Point

SECONDS: Final = 60.0
"""Seconds between two values of one series. A node with eight GPUs has 43 kB of them a collection."""


class Thinning:
    """Chooses which points are written."""

    def __init__(self) -> None:
        self._asked: frozenset[str] = frozenset()
        self._waiting: dict[tuple[str, Labels], Point] = {}
        self._written: dict[tuple[str, Labels], float] = {}
        self._seconds = SECONDS

    def note(self, batch: Batch) -> None:
        """Take note of the metrics that are read as a whole at each collection: those of the hardware."""
        self._asked |= batch.asked

    def choose(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to be written: of each series of hardware the latest when its minute is over, all others at once.

        Args:
            points: What has changed, oldest first.
        """
        if not self._asked:
            return list(points)
        now = time.monotonic()
        self._waiting |= {
            (point.instrument.name, point.labels): point for point in points if point.instrument.name in self._asked
        }
        self._written = {key: at for key, at in self._written.items() if now - at < self._seconds}
        due = [key for key in self._waiting if key not in self._written]
        self._written |= dict.fromkeys(due, now)
        return [
            *(point for point in points if point.instrument.name not in self._asked),
            *(self._waiting.pop(key) for key in due),
        ]

    def end(self) -> None:
        """Have all that waits written with the next points: they are the last."""
        self._seconds = 0.0
