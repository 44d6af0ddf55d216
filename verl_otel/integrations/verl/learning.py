# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the training still learns, counted in steps and not in minutes: a step takes ten seconds here and two hours there.

Alerts read `verl.training.steps_since_best` and `verl.training.trend`. Both say nothing of a run that has made too few steps to tell,
and begin anew with a resumed process, which knows nothing of the steps before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel.model import Point
from verl_otel.recording import registry
from verl_otel.recording.registry import INSTRUMENTS
from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr

WINDOW: Final = 20
"""Values of which the trend is made."""
ENOUGH: Final = 8
"""Values below which there is no trend: by chance alone, seven values of noise rise or fall throughout every 2,520th time."""
SMOOTHED: Final = 5
"""Values whose mean is compared with the best: one lucky batch is no progress, and must not make the next twenty look like none."""
_KEYS: Final = {"critic/rewards/mean": "reward", "critic/score/mean": "score"}
_VALIDATION: Final = "val-core/"
_SINCE_BEST: Final = INSTRUMENTS["verl.training.steps_since_best"]
_TREND: Final = INSTRUMENTS["verl.training.trend"]


class Course:
    """One curve that should rise: its last values, and its best."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._best = float("-inf")
        self._best_step = 0

    def add(self, step: int, value: float) -> None:
        """Take the value of a step. Values that are no finite number are left out."""
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
        """Return Kendall's tau of the last twenty values against time: 1 rises throughout, -1 falls, 0 does neither; None for too few.

        It needs no scale, so that one threshold fits every reward. Source: H. B. Mann, Nonparametric Tests Against Trend,
        Econometrica 13 (1945).
        """
        return measure_trend(self._values) if len(self._values) >= ENOUGH else None


def measure_trend(values: Sequence[float]) -> float:
    """Return the pairs of values that rise less those that fall, as a share of all pairs.

    Example:
        measure_trend([1.0, 2.0, 3.0]) == 1.0
    """
    ordered = list(values)
    balance = sum((late > early) - (late < early) for index, late in enumerate(ordered) for early in ordered[:index])
    return 2 * balance / (len(ordered) * (len(ordered) - 1))


class _Run:
    """What this process has seen of the run that it trains."""

    courses: dict[str, Course] = {}
    began = False


def begin_run(limits: Mapping[str, Any]) -> None:
    """Begin anew, and say the bounds that the run was configured with.

    Args:
        limits: Configured bounds by name; what is no number, or switched off by a negative one, is left out.
    """
    _Run.courses = {}
    _Run.began = False
    registry.counter("verl.training.resumes").record(0)  # so that a rate sees the 1 that may follow
    for name, raw in limits.items():
        value = to_number(raw)
        if value is not None and value >= 0:
            registry.gauge("verl.limit", ((attr.LIMIT, name),)).set(value)


def follow(data: Mapping[str, Any], step: Any, now: int) -> Iterable[Point]:
    """Take the scalars of one ``Tracking.log`` and return the points that say how the learning goes.

    Args:
        data: Scalars by verl's key. The mean of several ``val-core`` scores counts as one.
        step: Number of the step.
        now: Unix time in nanoseconds.
    """
    number = to_number(step)
    if number is None:
        return
    number = int(number)
    if not _Run.began and number > 0:  # 0: the validation before the training
        _Run.began = True
        if number > 1:
            registry.counter("verl.training.resumes").record(1)
    for name, value in _read(data).items():
        course = _Run.courses.setdefault(name, Course())
        course.add(number, value)
        labels = ((attr.METRIC, name),)
        since, trend = course.count_since_best(number), course.find_trend()
        if since is not None:
            yield Point(_SINCE_BEST, labels, now, now, since)
        if trend is not None:
            yield Point(_TREND, labels, now, now, trend)


def _read(data: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for key, name in _KEYS.items():
        value = to_number(data.get(key))
        if value is not None:
            found[name] = float(value)
    scores = [to_number(value) for key, value in data.items() if str(key).startswith(_VALIDATION)]
    known = [float(score) for score in scores if score is not None]
    if known:
        found["val"] = sum(known) / len(known)
    return found
