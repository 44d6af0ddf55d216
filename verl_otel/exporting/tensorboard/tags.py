# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From the scalars of a step to TensorBoard's tags: all of verl's keys, and short tags beside them."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from verl_otel.exporting.tensorboard.event_file import Distribution, make_distribution
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs, metric_names, scalar_keys
from verl_otel.semconv.metric_names import SCALAR_DESCRIPTION

_REWARD_MEAN: Final = "rollout/reward_mean"
SHORT: Final = {
    _REWARD_MEAN: scalar_keys.REWARDS,
    "rollout/response_length_mean": scalar_keys.ROLLOUT["response_length_mean"],
    **{f"ppo/{name}": scalar_keys.PPO[name] for name in ("policy_loss", "value_loss", "entropy", "kl_div")},
    "ppo/kl_reference": scalar_keys.REFERENCE_KL,
    **{f"ppo/{name}": scalar_keys.PPO[name] for name in ("clip_ratio", "grad_norm")},
    "system/gpu_utilization": ("gpu_utilization",),
}
"""Short tags, and the keys that have their value; the first one that is there counts."""
REWARD_DISTRIBUTION: Final = "rollout/reward_dist"
GRAD_NORM_DISTRIBUTION: Final = "ppo/grad_norm_dist"
GRAD_NORM_STEPS: Final = 20
"""Steps whose gradient norms are one histogram."""
_NOT_TAGGED: Final = (logs.PYTHON, logs.SAMPLE, logs.WORKER, "scalars")
"""Scopes whose records are not about a step, or repeat verl's keys."""
_PREFIXES: Final = {logs.TIMING: "timing_s/", logs.VALIDATION: ""}
"""Scopes whose fields are verl's own keys, or the rest of them: timers are no scalars, and the points of validations do not say core or aux."""
_VALIDATION: Final = "val-"
_STEP_SECONDS: Final = f"{logs.TRAINING}/step_seconds"
MAX_KNOWN: Final = 256
"""Steps whose records may wait for their scalars."""
MAX_STAMPS: Final = 256
"""Time stamps that may wait for their step."""
_SCALAR: Final = re.compile(r"(['\"])(?P<key>.{1,300})\1".join(map(re.escape, SCALAR_DESCRIPTION.split("{key!r}"))))
_HIDDEN: Final = ("gpu_utilization",)


class Value(NamedTuple):
    """One point of a metric."""

    metric: str
    description: str
    labels: Mapping[str, str]
    time_ns: int
    value: float


class Step(NamedTuple):
    """The scalars of one ``Tracking.log``."""

    number: int
    time_ns: int
    values: dict[str, float]


def find_key(value: Value) -> str | None:
    """Return the key of a point: verl's, or that of a component of the reward; None for another metric."""
    if value.metric == metric_names.AVERAGE_REWARD:  # a loop of a user's own has no other
        return _REWARD_MEAN
    if value.metric == metric_names.REWARD_COMPONENT:
        return scalar_keys.component_key(*(value.labels.get(label, "") for label in (attr.VARIABLE, attr.AGGREGATE)))
    if value.metric == metric_names.VALIDATION_SCORE:
        parts = [value.labels.get(label, "") for label in (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE)]
        return f"val-core/{'/'.join(parts)}"
    match = _SCALAR.match(value.description)
    return match["key"] if match else None


def read_rewards(fields: Mapping[str, object]) -> Distribution | None:
    """Return the histogram of the scores of a step from its record in the run log; None if it has none.

    Its sums are those of the scores, from their mean and standard deviation. They come from the middles of the bins where these are not known: the
    mean is verl's, which is of the last local step only in the fully asynchronous mode; such a mean does not lie where the bins have it.

    Args:
        fields: Of a record of the scope ``rollout``.
    """
    counts, low, high = (fields.get(name) for name in ("score_counts", "score_low", "score_high"))
    if (
        not isinstance(counts, (list, tuple))
        or not counts
        or not isinstance(low, (int, float))
        or not isinstance(high, (int, float))
    ):
        return None
    if not (math.isfinite(low) and math.isfinite(high)) or not all(isinstance(count, (int, float)) for count in counts):
        return None
    width = (high - low) / len(counts)
    limits = [low + width * number for number in range(1, len(counts) + 1)]
    middles = [limit - width / 2 for limit in limits]
    number = sum(counts)
    total = sum(middle * count for middle, count in zip(middles, counts, strict=True))
    mean, deviation = fields.get("score_mean"), fields.get("score_std")
    # Each score is at most half a bin away from its middle; verl's mean is of float32.
    tolerance = number * (width / 2 + 1e-6 * max(abs(low), abs(high)))
    if (
        isinstance(mean, (int, float))
        and isinstance(deviation, (int, float))
        and abs(mean * number - total) <= tolerance
    ):
        return Distribution(limits, list(counts), low, high, mean * number, (deviation**2 + mean**2) * number)
    squares = sum(middle * middle * count for middle, count in zip(middles, counts, strict=True))
    return Distribution(limits, list(counts), low, high, total, squares)


def read_fields(scope: str, fields: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a step's record of the run log, by tag: ``<scope>/<field>``, and verl's own keys of timers and validations.

    Args:
        scope: Of the record.
        fields: Of the record.
    """
    if scope in _NOT_TAGGED:
        return {}
    prefix = _PREFIXES.get(scope, f"{scope}/")
    values = {
        f"{prefix}{name}": float(value)
        for name, value in fields.items()
        if isinstance(value, (int, float)) and name not in (*logs.RESERVED, "rank")
    }
    if _STEP_SECONDS in values:
        values["timing_s/step"] = values[_STEP_SECONDS]
    return values


class StepFields:
    """What the run log has of steps whose scalars have not come yet."""

    def __init__(self) -> None:
        self._fields: dict[int, dict[str, float]] = {}
        self._rewards: dict[int, Distribution] = {}

    def add(self, step: int, scope: str, fields: Mapping[str, object]) -> None:
        """Add a record of a step."""
        self._fields.setdefault(step, {}).update(read_fields(scope, fields))
        rewards = read_rewards(fields) if scope == logs.ROLLOUT else None
        if rewards is not None:
            self._rewards[step] = rewards

    def take(self, step: Step) -> tuple[dict[str, float], Distribution | None]:
        """Return the values of a step by tag, validation scores from the run log if it has them, and its rewards; and remove them."""
        fields, values = self._fields.pop(step.number, {}), step.values
        if any(key.startswith(_VALIDATION) for key in fields):
            values = {key: value for key, value in values.items() if not key.startswith(_VALIDATION)}
        return {**fields, **values}, self._rewards.pop(step.number, None)

    def bound(self) -> None:
        """Remove the first steps beyond `MAX_KNOWN`."""
        for known in (self._fields, self._rewards):
            while len(known) > MAX_KNOWN:
                del known[min(known)]


class StepGrouper:
    """Joins the points of one ``Tracking.log``: they have the same time stamp, as has the number of the step."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, float]] = {}
        self._numbers: dict[int, int] = {}

    def add(self, values: Iterable[Value]) -> None:
        """Add points, in any order."""
        for value in values:
            if value.metric == metric_names.TRAINING_STEP:
                self._numbers[value.time_ns] = int(value.value) if math.isfinite(value.value) else 0
                continue
            key = find_key(value)
            if key is not None:
                self._waiting.setdefault(value.time_ns, {})[key] = value.value

    def take(self) -> Iterator[Step]:
        """Yield the steps whose number is known, in the order of time, and remove them."""
        for time_ns in sorted(self._numbers):
            yield Step(self._numbers.pop(time_ns), time_ns, self._waiting.pop(time_ns, {}))
        for time_ns in sorted(self._waiting)[:-MAX_STAMPS]:
            del self._waiting[time_ns]


class Tagger:
    """Makes the tags of one step after the other."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=GRAD_NORM_STEPS)

    def make_scalars(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the value of each tag: verl's keys, and `SHORT`."""
        scalars = {key: value for key, value in values.items() if key not in _HIDDEN}
        for tag, keys in SHORT.items():
            value = next((values[key] for key in keys if key in values), None)
            if value is not None:
                scalars.setdefault(tag, value)
        return scalars

    def make_distributions(
        self, values: Mapping[str, float], rewards: Distribution | None = None
    ) -> dict[str, Distribution]:
        """Return the histograms of a step.

        Args:
            values: Scalars of the step, by key.
            rewards: The rewards of its samples, if they are known.
        """
        distributions = {REWARD_DISTRIBUTION: rewards} if rewards is not None else {}
        norm = values.get("actor/grad_norm")
        if norm is not None and math.isfinite(norm):
            self._norms.append(norm)
            distributions[GRAD_NORM_DISTRIBUTION] = make_distribution(self._norms)
        return distributions
