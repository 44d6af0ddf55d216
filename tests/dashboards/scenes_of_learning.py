# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Alerts of the learning that look at one scalar, for some steps or minutes."""

import math

from tests.dashboards.scenes import Says, Scene
from tests.dashboards.trainings import MINUTE, RUN, Training, of_process, of_run, watch
from verl_otel.health import profiles


def steps(
    name, metric, value, bad, *, near, long, alert, summary, severity=None, thresholds=None, more=None, labels=None
):
    """One scalar: for ``near`` steps bad, which is not enough, then for ``long`` ones, then well again."""
    worst = {**dict.fromkeys(range(40, 40 + near), bad), **dict.fromkeys(range(60, 60 + long), bad)}

    def scalars(step):
        return {metric: worst.get(step, value), **(more(step) if more else {})}

    at = 61 + long - 1
    return Scene(
        name,
        watch([Training(MINUTE, scalars=scalars)], 61 + long + 20, interval=60),
        {39: set(), 40 + near: set(), 51: set(), 60: set(), at: {alert}, at + 8: set()},
        (
            Says(
                at,
                alert,
                {"verl_run_id": RUN, **({"severity": severity} if severity else {}), **(labels or {})},
                f"Run {RUN}: {summary}",
            ),
        ),
        thresholds or {},
        interval=60,
    )


def cliff(name, *, diverged, spread=True):
    """The mean falls from 0.8 to 0.2; one bad batch before that is no cliff."""
    fallen = {40: 0.1, **dict.fromkeys(range(70, 100), 0.2)}

    def scalars(step):
        return {
            "verl_average_reward": fallen.get(step, 0.8),
            'verl_reward_score_mean{verl_data_source="math"': fallen.get(step, 0.8),
            **({'verl_reward_score_stddev{verl_data_source="math"': 0.2} if spread else {}),
            "verl_critic_vf_loss": (40 if diverged else 0.9) if step >= 68 else 0.5,
        }

    critic = "diverged" if diverged else "unremarkable"
    summary = ", and the critic has diverged" if diverged else " and has stayed down for 10 more steps"
    return Scene(
        name,
        watch([Training(MINUTE, scalars=scalars)], 110, interval=60),
        {39: set(), 44: set(), 72: set(), 85: {"RewardCliff"}, 108: set()},
        (of_run(84, "RewardCliff", f"the reward has fallen off a cliff{summary}", critic=critic),),
        interval=60,
    )


def no_cliff():
    """About 0, a fall by all that there was is noise: less than a standard deviation."""

    def scalars(step):
        return {
            "verl_average_reward": 0.1 if step < 30 else 0.01,
            'verl_reward_score_stddev{verl_data_source="math"': 0.4,
        }

    series = watch([Training(MINUTE, scalars=scalars)], 60, interval=60)
    return Scene("a small reward falls", series, {each: set() for each in range(0, 60, 3)}, interval=60)


def low_entropy():
    """Close to the threshold for long, and below it without ever having been high: a model that is sure from the start."""
    low = {
        f"the entropy {name}": lambda step, first=first, last=last: {"verl_actor_entropy": first if step < 30 else last}
        for name, first, last in (("comes down", 0.15, 0.04), ("was never high", 0.08, 0.01))
    }
    for name, scalars in low.items():
        series = watch([Training(MINUTE, scalars=scalars)], 60, interval=60)
        yield Scene(name, series, {each: set() for each in range(0, 60, 3)}, interval=60)


def not_a_number():
    """A loss is NaN for five minutes, later the KL that is a part of the reward; other scalars may be NaN."""

    def scalars(step):
        return {
            "verl_actor_pg_loss": math.nan if 20 <= step < 25 else -0.1,
            "verl_actor_grad_norm": math.inf if 40 <= step < 45 else 0.3,
            "verl_actor_reward_kl_penalty": math.nan if 52 <= step < 57 else 0.01,
            "verl_response_length_non_aborted_mean": math.nan,
        }

    return Scene(
        "a loss is not a number",
        watch([Training(MINUTE, scalars=scalars)], 60),
        {19: set(), 24: {"LossNaN"}, 28: set(), 44: {"LossNaN"}, 48: set(), 56: {"LossNaN"}, 59: set()},
        (
            of_process(
                24,
                "LossNaN",
                "trainer-0",
                "actor_pg_loss is not a finite number",
                job="verl",
                verl_role="trainer",
                verl_scalar="actor_pg_loss",
            ),
        ),
    )


def explosion():
    """15 for nine minutes is not enough, nor is 12 for a quarter of an hour; here the KL is part of the reward."""

    def scalars(step):
        kl = 16 if 20 <= step < 29 or 50 <= step < 70 else 12 if 30 <= step < 46 else 0.04
        return {"verl_actor_reward_kl_penalty": kl}

    return Scene(
        "the KL to the reference explodes",
        watch([Training(MINUTE, scalars=scalars)], 90),
        {19: set(), 29: set(), 45: set(), 60: set(), 64: {"KLExplosion"}, 75: set()},
        (of_run(64, "KLExplosion", "the KL to the reference policy is 16, possibly reward hacking"),),
    )


def bounded(_step):
    return {'verl_limit{verl_limit_name="response_tokens"': 512}


def at_the_bound(step):
    return {**bounded(step), "verl_response_length_max": 512}


def equal_groups(_step):
    return {'verl_reward_groups{verl_outcome="solved"': 0, 'verl_reward_groups{verl_outcome="failed"': 19}


def far_apart(_step):
    return {"verl_training_rollout_probs_diff_mean": 0.02}


def noisy_source(_step):
    return {'verl_reward_score_mean{verl_data_source="math"': 1.0}


def healthy(profile, reward, length, loss):
    """A run of the kind that a profile is for, two hours long: with its thresholds nothing fires.

    Args:
        profile: Name of the profile.
        reward: Mean reward by step.
        length: Mean length of the responses, of 512.
        loss: Policy loss.
    """

    def scalars(step):
        mean = reward(step)
        return {
            "verl_average_reward": mean,
            'verl_reward_score_mean{verl_data_source="math"': mean,
            'verl_reward_score_stddev{verl_data_source="math"': 0.3 * mean,
            "verl_actor_ppo_kl": 0.02,
            "verl_actor_pg_loss": loss,
            'verl_training_change_ratio{verl_metric="policy_loss"': 2.5,
            "verl_response_length_mean": length,
            "verl_response_length_max": length,
            "verl_response_length_clip_ratio": 1,  # of v1 trainers: all are as long as the longest, none at the bound
            **bounded(step),
        }

    return Scene(
        f"a healthy run with the profile {profile}",
        watch([Training(MINUTE, scalars=scalars)], 120, interval=60),
        {minute: set() for minute in range(0, 120, 5)},
        thresholds=profiles.load(profile).values,
        interval=60,
    )


SCENES = [
    healthy("rlhf", lambda step: 1.2 + step / 60, 490, -0.2),
    healthy("math", lambda step: 0.2 + step / 200, 250, -0.01),
    healthy("agent", lambda step: 0.1 + step / 200, 120, 0.01),
    cliff("the reward falls off a cliff", diverged=False),
    cliff("the reward falls off a cliff with the critic", diverged=True),
    cliff("the reward falls off a cliff, and nobody knows its spread", diverged=False, spread=False),
    no_cliff(),
    *low_entropy(),
    not_a_number(),
    explosion(),
    steps("the reward is 0", "verl_average_reward", 0.4, 0, near=2, long=4,
          alert="RewardZero", summary="the mean reward fell to exactly 0 and has stayed there for 3 more steps"),
    steps("most groups have equal scores", 'verl_reward_groups{verl_outcome="signal"', 12, 1, near=9, long=40, more=equal_groups,
          alert="GroupsWithoutSignal", summary="95% of the groups of a step have equal scores, from which GRPO learns nothing"),
    steps("the policy KL is high", "verl_actor_ppo_kl", 0.05, 0.15, near=4, long=10, severity="warning",
          alert="PolicyKLHigh", summary="the policy moves too far per step, for 9 more steps"),
    steps("the policy KL is very high", "verl_actor_ppo_kl", 0.02, 0.3, near=4, long=10, severity="critical",
          alert="PolicyKLHigh", summary="the policy moves so far per step, for 9 more steps, that older guides stop here"),
    steps("the policy KL is too low", "verl_actor_ppo_kl", 0.008, 0.003, near=10, long=60, thresholds={"policy_kl_low": 0.005},
          alert="PolicyKLTooLow", summary="the policy has hardly moved for 59 more steps"),
    steps("the entropy collapses", "verl_actor_entropy", 0.15, 0.01, near=4, long=10,
          alert="EntropyCollapse", summary="the entropy has collapsed and has stayed down for 9 more steps"),
    steps("the policy loss is positive", "verl_actor_pg_loss", -0.2, 0.1, near=10, long=25, thresholds={"policy_loss_positive_steps": 20},
          alert="PolicyLossPositive", summary="the policy loss has been above 0 for 24 more steps"),
    steps("the policy loss is large", "verl_actor_pg_loss", -0.2, -0.8, near=8, long=15, thresholds={"policy_loss_size": 0.5},
          alert="PolicyLossLarge", summary="the policy loss has been large for 14 more steps"),
    steps("the policy loss jumps", 'verl_training_change_ratio{verl_metric="policy_loss"', 2, 7, near=0, long=3, thresholds={"policy_loss_jump": 5},
          alert="PolicyLossJump", summary="the policy loss is 7.0 times as large as in the 20 steps before"),
    steps("engine and trainer differ", 'verl_training_change_ratio{verl_metric="rollout_gap"', 2, 7, near=0, long=3, severity="warning",
          alert="RolloutGapJump", summary="the probabilities of engine and trainer differ 7.0 times as much as in the 20 steps before", more=far_apart),
    steps("the rewards scatter", 'verl_reward_score_stddev{verl_data_source="math"', 0.4, 0.6, near=10, long=25, thresholds={"reward_noise": 0.5},
          alert="RewardNoisy", summary="the rewards have scattered widely about their mean for 24 more steps", more=noisy_source),
    steps("the reward is below its range", "verl_average_reward", 1.2, 0.8, near=18, long=30, thresholds={"reward_low": 1},
          alert="RewardOutOfRange", summary="the mean reward has been below its range for 29 more steps", labels={"side": "low"}),
    steps("the reward is above its range", "verl_average_reward", 3, 5, near=18, long=30, thresholds={"reward_high": 4.5},
          alert="RewardOutOfRange", summary="the mean reward has been above its range for 29 more steps", labels={"side": "high"}),
    steps("the responses are short", "verl_response_length_mean", 450, 300, near=8, long=15, thresholds={"response_short": 0.78}, more=bounded,
          alert="ResponseTooShort", summary="the responses have been far shorter than their bound for 14 more steps"),
    steps("the responses are near their bound", "verl_response_length_mean", 300, 480, near=8, long=15, thresholds={"response_near": 0.9}, more=bounded,
          alert="ResponseNearBound", summary="the responses have been close to their bound for 14 more steps"),
    steps("the responses are cut off", "verl_response_length_clip_ratio", 0.3, 0.8, near=8, long=15, thresholds={"response_cut": 0.5}, more=at_the_bound,
          alert="ResponseTooLong", summary="too many responses have been cut off at their bound for 14 more steps"),
]  # fmt: skip
