# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a series still improves, counted in steps and not in minutes: a step may take ten seconds or two hours."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

WINDOW: Final = 20
"""Number of values of the trend."""
MIN_VALUES: Final = 8
"""Minimum number of values of the trend: seven random values are monotonic in one of 2,520 cases."""
SMOOTHED: Final = 5
"""Number of values whose mean is compared with the best, so that a single good batch does not count."""


class LearningProgress:
    """The last values and the best mean of a series that should rise."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._best = float("-inf")
        self._best_step = 0

    def add(self, step: int, value: float) -> None:
        """Add the value of a step. Values that are not finite are ignored."""
        if not math.isfinite(value):
            return
        self._values.append(value)
        if len(self._values) >= SMOOTHED:
            mean = sum(list(self._values)[-SMOOTHED:]) / SMOOTHED
            if mean > self._best:
                self._best, self._best_step = mean, step

    def count_since_best(self, step: int) -> int | None:
        """Return the steps since the mean of the last five values was highest; None before there are five."""
        return step - self._best_step if len(self._values) >= SMOOTHED else None

    def find_trend(self) -> float | None:
        """Return Kendall's tau of the last twenty values against time, from -1 (falling) to 1 (rising); None for too few values.

        It does not depend on the scale of the values, so that one threshold fits every reward. Source: H. B. Mann, Nonparametric Tests Against Trend,
        Econometrica 13 (1945).
        """
        return measure_trend(self._values) if len(self._values) >= MIN_VALUES else None


def measure_trend(values: Sequence[float]) -> float:
    """Return the number of rising pairs minus that of falling pairs, as a share of all pairs.

    Example:
        measure_trend([1.0, 2.0, 3.0]) == 1.0
    """
    ordered = list(values)
    balance = sum((late > early) - (late < early) for index, late in enumerate(ordered) for early in ordered[:index])
    return 2 * balance / (len(ordered) * (len(ordered) - 1))
