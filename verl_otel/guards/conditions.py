# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions under which a training should stop. Each sees the scalars of every step, in order, and holds for a number of steps in a row.

Scalars have verl's keys, such as ``actor/ppo_kl``. Conditions do not depend on the scale or sign of the reward: a fall is measured against what
the run has gained, and against the noise between its steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.health.recent_past import SMOOTHED, LearningProgress
from verl_otel.health.thresholds import DEFAULTS
from verl_otel.semconv.scalar_keys import PPO, REFERENCE_KL, REWARDS

Scalars = Mapping[str, float]
(POLICY_KL,) = PPO["kl_div"]
FINITE: Final = (
    *REWARDS,
    POLICY_KL,
    *REFERENCE_KL,
    *(PPO[name][0] for name in ("policy_loss", "grad_norm", "entropy", "value_loss", "value_grad_norm")),
)
"""Scalars that must be finite."""
NOISE_FACTOR: Final = 8.0
"""A fall counts beyond this many standard errors of a mean of five steps: among thousands of such means some lie 4 away from the others."""
_RECENT: Final = 100
"""Steps from which the noise is estimated."""
LEVEL: Final = 20
"""Steps whose mean is what a run has reached: rewards that are rarely above 0 reach a high mean of five by chance."""
_DIFFERENCE: Final = math.sqrt(math.pi) / 2
"""Standard deviation of independent normal values per mean absolute difference of two of them (von Neumann et al., The Mean Square Successive
Difference, 1941, has the squared form). A median would be 0 for rewards of 0 and 1."""


class Finding(NamedTuple):
    """A condition that has held for its number of steps."""

    guard: str
    """Name of the condition: ``nan``, ``kl``, ``reward_fall`` or ``plateau``."""
    step: int
    text: str
    """What was seen, with numbers."""


Check = Callable[[int, Scalars], "str | None"]
"""Returns what was seen if the condition holds at a step, else None."""


class Condition:
    """Counts for how many steps in a row a check has held.

    Args:
        guard: Name of the condition.
        steps: Number of steps after which it is a finding, at least 1.
        check: The check of one step.
    """

    def __init__(self, guard: str, steps: int, check: Check) -> None:
        self.guard = guard
        self.steps = steps
        self._check = check
        self._held = 0

    def observe(self, step: int, scalars: Scalars) -> Finding | None:
        """Add a step; return a finding at the step at which the condition has held long enough."""
        text = self._check(step, scalars)
        self._held = self._held + 1 if text is not None else 0
        if text is None or self._held != self.steps:
            return None
        return Finding(self.guard, step, text if self.steps == 1 else f"{text}, for {self.steps} steps")


def check_finite(_step: int, scalars: Scalars) -> str | None:
    """Check that losses, rewards and gradient norms are finite."""
    wrong = next((key for key in FINITE if key in scalars and not math.isfinite(scalars[key])), None)
    return None if wrong is None else f"{wrong} is {scalars[wrong]}"


def make_kl_check(thresholds: Mapping[str, float]) -> Check:
    """Return the check of the KL divergence to the last policy and to the reference policy."""
    limits = {POLICY_KL: thresholds["policy_kl_stop"], **dict.fromkeys(REFERENCE_KL, thresholds["reference_kl"])}

    def check(_step: int, scalars: Scalars) -> str | None:
        for key, limit in limits.items():
            value = scalars.get(key, 0.0)
            if math.isfinite(value) and value > limit:
                return f"{key} {value:.3g} is above {limit:g}"
        return None

    return check


class RewardFall:
    """Checks whether the reward has lost a share of what it had gained.

    The mean of five steps must lie below the best mean of twenty by more than ``reward_fall`` of the difference between the best and the lowest
    such mean, and by more than the noise between steps explains: that of the last steps, and that of the whole run.

    Args:
        share: The threshold ``reward_fall``; NaN: nothing is a fall.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._values: deque[float] = deque(maxlen=LEVEL)
        self._differences: deque[float] = deque(maxlen=_RECENT)
        self._total, self._count = 0.0, 0
        self._best, self._lowest = -math.inf, math.inf

    def __call__(self, _step: int, scalars: Scalars) -> str | None:
        """Add a step; return what was seen if the reward is down."""
        reward = find_reward(scalars)
        if reward is None:
            return None
        self._add(reward)
        if self._count < LEVEL:
            return None
        mean, level = fmean(list(self._values)[-SMOOTHED:]), fmean(self._values)
        self._best = max(self._best, level)
        gained = self._best - self._lowest if math.isfinite(self._lowest) else 0.0
        limit = max(self._share * gained, NOISE_FACTOR * self._find_noise() / math.sqrt(SMOOTHED))
        if gained > 0 and self._best - mean > limit:
            return f"the reward fell from {self._best:.3g} to {mean:.3g}, after it had risen by {gained:.3g}"
        self._lowest = min(self._lowest, level)
        return None

    def _add(self, reward: float) -> None:
        if self._values:
            difference = abs(reward - self._values[-1])
            self._differences.append(difference)
            self._total += difference
        self._values.append(reward)
        self._count += 1

    def _find_noise(self) -> float:
        """Return the standard deviation between steps, that of the last ones or of the run, whichever is larger."""
        return _DIFFERENCE * max(fmean(self._differences), self._total / (self._count - 1))


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

    def __call__(self, step: int, scalars: Scalars) -> str | None:
        """Add a step; return what was seen if the reward has stopped rising."""
        reward = find_reward(scalars)
        if reward is None:
            return None
        self._progress.add(step, reward)
        since, trend = self._progress.count_since_best(step), self._progress.find_trend()
        if since is None or trend is None or since < self._steps or not trend < self._rising:
            return None
        return f"no better reward for {since} steps, and no rise in the last ones"


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
    """Return the conditions that are switched on.

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
