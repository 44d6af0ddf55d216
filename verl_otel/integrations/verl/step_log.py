# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Records of the run log from the scalars of one ``Tracking.log``: progress, rollout, PPO update, timers and validation."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from verl_otel.integrations.verl import scalars, training
from verl_otel.integrations.verl.sample_origin import Origin, find_generation
from verl_otel.model import AttributeValue
from verl_otel.recording import run_log
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.state import RECORDER
from verl_otel.recording.step_statistics import SIGNAL, find_spread, make_component_fields, measure_components
from verl_otel.semconv import logs, scalar_keys

_SCOPES: Final = {
    logs.TRAINING: scalar_keys.TRAINING,
    logs.ROLLOUT: scalar_keys.ROLLOUT,
    logs.PPO: scalar_keys.PPO,
}
"""Fields of each scope with the keys of verl that have them."""
_VALIDATION: Final = "val-"
_TIMER: Final = re.compile(r"timing_s/(?!step$)(.+)")
"""Timers: that of the step is in its record of the scope ``training``. Keys with a second slash are statistics, as of
agent loops, and scalars, unless they are those of a phase."""
_PER_GPU: Final = "tokens_per_second_per_gpu"
EMPTY_TOKENS: Final = 1
"""Tokens of a response that has no text: the end alone."""
BINS: Final = 16
"""Bins of the scores of a step."""
MAX_TIMINGS: Final = 64
"""Timers in the record of a step; verl has about ten."""
MAX_SCALARS: Final = 512
"""Scalars of one record of level DEBUG."""


def note_trajectories(origins: list[Origin], groups: Mapping[str, int], *, logged_later: bool = False) -> None:
    """Note the trajectories that the next record is about: their scores, groups, empty responses and generation.

    Args:
        origins: Those that a step trains on, of all of its rounds.
        groups: Number of their groups by outcome; see `step_statistics.count_groups`.
        logged_later: Whether verl logs a part of them with the next step, so that its means are of other trajectories.
    """
    scores = [origin.score for origin in origins if origin.score is not None and origin.score == origin.score]
    training.current.scores = {"samples": len(origins), **_describe_groups(groups)}
    training.current.components = measure_components(origins)
    lengths = [origin.facts["response"] for origin in origins if "response" in origin.facts]
    if lengths:
        training.current.scores["empty_responses"] = sum(length <= EMPTY_TOKENS for length in lengths)
    training.current.own_means = {}
    if scores:
        mean, training.current.scores["score_std"] = find_spread(scores)
        training.current.scores.update(_count_by_bin(scores))
        if logged_later:
            training.current.own_means = {"mean": mean, "min": min(scores), "max": max(scores)}
    seconds = find_generation(origins)
    if seconds is not None:
        training.current.scores["seconds"] = round(seconds, 6)


def _take_components(data: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the components that one ``Tracking.log`` is about, and forget them; none if it has no fields of the rollout."""
    if not any(key in data for keys in scalar_keys.ROLLOUT.values() for key in keys):
        return {}
    components, training.current.components = training.current.components, {}
    return components


def _describe_groups(counts: Mapping[str, int]) -> dict[str, AttributeValue]:
    """Return the number of groups, of those without a signal, and of each kind of these."""
    if not counts:
        return {}
    silent = {f"groups_{outcome}": count for outcome, count in counts.items() if outcome != SIGNAL}
    return {"groups": sum(counts.values()), "groups_without_signal": sum(silent.values()), **silent}


def _count_by_bin(scores: list[float]) -> dict[str, AttributeValue]:
    """Return lowest and highest score, and the number of scores in each of `BINS` bins of equal width between them."""
    low, high = min(scores), max(scores)
    if not math.isfinite(high - low):
        return {}
    counts = [0] * (BINS if high > low else 1)
    for score in scores:
        counts[min(int((score - low) / (high - low) * BINS), BINS - 1) if high > low else 0] += 1
    return {"score_low": low, "score_high": high, "score_counts": tuple(counts)}


def write(data: Mapping[str, Any], step: Any) -> dict[str, dict[str, float]]:
    """Queue the records of one ``Tracking.log``, and return the components of the rewards that it is about; see `measure_components`.

    Args:
        data: Scalars by verl's key.
        step: Number of the step; 0 is the validation before the training.
    """
    if not RECORDER.on:
        return {}
    number = to_number(step)
    number = None if number is None else int(number)
    components = _take_components(data)
    if run_log.is_enabled(logs.INFO):
        _add_records({str(key): value for key, raw in data.items() if (value := to_number(raw)) is not None}, number)
        run_log.add_step(logs.REWARD, number, make_component_fields(components))
    run_log.end_step(number)
    return components


def _describe_rollout(fields: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the fields of verl and of the trajectories of the step; empty if verl's are about the step before."""
    scores, means, training.current.scores = training.current.scores, training.current.own_means, {}
    are_scores = fields.get("reward_mean") == fields.get("score_mean")  # no penalty is subtracted
    if means and not scores:
        return {}
    if means:
        fields = {name: value for name, value in fields.items() if not name.startswith("reward_")}
        fields["score_mean"] = means["mean"]
        if are_scores:
            fields |= {f"reward_{name}": value for name, value in means.items()}
    if are_scores and "score_std" in scores:
        fields["reward_std"] = scores["score_std"]
    return {**scores, **fields}


def end_run() -> None:
    """Queue the fields of users that were logged after the last step."""
    run_log.end_step(None)


def _add_records(values: Mapping[str, float], number: int | None) -> None:
    for scope, names in _SCOPES.items():
        fields: dict[str, AttributeValue] = {
            name: next(values[key] for key in keys if key in values)
            for name, keys in names.items()
            if any(key in values for key in keys)
        }
        if scope == logs.ROLLOUT and fields:
            fields = _describe_rollout(fields)
        if scope == logs.TRAINING and fields:
            fields["elapsed_seconds"] = round(time.monotonic() - training.current.begun, 3)
            if _PER_GPU in fields:
                fields[_PER_GPU] = values[scalar_keys.TRAINING[_PER_GPU][0]] * training.current.gpu_share
        run_log.add_step(scope, number, fields)
    timings = {
        match[1]: value
        for key, value in values.items()
        if (match := _TIMER.fullmatch(key)) and ("/" not in match[1] or scalars.is_phase(key))
    }
    run_log.add_step(logs.TIMING, number, dict(list(timings.items())[:MAX_TIMINGS]))
    validation = {key: value for key, value in values.items() if key.startswith(_VALIDATION)}
    run_log.add_step(logs.VALIDATION, number, dict(list(validation.items())[:MAX_SCALARS]))
    if run_log.is_enabled(logs.DEBUG):
        run_log.add_step("scalars", number, dict(list(values.items())[:MAX_SCALARS]), logs.DEBUG)
