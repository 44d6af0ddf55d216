# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the training still improves, counted in steps and not in minutes: a step may take ten seconds or two hours.

Alerts read `verl.training.steps_since_best` and `verl.training.trend`. Both have no value before a minimum number of steps, and start again in
a resumed process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel.integrations.api import INSTRUMENTS, counter, gauge, to_number
from verl_otel.model import Point
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

WINDOW: Final = 20
"""Number of values of the trend."""
MIN_VALUES: Final = 8
"""Minimum number of values of the trend: seven random values are monotonic in one of 2,520 cases."""
SMOOTHED: Final = 5
"""Number of values whose mean is compared with the best, so that a single good batch does not count."""
_KEYS: Final = {"critic/rewards/mean": "reward", "critic/score/mean": "score"}
_VALIDATION: Final = "val-core/"
_SINCE_BEST: Final = INSTRUMENTS[metric_names.TRAINING_STEPS_SINCE_BEST]
_TREND: Final = INSTRUMENTS[metric_names.TRAINING_TREND]


class LearningProgress:
    """The last values and the best mean of a series that should rise."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._best = float("-inf")
        self._best_step = 0

    def add(self, step: int, value: float) -> None:
        """Add the value of a step. Values that are not finite are ignored."""
        if value != value or value in (float("inf"), float("-inf")):
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


class _Run:
    """State of the run in this process."""

    progress: dict[str, LearningProgress] = {}
    has_begun = False


def begin_run(limits: Mapping[str, Any]) -> None:
    """Reset the state, and record the configured limits of the run.

    Args:
        limits: Configured limits by name; values that are not numbers, or negative (disabled), are ignored.
    """
    _Run.progress = {}
    _Run.has_begun = False
    counter(metric_names.TRAINING_RESUMES).record(0)  # so that a rate sees the 1 that may follow
    for name, raw in limits.items():
        value = to_number(raw)
        if value is not None and value >= 0:
            gauge(metric_names.LIMIT, ((attr.LIMIT, name),)).set(value)


def follow(data: Mapping[str, Any], step: Any, now: int) -> Iterable[Point]:
    """Add the scalars of one ``Tracking.log`` and return the points of the progress metrics.

    Args:
        data: Scalars by verl's key. The mean of several ``val-core`` scores counts as one.
        step: Number of the step.
        now: Unix time in nanoseconds.
    """
    number = to_number(step)
    if number is None:
        return
    number = int(number)
    if not _Run.has_begun and number > 0:  # 0: the validation before the training
        _Run.has_begun = True
        if number > 1:
            counter(metric_names.TRAINING_RESUMES).record(1)
    for name, value in _read(data).items():
        progress = _Run.progress.setdefault(name, LearningProgress())
        progress.add(number, value)
        labels = ((attr.METRIC, name),)
        steps_since_best, trend = progress.count_since_best(number), progress.find_trend()
        if steps_since_best is not None:
            yield Point(_SINCE_BEST, labels, now, now, steps_since_best)
        if trend is not None:
            yield Point(_TREND, labels, now, now, trend)


def _read(data: Mapping[str, Any]) -> dict[str, float]:
    values = {}
    for key, name in _KEYS.items():
        value = to_number(data.get(key))
        if value is not None:
            values[name] = float(value)
    scores = [to_number(value) for key, value in data.items() if str(key).startswith(_VALIDATION)]
    numbers = [float(score) for score in scores if score is not None]
    if numbers:
        values["val"] = sum(numbers) / len(numbers)
    return values
