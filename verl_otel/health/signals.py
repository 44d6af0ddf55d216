# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a run learned, from verl's scalars of its steps: signals over the run, findings of the conditions, and the progress of the reward.

It does not matter where the scalars come from: a recorded run, or a log of verl. `verl_otel.cli.learning` has the words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.health import profiles
from verl_otel.health.conditions import (
    CUT,
    FINITE,
    SCORES,
    Condition,
    Finding,
    Scalars,
    count_steps,
    find_reward,
    make_alert_conditions,
    make_conditions,
)
from verl_otel.health.profiles import Profile
from verl_otel.health.recent_past import MIN_VALUES, WINDOW, LearningProgress, find_course, measure_trend
from verl_otel.health.reward_move import RewardMove, find_components, find_move
from verl_otel.semconv.scalar_keys import CORE_VALIDATION, PPO, REFERENCE_KL, REWARDS, ROLLOUT, TRAINING, Keys


def _select(fields: Mapping[str, Keys], *names: str) -> dict[str, Keys]:
    return {name: fields[name] for name in names}


LEARNING: Final[dict[str, Keys]] = {
    "reward_mean": REWARDS,
    "score_mean": ROLLOUT["score_mean"],
    "kl_div": PPO["kl_div"],
    "kl_reference": REFERENCE_KL,
    **_select(
        PPO,
        "entropy",
        "policy_loss",
        "value_loss",
        "grad_norm",
        "value_grad_norm",
        "clip_ratio",
        "rollout_kl",
        "rollout_probs_diff_mean",
    ),
    "staleness": ("training/off_policy/trajectory_staleness/mean",),
    "stale_samples": ("fully_async/count/stale_samples_processed",),
    "trainer_idle_ratio": ("fully_async/trainer/idle_ratio",),
    "expert_overload": ("rollout/moe/max_vio/max",),
    **_select(ROLLOUT, "response_length_mean", "response_clip_ratio", "aborted_ratio"),
}
"""Signals of the learning, named as in the run log of verl-otel, and the keys of verl that have them; the first that a run has counts."""
RESOURCES: Final[dict[str, Keys]] = {
    **_select(TRAINING, "tokens", "tokens_per_second_per_gpu"),
    "mfu": ("perf/mfu/actor",),
    "gpu_memory_gib": ("actor/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb"),
    "gpu_reserved_gib": ("actor/perf/max_memory_reserved_gb", "perf/max_memory_reserved_gb"),
    "host_memory_gib": ("actor/perf/cpu_memory_used_gb", "perf/cpu_memory_used_gb"),
}
"""The same for what the run used."""
SIGNALS: Final = {**LEARNING, **RESOURCES}
KEYS: Final = frozenset((*FINITE, *SCORES, *itertools.chain.from_iterable(SIGNALS.values())))
"""Keys of verl that are read, besides the scores of validations."""
LONGEST_WINDOW: Final = 20
"""Steps at the begin and at the end whose means are compared; of short runs a third."""
_STRICTER: Final = "math"
"""A profile that limits the share of truncated responses."""
_ZERO_COUNTS: Final = ("reward_mean", "score_mean")
"""Signals that are kept if they were 0 throughout."""


class Signal(NamedTuple):
    """One value of verl over the run."""

    name: str
    key: str
    begin: float
    """Mean of the first steps."""
    end: float
    """Mean of the last steps."""
    low: float
    low_step: int
    high: float
    high_step: int
    trend: float | None
    """Kendall's tau of the means of 20 parts of the run; None for too few values."""
    course: int
    """As of `Progress`."""
    not_finite: int
    """Steps in which it was NaN or infinite."""


class Trouble(NamedTuple):
    """What was wrong with the learning: all findings of one condition."""

    first: Finding
    last_step: int
    """The last step at which it held."""
    times: int


class Progress(NamedTuple):
    """The course of the mean reward."""

    best_step: int
    """Step at which the best mean of five steps ended."""
    since: int
    """Steps from it to the last one."""
    trend: float | None
    """Kendall's tau of the last values; None for too few."""
    values: int
    """Number of these."""
    course: int
    """As `find_course` returns it, with the threshold ``stagnation_trend``."""


class Learning(NamedTuple):
    """How a run learned."""

    profile: Profile
    steps: int
    signals: tuple[Signal, ...]
    """Those of `SIGNALS`, in this order, then the components of the reward, then the scores of validations."""
    troubles: tuple[Trouble, ...]
    """In the order of the steps at which they were first noticed."""
    progress: Progress | None
    """None: fewer than five steps have a reward."""
    move: RewardMove | None
    """The largest move of the mean reward, with its components; None: it has none, or did not move."""
    cut: float | None
    """Share of the last responses that were cut off, where the profile has no limit for it and the stricter one has a lower one."""


CUT_LIMIT: Final = (_STRICTER, profiles.PROFILES[_STRICTER]["response_cut"])
"""That profile, and its limit."""


def judge(steps: Sequence[tuple[int, Scalars]], profile: Profile) -> Learning:
    """Return how a run learned.

    Args:
        steps: Number and scalars of each step by verl's keys, in the order of time; none that was trained again.
        profile: Thresholds.
    """
    limits = profile.values
    conditions = [*_make_guards(limits), *make_alert_conditions(limits)]
    troubles: dict[str, Trouble] = {}
    for number, values in steps:
        if values.keys().isdisjoint(KEYS):  # a validation before the training ends no series of steps
            continue
        for condition in conditions:
            finding = condition.observe(number, values)
            if finding is not None:
                known = troubles.get(finding.kind) or Trouble(finding, number, 0)
                troubles[finding.kind] = known._replace(times=known.times + 1)
            if condition.lasts:
                troubles[condition.kind] = troubles[condition.kind]._replace(last_step=number)
    limit = limits["stagnation_trend"]
    signals = {
        name: signal for name, keys in SIGNALS.items() if (signal := _follow(steps, name, keys, limit)) is not None
    }
    if "score_mean" in signals and signals["score_mean"][2:] == signals["reward_mean"][2:]:
        del signals["score_mean"]
    scores = dict.fromkeys(key for _, values in steps for key in values if key.startswith(CORE_VALIDATION))
    others = [*find_components(steps), *scores]
    followed = [signal for key in others if (signal := _follow(steps, key, (key,), limit)) is not None]
    cut = next((signal.end for signal in signals.values() if signal.key == CUT), 0.0)
    return Learning(
        profile,
        len(steps),
        (*signals.values(), *followed),
        tuple(sorted(troubles.values(), key=lambda trouble: trouble.first.step)),
        _measure_progress(steps, limits),
        find_move(steps, find_window(len(steps))),
        cut if math.isnan(limits["response_cut"]) and cut > CUT_LIMIT[1] else None,
    )


def _make_guards(limits: Mapping[str, float]) -> list[Condition]:
    """Return the conditions of guards with the numbers of steps of the alerts: a guard that is off has none."""
    return make_conditions(
        limits,
        nan=1,
        kl=count_steps(limits, "policy_kl_steps"),
        reward_fall=count_steps(limits, "reward_fall_steps"),
        plateau=count_steps(limits, "stagnation_steps"),
    )


def _measure_progress(steps: Sequence[tuple[int, Scalars]], limits: Mapping[str, float]) -> Progress | None:
    rewards = [(number, reward) for number, values in steps if (reward := find_reward(values)) is not None]
    values = [reward for _, reward in rewards]
    last = next((reward for key in REWARDS if (reward := steps[-1][1].get(key)) is not None), 0.0) if steps else 0.0
    if len(set(values)) < 2 or not math.isfinite(last):  # noqa: PLR2004 - it has no course, or none that goes on
        return None
    progress = LearningProgress()
    for number, reward in rewards:
        progress.add(number, reward)
    since = progress.count_since_best(steps[-1][0]) if steps else None
    if since is None:
        return None
    trend = progress.find_trend()
    count = min(WINDOW, len(rewards))
    course = 0 if trend is None else find_course(trend, count, limits["stagnation_trend"])
    return Progress(steps[-1][0] - since, since, trend, count, course)


def _follow(steps: Sequence[tuple[int, Scalars]], name: str, keys: Iterable[str], limit: float) -> Signal | None:
    """Return a signal over the run; None if the run does not have it, or only zeros."""
    known = {key: [(values[key], number) for number, values in steps if key in values] for key in keys}
    key = next((key for key, pairs in known.items() if any(math.isfinite(value) for value, _ in pairs)), None)
    if key is None:
        return None
    pairs = [pair for pair in known[key] if math.isfinite(pair[0])]
    values = [value for value, _ in pairs]
    if not any(values) and name not in _ZERO_COUNTS:
        return None
    size = find_window(len(values))
    (low, low_step), (high, high_step) = min(pairs, key=lambda pair: pair[0]), max(pairs, key=lambda pair: pair[0])
    trend = _measure_trend(values)
    course = 0 if trend is None else find_course(trend, min(WINDOW, len(values)), limit)
    return Signal(
        name, key, fmean(values[:size]), fmean(values[-size:]), low, low_step, high, high_step, trend, course,
        len(known[key]) - len(pairs),
    )  # fmt: skip


def find_window(count: int) -> int:
    """Return how many of the first, and of the last steps are compared."""
    return max(1, min(LONGEST_WINDOW, count // 3))


def _measure_trend(values: Sequence[float]) -> float | None:
    """Return the trend of a whole run, by the means of `WINDOW` parts of it."""
    if len(values) < MIN_VALUES:
        return None
    parts = min(WINDOW, len(values))
    ends = [len(values) * part // parts for part in range(parts + 1)]
    return measure_trend([fmean(values[begin:end]) for begin, end in itertools.pairwise(ends)])
