# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a condition has seen, in words: for the log of a training, its events, and the commands."""

from __future__ import annotations

from typing import Final

from verl_otel.config import SETTINGS
from verl_otel.health.conditions import Finding

_TEXTS: Final = {
    "nan": "{key} is {value}",
    "kl": "{key} {value:.3g} is above {limit:g}",
    "reward_fall": "the reward fell from {before:.3g} to {value:.3g}{risen}",
    "plateau": "no better reward for {value} steps, and no rise in the last ones",
    "reward_zero": "the mean reward is exactly 0, which it was not before",
    "reward_range": "the mean reward {value:.3g} is {side} {limit:g}",
    "entropy": "entropy {value:.3g} is below {limit:g}, after it was {before:.3g}",
    "truncated": "{value:.0%} of the responses were cut off at the limit of tokens, more than {limit:.0%}",
    "rollout_gap": "the engine's probabilities differ from the trainer's by {value:.3g} in the mean, after {before:.3g} in the steps before",
    "equal_scores": "all scores of the step were {value:.3g}",
}
"""By kind of finding."""


def describe(finding: Finding) -> str:
    """Return what was seen, with numbers.

    Example:
        "actor/ppo_kl 0.3 is above 0.2, for 5 steps"
    """
    seen = finding.seen
    side = "below" if seen.value < seen.limit else "above"
    risen = f", after it had risen by {seen.gained:.3g}" if seen.gained > 0 else ""
    text = _TEXTS[finding.kind].format(**seen._asdict(), side=side, risen=risen)
    return text if finding.steps == 1 else f"{text}, for {finding.steps} steps"


def find_variable(guard: str) -> str:
    """Return the environment variable of a guard."""
    return next(setting.variable for setting in SETTINGS if setting.field == f"stop_on_{guard}")
