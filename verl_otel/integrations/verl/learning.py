# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How the training goes: whether it still improves, and what became slower, or larger, all of a sudden.

Improvement is counted in steps and not in minutes: a step may take ten seconds or two hours. Alerts read `verl.training.steps_since_best` and `verl.training.trend`. Both have no value before a minimum number of steps, and start again in
a resumed process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel.health.recent_past import LearningProgress, RecentChanges
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.model import Point
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.series import INSTRUMENTS, counter, gauge
from verl_otel.recording.step_statistics import measure_waits
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

_KEYS: Final = {"critic/rewards/mean": "reward", "critic/score/mean": "score"}
_VALIDATION: Final = "val-core/"
_SINCE_BEST: Final = INSTRUMENTS[metric_names.TRAINING_STEPS_SINCE_BEST]
_TREND: Final = INSTRUMENTS[metric_names.TRAINING_TREND]


class _Run:
    """State of the run in this process."""

    progress: dict[str, LearningProgress] = {}
    changes = RecentChanges()
    has_begun = False


def begin_run(limits: Mapping[str, Any]) -> None:
    """Reset the state, and record the configured limits of the run.

    Args:
        limits: Configured limits by name; values that are not numbers, or negative (disabled), are ignored.
    """
    _Run.progress, _Run.changes, _Run.has_begun = {}, RecentChanges(), False
    counter(metric_names.TRAINING_RESUMES).record(0)  # so that a rate sees the 1 that may follow
    for name, raw in limits.items():
        value = to_number(raw)
        if value is not None and value >= 0:
            gauge(metric_names.LIMIT, ((attr.LIMIT, name),)).set(value)


def follow_progress(data: Mapping[str, Any], step: Any, now: int) -> Iterable[Point]:
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


# -- What became slower, or larger, all of a sudden: the last three steps against the twenty before, as `verl.training.change` --
# Durations, of 0.1 s at least, are those of the step (``timing_s/step``), and the mean time that a trajectory of the step waited for the model and for tools.

POLICY_LOSS: Final = "policy_loss"
_CHANGE: Final = INSTRUMENTS[metric_names.TRAINING_CHANGE]


def follow_changes(data: Mapping[str, Any], now: int) -> Iterable[Point]:
    """Add the scalars of one ``Tracking.log`` and return the points of the metric.

    Args:
        data: Scalars by verl's key.
        now: Unix time in nanoseconds.
    """
    seconds, loss = (to_number(data.get(key)) for key in ("timing_s/step", "actor/pg_loss"))
    ratios = {
        "step": None if seconds is None else _Run.changes.add_seconds("step", float(seconds)),
        POLICY_LOSS: None if loss is None else _Run.changes.add(POLICY_LOSS, float(loss), largest=True),
    }
    for name, ratio in ratios.items():
        if ratio is not None:
            yield Point(_CHANGE, ((attr.METRIC, name),), now, now, ratio)


def follow_trajectories(origins: Sequence[Origin]) -> None:
    """Add the trajectories that a step trains on."""
    for name, seconds in measure_waits(origins).items():
        ratio = _Run.changes.add_seconds(name, seconds)
        if ratio is not None:
            gauge(metric_names.TRAINING_CHANGE, ((attr.METRIC, name),)).set(ratio)
