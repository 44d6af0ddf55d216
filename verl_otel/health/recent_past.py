# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The last few steps against those before: what suddenly became slower or larger, and whether a series still improves."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from verl_otel.semconv import metric_names

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


# -- Whether a series still improves, counted in steps and not in minutes: a step may take ten seconds or two hours --

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

        It does not depend on the scale of the values, so that one threshold fits every reward. Source: H. B. Mann,
        Nonparametric Tests Against Trend, Econometrica 13 (1945).
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


def find_course(trend: float, count: int, limit: float) -> int:
    """Return 1 for a trend that rises, -1 for one that falls, and 0 for one that noise alone may have.

    Args:
        trend: Kendall's tau.
        count: Number of values.
        limit: The tau of `WINDOW` values from which they rise. Fewer values reach more by chance, in proportion to the standard deviation of the
            tau of random values, the root of ``2 (2n + 5) / 9n (n - 1)``. Source: M. G. Kendall, Biometrika 30 (1938).
    """
    spread, usual = ((2 * n + 5) / (n * (n - 1)) for n in (count, WINDOW))
    scaled = limit * math.sqrt(spread / usual)
    return (trend >= scaled) - (trend <= -scaled)


def find_jump(values: Sequence[float]) -> int | None:
    """Return the place of the first value after a series jumped; None where it moved over many values, or did not move.

    It is where two constants fit best, by least squares, if the values next to it on either side, five or a quarter of a short series, differ
    by most of what the constants differ by.
    """
    sums = [0.0, *itertools.accumulate(values)]
    count = len(values)

    def difference(place: int) -> float:
        return (sums[count] - sums[place]) / (count - place) - sums[place] / place

    if count < 3:  # noqa: PLR2004 - two values are both a line and a jump
        return None
    jump = max(range(1, count), key=lambda place: difference(place) ** 2 * place * (count - place))
    size = max(1, min(SMOOTHED, count // 4))
    near = fmean(values[jump : jump + size]) - fmean(values[max(0, jump - size) : jump])
    whole = difference(jump)
    return jump if whole and near / whole > _JUMP else None


_JUMP: Final = 0.8
"""Of a straight line it is two thirds of three values, and half or less of more."""


# -- Both, of the steps of a run, as metrics --


class Followed(NamedTuple):
    """A value of a metric of progress or change."""

    metric: str
    name: str
    """What it is about, such as ``reward``."""
    value: float


class StepFollower:
    """Follows values of the steps of one run by their names: progress of those that should rise, sudden changes of the others."""

    def __init__(self) -> None:
        self._progress: dict[str, LearningProgress] = {}
        self._past: dict[str, RecentPast] = {}

    def follow_progress(self, step: int, values: Mapping[str, float]) -> list[Followed]:
        """Add values of a step; see `LearningProgress`."""
        found: list[tuple[str, str, float | None]] = []
        for name, value in values.items():
            progress = self._progress.setdefault(name, LearningProgress())
            progress.add(step, value)
            found.append((metric_names.TRAINING_STEPS_SINCE_BEST, name, progress.count_since_best(step)))
            found.append((metric_names.TRAINING_TREND, name, progress.find_trend()))
        return [Followed(metric, name, value) for metric, name, value in found if value is not None]

    def follow_changes(self, seconds: Mapping[str, float], sizes: Mapping[str, float] = {}) -> list[Followed]:
        """Add values of a step; see `RecentPast`.

        Args:
            seconds: Durations; see `MIN_SECONDS`.
            sizes: Values of which a single one may be too large.
        """
        for name, value in seconds.items():
            self._past.setdefault(name, RecentPast()).add(max(value, MIN_SECONDS))  # NaN stays NaN
        for name, value in sizes.items():
            self._past.setdefault(name, RecentPast(largest=True)).add(value)
        ratios = {name: self._past[name].find_ratio() for name in (*seconds, *sizes)}
        return [
            Followed(metric_names.TRAINING_CHANGE, name, ratio) for name, ratio in ratios.items() if ratio is not None
        ]
