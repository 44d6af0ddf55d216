# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How the training goes: whether it still improves, and what became slower, or larger, all of a sudden.

Improvement is counted in steps and not in minutes: a step may take ten seconds or two hours. Alerts read
`verl.training.steps_since_best` and `verl.training.trend`. Both have no value before a minimum number of steps, and
start again in a resumed process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from verl_otel.health.recent_past import Followed
from verl_otel.integrations.verl import training
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.model import Point
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.series import INSTRUMENTS, counter, gauge
from verl_otel.recording.step_statistics import measure_waits
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names, scalar_keys

_RISING: Final = {"reward": scalar_keys.ROLLOUT["reward_mean"][0], "score": scalar_keys.ROLLOUT["score_mean"][0]}
_VALIDATION: Final = "val-core/"
_SECONDS: Final = {"step": scalar_keys.TRAINING["step_seconds"][0]}
_SIZES: Final = {
    "policy_loss": scalar_keys.PPO["policy_loss"][0],
    "rollout_gap": scalar_keys.PPO["rollout_probs_diff_mean"][0],
}


def record_limits(limits: Mapping[str, Any]) -> None:
    """Record the configured limits of a run that begins.

    Args:
        limits: Configured limits by name; values that are not numbers, or negative (disabled), are ignored.
    """
    counter(metric_names.TRAINING_RESUMES).record(0)  # so that a rate sees the 1 that may follow
    for name, raw in limits.items():
        value = to_number(raw)
        if value is not None and value >= 0:
            gauge(metric_names.LIMIT, ((attr.LIMIT, name),)).set(value)


def follow(data: Mapping[str, Any], step: Any, now: int) -> list[Point]:
    """Add the scalars of one ``Tracking.log`` and return the points of the metrics of progress and change.

    Args:
        data: Scalars by verl's key. The mean of several ``val-core`` scores counts as one.
        step: Number of the step; there is no progress without one.
        now: Unix time in nanoseconds.
    """
    found: list[Followed] = []
    number = to_number(step)
    if number is not None:
        number = int(number)
        if not training.current.has_logged_step and number > 0:  # 0: the validation before the training
            training.current.has_logged_step = True
            if number > 1:
                counter(metric_names.TRAINING_RESUMES).record(1)
        found = training.current.follower.follow_progress(number, _read(data))
    found += training.current.follower.follow_changes(_to_numbers(data, _SECONDS), _to_numbers(data, _SIZES))
    return [Point(INSTRUMENTS[metric], ((attr.METRIC, name),), now, now, value) for metric, name, value in found]


def _read(data: Mapping[str, Any]) -> dict[str, float]:
    values = _to_numbers(data, _RISING)
    scores = [to_number(value) for key, value in data.items() if str(key).startswith(_VALIDATION)]
    numbers = [float(score) for score in scores if score is not None]
    if numbers:
        values["val"] = sum(numbers) / len(numbers)
    return values


def _to_numbers(data: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, float]:
    found = {name: to_number(data.get(key)) for name, key in keys.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def follow_trajectories(origins: Sequence[Origin]) -> None:
    """Add the trajectories that a step trains on: the mean times that they waited for the model and for tools."""
    for metric, name, ratio in training.current.follower.follow_changes(measure_waits(origins)):
        gauge(metric, ((attr.METRIC, name),)).set(ratio)
