# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions of guards and alerts. Each sees the scalars of every step, in order, for some steps in a row.

Scalars have verl's keys, such as ``actor/ppo_kl``. Conditions do not depend on the scale or sign of the reward: a fall
is measured against what the run has gained, and against the noise between its steps.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Final, NamedTuple

from verl_otel.health.recent_past import BEFORE, MIN_BEFORE, SMOOTHED, LearningProgress, find_jump
from verl_otel.health.thresholds import DEFAULTS
from verl_otel.semconv.scalar_keys import PPO, REFERENCE_KL, REWARDS, ROLLOUT

Scalars = Mapping[str, float]
(POLICY_KL,) = PPO["kl_div"]
FINITE: Final = (
    *REWARDS,
    POLICY_KL,
    *REFERENCE_KL,
    *(PPO[name][0] for name in ("policy_loss", "grad_norm", "entropy", "value_loss", "value_grad_norm")),
)
"""Scalars that must be finite."""
GUARD_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "nan": FINITE,
    "kl": (POLICY_KL, *REFERENCE_KL),
    "reward_fall": REWARDS,
    "plateau": REWARDS,
}
"""Scalars that each guard looks at; a run without any of them says nothing about it."""
NOISE_FACTOR: Final = 8.0
"""A fall counts beyond this many standard errors of a mean of five steps: among thousands of such means some lie 4 away from the others."""
_RECENT: Final = 100
"""Steps from which the noise is estimated."""
LEVEL: Final = 20
"""Steps whose mean is what a run has reached: rewards that are rarely above 0 reach a high mean of five by chance."""
DIFFERENCE: Final = math.sqrt(math.pi) / 2
"""Standard deviation of independent normal values per mean absolute difference of two of them (von Neumann et al., The
Mean Square Successive Difference, 1941, has the squared form). A median would be 0 for rewards of 0 and 1."""


class Seen(NamedTuple):
    """What a check has seen at a step, in numbers. NaN: it has none of this."""

    key: str
    """Verl's key of the scalar; empty: the mean reward."""
    value: float
    limit: float = math.nan
    """The threshold that it is beyond."""
    before: float = math.nan
    """What it was before: the best, or the highest."""
    gained: float = math.nan
    """By how much it had risen before; 0: it had not."""
    since: int | None = None
    """Step at which it changed; None: the first of those for which the condition has held."""


class Finding(NamedTuple):
    """A condition that has held for its number of steps. `verl_otel.guards.wording` has the words."""

    kind: str
    """Name of the condition, such as ``kl``."""
    step: int
    steps: int
    """Number of steps for which it has held."""
    seen: Seen
    """At the last of these steps."""
    began: int
    """Step at which it began."""


Check = Callable[[int, Scalars], "Seen | None"]
"""Returns what was seen if the condition holds at a step, else None."""


class Condition:
    """Counts for how many steps in a row a check has held.

    Args:
        kind: Name of the condition.
        steps: Number of steps after which it is a finding, at least 1.
        check: The check of one step.
    """

    def __init__(self, kind: str, steps: int, check: Check) -> None:
        self.kind = kind
        self.steps = steps
        self._check = check
        self._held = 0
        self._began = 0

    def observe(self, step: int, scalars: Scalars) -> Finding | None:
        """Add a step; return a finding at the step at which the condition has held long enough."""
        seen = self._check(step, scalars)
        self._held = self._held + 1 if seen is not None else 0
        if self._held == 1:
            self._began = step
        if seen is None or self._held != self.steps:
            return None
        return Finding(self.kind, step, self.steps, seen, self._began if seen.since is None else seen.since)

    @property
    def lasts(self) -> bool:
        """Whether the condition has held long enough, and held at the last step."""
        return self._held >= self.steps


def check_finite(_step: int, scalars: Scalars) -> Seen | None:
    """Check that losses, rewards and gradient norms are finite."""
    wrong = next((key for key in FINITE if key in scalars and not math.isfinite(scalars[key])), None)
    return None if wrong is None else Seen(wrong, scalars[wrong])


def make_kl_check(thresholds: Mapping[str, float]) -> Check:
    """Return the check of the KL divergence to the last policy and to the reference policy."""
    limits = {POLICY_KL: thresholds["policy_kl_stop"], **dict.fromkeys(REFERENCE_KL, thresholds["reference_kl"])}

    def check(_step: int, scalars: Scalars) -> Seen | None:
        for key, limit in limits.items():
            value = scalars.get(key, 0.0)
            if math.isfinite(value) and value > limit:
                return Seen(key, value, limit)
        return None

    return check


class RewardFall:
    """Checks whether the reward has lost a share of what it had gained.

    The mean of five steps must lie below the best mean of twenty by more than ``reward_fall`` of the difference between
    the best and the lowest such mean before it, and by more than the noise between steps explains: that of the last
    steps, and that of the whole run. A run that has gained nothing is measured against the noise alone.

    Args:
        share: The threshold ``reward_fall``; NaN: nothing is a fall.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._values: deque[float] = deque(maxlen=LEVEL)
        self._steps: deque[int] = deque(maxlen=LEVEL)
        self._differences: deque[float] = deque(maxlen=_RECENT)
        self._total, self._count = 0.0, 0
        self._best, self._lowest, self._gained = -math.inf, math.inf, 0.0

    def __call__(self, step: int, scalars: Scalars) -> Seen | None:
        """Add a step; return what was seen if the reward is down."""
        reward = find_reward(scalars)
        if reward is None:
            return None
        self._steps.append(step)
        self._add(reward)
        if self._count < LEVEL:
            return None
        mean, level = fmean(list(self._values)[-SMOOTHED:]), fmean(self._values)
        if level > self._best:
            self._best, self._gained = level, max(0.0, level - self._lowest)
        self._lowest = min(self._lowest, level)
        limit = max(self._share * self._gained, NOISE_FACTOR * self._find_noise() / math.sqrt(SMOOTHED))
        if not self._best - mean > limit:
            return None
        values = list(self._values)
        jump, before = find_jump(values), self._best
        if jump is not None and not self._gained:  # the first twenty values may hold a part of the fall
            before = max(before, fmean(values[max(0, jump - SMOOTHED) : jump]))
        return Seen("", mean, limit, before, self._gained, None if jump is None else self._steps[jump])

    def _add(self, reward: float) -> None:
        if self._values:
            difference = abs(reward - self._values[-1])
            self._differences.append(difference)
            self._total += difference
        self._values.append(reward)
        self._count += 1

    def _find_noise(self) -> float:
        """Return the standard deviation between steps, that of the last ones or of the run, whichever is larger."""
        return DIFFERENCE * max(fmean(self._differences), self._total / (self._count - 1))


class Plateau:
    """Checks whether the reward has had no better mean for a number of steps and shows no trend upwards.

    Args:
        steps: Number of steps without a better mean of five.
        trend: The threshold ``stagnation_trend``: from this Kendall's tau on the reward still rises; NaN: nothing is a plateau.
    """

    def __init__(self, steps: int, trend: float) -> None:
        self._steps = steps
        self._rising = trend
        self._progress = LearningProgress()

    def __call__(self, step: int, scalars: Scalars) -> Seen | None:
        """Add a step; return what was seen if the reward has stopped rising."""
        reward = find_reward(scalars)
        if reward is None:
            return None
        self._progress.add(step, reward)
        since, trend = self._progress.count_since_best(step), self._progress.find_trend()
        if since is None or trend is None or since < self._steps or not trend < self._rising:
            return None
        return Seen("", since, self._steps)


def find_reward(scalars: Scalars) -> float | None:
    """Return the mean reward of a step if it has a finite one."""
    for key in REWARDS:
        value = scalars.get(key)
        if value is not None:
            return value if math.isfinite(value) else None
    return None


def make_conditions(
    thresholds: Mapping[str, float] = DEFAULTS, *, nan: int, kl: int, reward_fall: int, plateau: int
) -> list[Condition]:
    """Return the conditions of the guards that are switched on.

    Args:
        thresholds: Thresholds of a profile; NaN is off.
        nan: Steps in a row with a scalar that is not finite; 0: off. So are the others.
        kl: Steps in a row with a KL divergence above its threshold.
        reward_fall: Steps in a row with a reward that has fallen.
        plateau: Steps without a better reward.
    """
    conditions = []
    if nan:
        conditions.append(Condition("nan", nan, check_finite))
    if kl:
        conditions.append(Condition("kl", kl, make_kl_check(thresholds)))
    if reward_fall:
        conditions.append(Condition("reward_fall", reward_fall, RewardFall(thresholds["reward_fall"])))
    if plateau:
        conditions.append(Condition("plateau", 1, Plateau(plateau, thresholds["stagnation_trend"])))
    return conditions


# -- Conditions of alerts that one number a step is enough for --

(ENTROPY, *_OTHER_ENTROPY) = PPO["entropy"]
(CUT,) = ROLLOUT["response_clip_ratio"]
SCORES: Final = ("critic/score/min", "critic/score/max")
(GAP,) = PPO["rollout_probs_diff_mean"]


class GapJump:
    """Checks whether the engine's probabilities differ from the trainer's much more than in the steps before.

    Weights that a sync did not move, or a prefix cache that was not cleared, are not visible otherwise: nothing is
    slow, and the version is right.

    Args:
        thresholds: ``rollout_gap`` and ``rollout_gap_factor``.
    """

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._level, self._factor = thresholds["rollout_gap"], thresholds["rollout_gap_factor"]
        self._before: deque[float] = deque(maxlen=BEFORE)

    def __call__(self, _step: int, scalars: Scalars) -> Seen | None:
        """Add a step; return what was seen."""
        value = scalars.get(GAP, math.nan)
        if not math.isfinite(value):
            return None
        usual = median(self._before) if len(self._before) >= MIN_BEFORE else math.nan
        self._before.append(value)
        return Seen(GAP, value, self._level, usual) if value > self._level and value > self._factor * usual else None


class ZeroReward:
    """Checks whether the reward is exactly 0 in a run that had another one."""

    def __init__(self) -> None:
        self._had_other = False

    def __call__(self, _step: int, scalars: Scalars) -> Seen | None:
        """Add a step; return what was seen."""
        reward = find_reward(scalars)
        self._had_other = self._had_other or bool(reward)
        return Seen("", 0.0) if reward == 0 and self._had_other else None


class EntropyFall:
    """Checks whether the entropy is low after it was several times as high.

    Args:
        thresholds: ``entropy`` and ``entropy_fall_factor``.
    """

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._low, self._factor = thresholds["entropy"], thresholds["entropy_fall_factor"]
        self._highest = 0.0

    def __call__(self, _step: int, scalars: Scalars) -> Seen | None:
        """Add a step; return what was seen."""
        key = next((key for key in (ENTROPY, *_OTHER_ENTROPY) if key in scalars), "")
        value = scalars.get(key, math.nan)
        if not math.isfinite(value):
            return None
        self._highest = max(self._highest, value)
        is_low = value < self._low and value * self._factor <= self._highest
        return Seen(key, value, self._low, self._highest) if is_low else None


def check_range(thresholds: Mapping[str, float], _step: int, scalars: Scalars) -> Seen | None:
    """Check that the mean reward is between ``reward_low`` and ``reward_high``."""
    reward = find_reward(scalars)
    low, high = thresholds["reward_low"], thresholds["reward_high"]
    if reward is None or not (reward < low or reward > high):
        return None
    return Seen("", reward, low if reward < low else high)


def check_cut(thresholds: Mapping[str, float], _step: int, scalars: Scalars) -> Seen | None:
    """Check that at most ``response_cut`` of the responses were cut off at the limit of tokens."""
    share, limit = scalars.get(CUT, math.nan), thresholds["response_cut"]
    return Seen(CUT, share, limit) if share > limit else None


def check_scores(_step: int, scalars: Scalars) -> Seen | None:
    """Check that the scores of a step differ; without a difference there is nothing to learn from."""
    low, high = (scalars.get(key, math.nan) for key in SCORES)
    return Seen("", low) if low == high else None


def make_alert_conditions(thresholds: Mapping[str, float]) -> list[Condition]:
    """Return the conditions of alerts, with the numbers of steps and the thresholds of a profile; NaN is off."""
    rows: tuple[tuple[str, str, Check], ...] = (
        ("reward_zero", "reward_zero_steps", ZeroReward()),
        ("reward_range", "reward_range_steps", functools.partial(check_range, thresholds)),
        ("entropy", "entropy_steps", EntropyFall(thresholds)),
        ("truncated", "response_steps", functools.partial(check_cut, thresholds)),
    )
    found = [Condition(kind, steps, check) for kind, name, check in rows if (steps := count_steps(thresholds, name))]
    return [*found, *make_silent_conditions(thresholds), Condition("equal_scores", 1, check_scores)]


def make_silent_conditions(thresholds: Mapping[str, float]) -> list[Condition]:
    """Return the conditions under which a training goes on as before and learns something wrong. They are always on."""
    return [Condition("rollout_gap", 1, GapJump(thresholds))]


def count_steps(thresholds: Mapping[str, float], name: str) -> int:
    """Return a threshold that is a number of steps; 0 where it is off."""
    return 0 if math.isnan(thresholds[name]) else max(1, int(thresholds[name]))
