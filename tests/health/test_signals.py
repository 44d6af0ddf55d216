# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a run learned, from plain scalars: each condition at its bounds, and signals and progress by other computations."""

import math
from statistics import fmean

import pytest

from verl_otel.guards.wording import describe
from verl_otel.health import profiles, signals

REWARD, KL, ENTROPY, CUT = "critic/rewards/mean", "actor/ppo_kl", "actor/entropy", "response_length/clip_ratio"
GAP = "training/rollout_probs_diff_mean"


def judge(steps=160, profile="default", **values):
    """Judge a run whose scalars are constants, or functions of the step."""
    rows = [
        (step, {key: float(value(step) if callable(value) else value) for key, value in values.items()})
        for step in range(1, steps + 1)
    ]
    return signals.judge(rows, profiles.load(profile))


def find(learning):
    """The first step at which something was noticed, the last one at which it held, and how often it began, by kind."""
    return {one.first.kind: (one.first.step, one.last_step, one.times) for one in learning.troubles}


@pytest.mark.parametrize(
    ("kind", "step", "key", "value"),
    [
        ("nan", 12, "actor/grad_norm", lambda step: math.nan if step >= 12 else 1),
        ("kl", 24, KL, lambda step: 0.21 if step >= 20 else 0.2),  # 0.2 for 5 steps
        ("kl", 24, "actor/kl_loss", lambda step: 15.1 if step >= 20 else 15),
        ("reward_zero", 22, REWARD, lambda step: 0 if step >= 20 else 0.4),  # 3 steps
        ("reward_fall", 85, REWARD, lambda step: step / 80 if step <= 80 else 0.1),
        ("plateau", 148, REWARD, lambda step: min(step, 40) + (step % 7) / 1e3),  # the best mean: 44 to 48
        ("rollout_gap", 20, GAP, lambda step: 0.0101 if step >= 20 else 0.002),  # above 0.01, and five times as much
        ("entropy", 24, ENTROPY, lambda step: 0.0199 if step >= 20 else 0.0995),  # below 0.02 and a fifth
    ],
)
def test_a_condition_is_found_at_the_step_at_which_a_guard_or_an_alert_would_have_spoken(kind, step, key, value):
    """Here the values before are at the bound, or next to it, and do not count."""
    found = find(judge(**{key: value}))
    assert found[kind][0] == pytest.approx(step, abs=3 if kind == "reward_fall" else 0)
    assert key == REWARD or set(found) == {kind}  # a reward that is lost is several findings


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("kl", KL, lambda step: 0.21 if step >= 20 else 0.2),
        ("reward_zero", REWARD, lambda step: 0 if step >= 20 else 0.4),
        ("reward_fall", REWARD, lambda step: (step / 40 if step < 60 else 0.2) + (step % 3) / 100),
    ],
)
def test_a_condition_is_dated_by_the_step_at_which_it_began(kind, key, value):
    """It is noticed some steps later, a fall of the reward by means of five."""
    first = next(one.first for one in judge(**{key: value}).troubles if one.first.kind == kind)
    assert first.began == (60 if kind == "reward_fall" else 20)
    assert first.step > first.began


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KL, lambda step: 0.3 if step % 5 else 0.1),  # never 5 steps in a row
        (REWARD, lambda step: 0 if step % 3 else 0.4),
        (REWARD, 0),  # as it was before
        (ENTROPY, lambda step: 0.0199 if step >= 20 else 0.0994),  # less than 5 times as high
        (ENTROPY, lambda step: 0.02 if step >= 20 else 1),
        (CUT, 1),  # off in this profile
        (GAP, lambda step: 0.01 if step >= 20 else 0.001),
        (GAP, lambda step: 0.05 if step >= 20 else 0.01),
        (GAP, lambda step: 0.05 if step >= 2 else 0.001),  # before it is known what is usual
    ],
)
def test_on_the_other_side_of_a_bound_is_nothing(key, value):
    """One step less in a row, or a value at the threshold."""
    assert find(judge(80, **{key: value})) == {}


def test_equal_scores_are_counted():
    """With the first and the last step; equal scores are no finding where they differ by step only."""
    found = judge(40, **{"critic/score/min": 0, "critic/score/max": lambda step: step not in (7, 9, 30)})
    assert find(found) == {"equal_scores": (7, 30, 3)}
    assert describe(found.troubles[0].first) == "all scores of the step were 0"


def test_thresholds_are_those_of_the_profile():
    """Truncation and a low reward are findings where the profile limits them; else the share is named."""
    assert judge(40, **{CUT: 0.6}).cut == 0.6
    assert judge(40, **{CUT: 0.3}).cut is None
    strict = judge(40, "math", **{CUT: 0.6, REWARD: 0.01})
    assert find(strict) == {"truncated": (10, 40, 1), "reward_range": (20, 40, 1)}
    assert [describe(one.first) for one in strict.troubles] == [
        "60% of the responses were cut off at the limit of tokens, more than 30%, for 10 steps",
        "the mean reward 0.01 is below 0.02, for 20 steps",
    ]
    assert strict.cut is None


def test_progress_is_that_of_the_best_mean_of_five_steps():
    """Sought here in all windows; too few rewards have none, and the trend needs eight."""
    rewards = [math.sin(step) + step / 50 for step in range(1, 61)]
    means = {last: fmean(rewards[last - 5 : last]) for last in range(5, 61)}
    best = max(means, key=means.get)
    progress = judge(60, **{REWARD: lambda step: rewards[step - 1]}).progress
    assert (progress.best_step, progress.since, progress.values) == (best, 60 - best, 20)
    assert judge(4, **{REWARD: lambda step: step}).progress is None
    assert judge(30, **{REWARD: 1}).progress is None, "a reward that never changes has no best step"
    assert judge(30, **{REWARD: lambda step: step if step < 20 else math.nan}).progress is None, "it has no last steps"
    assert judge(7, **{REWARD: lambda step: step}).progress[2:] == (None, 7, False)
    assert judge(8, **{REWARD: lambda step: step}).progress[2:] == (1, 8, True)


def test_a_score_that_is_the_reward_is_no_signal_of_its_own():
    """Nor is what is 0 throughout, except the reward; the scores of validations come last, each with its key."""
    course = {
        REWARD: lambda step: step % 3,
        "critic/score/mean": lambda step: step % 3,
        "val-core/a/acc/mean@1": 1,
        KL: 0,
    }
    assert [signal.name for signal in judge(30, **course).signals] == ["reward_mean", "val-core/a/acc/mean@1"]
    other = {**course, "critic/score/mean": lambda step: step % 4}
    assert [signal.name for signal in judge(30, **other).signals][:2] == ["reward_mean", "score_mean"]
    assert [signal.name for signal in judge(30, **{REWARD: 0}).signals] == ["reward_mean"]


def test_experts_that_get_more_tokens_than_others_are_a_signal():
    """The scalar of verl is by how much the busiest expert of all layers exceeds the mean, as a share of it."""
    (signal,) = judge(60, **{"rollout/moe/max_vio/max": lambda step: step / 10}).signals
    assert (signal.name, signal.low, signal.high, signal.high_step, signal.trend) == ("expert_overload", 0.1, 6, 60, 1)


def test_a_run_without_scalars_has_nothing():
    """Neither with steps nor without."""
    for learning in (signals.judge([], profiles.load()), judge(30, **{"timing_s/gen": 1})):
        assert (learning.signals, learning.troubles, learning.progress, learning.cut) == ((), (), None, None)
