# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The last few steps against those before, counted in steps: what became slower, or larger, all of a sudden."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

RECENT: Final = 3
"""Number of last values: one slow step alone does not move their median."""
BEFORE: Final = 20
"""Number of values before them."""
MIN_SECONDS: Final = 0.1
"""Shorter durations count as this: twice as much of a millisecond is noise, and delays no step."""
MIN_BEFORE: Final = 8
"""Minimum number of values before them; fewer are no example of what is usual."""


class RecentPast:
    """The last values of a series that has no sign, such as a duration.

    Args:
        largest: Compare the largest of the last values instead of their median, to find a single one that is too large.
    """

    def __init__(self, *, largest: bool = False) -> None:
        self._values: deque[float] = deque(maxlen=BEFORE + RECENT)
        self._summarize = max if largest else median

    def add(self, value: float) -> None:
        """Add the size of the value of a step. Values that are not finite are ignored."""
        if math.isfinite(value):
            self._values.append(abs(value))

    def find_ratio(self) -> float | None:
        """Return the last three values as a multiple of the median of the twenty before; None for too few values, or where those are 0."""
        values = list(self._values)
        before = values[:-RECENT]
        if len(before) < MIN_BEFORE:
            return None
        usual = median(before)
        return self._summarize(values[-RECENT:]) / usual if usual > 0 else None


class RecentChanges:
    """The last values of several series, by their names."""

    def __init__(self) -> None:
        self._past: dict[str, RecentPast] = {}

    def add_seconds(self, name: str, seconds: float) -> float | None:
        """Add a duration and return its ratio; see `RecentPast` and `MIN_SECONDS`."""
        return self.add(name, max(seconds, MIN_SECONDS))  # NaN stays NaN

    def add(self, name: str, value: float, *, largest: bool = False) -> float | None:
        """Add a value of a series and return its ratio; see `RecentPast`."""
        past = self._past.get(name)
        if past is None:
            past = self._past[name] = RecentPast(largest=largest)
        past.add(value)
        return past.find_ratio()
