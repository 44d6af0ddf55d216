# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions: found where they hold, and not where the reward is noise, zero or negative."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.guards.wording import describe
from verl_otel.health.conditions import FINITE, make_conditions
from verl_otel.health.thresholds import DEFAULTS

OFF = {"nan": 0, "kl": 0, "reward_fall": 0, "plateau": 0}
REWARD = "critic/rewards/mean"


def replay(rewards, key=REWARD, **steps):
    """Return the first finding over the values of one scalar."""
    conditions = make_conditions(**{**OFF, **steps})
    for number, value in enumerate(rewards, 1):
        for condition in conditions:
            finding = condition.observe(number, {key: value})
            if finding is not None:
                return finding
    return None


def batch(rng, share, size=8):
    """The mean reward of a batch of 0 and 1."""
    return sum(rng.random() < share for _ in range(size)) / size


def test_a_profile_sets_the_thresholds():
    """The KL that stops a run, and the share of a fall, are those of the profile; NaN is off."""

    def stops(values, **changed):
        conditions = make_conditions({**DEFAULTS, **changed}, **{**OFF, "kl": 1})
        return any(condition.observe(1, values) for condition in conditions)

    assert not stops({"actor/ppo_kl": 0.15})
    assert stops({"actor/ppo_kl": 0.15}, policy_kl_stop=0.1)
    assert stops({"actor/kl_loss": 20})
    assert not stops({"actor/kl_loss": 20}, reference_kl=math.nan)


@pytest.mark.parametrize("key", FINITE)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found_after_its_number_of_steps(key, value):
    finding = replay([1.0, value, 1.0, value, value, value], key, nan=3)
    assert (finding.kind, finding.step) == ("nan", 6)
    assert describe(finding) == f"{key} is {value}, for 3 steps"
    assert replay([1.0, value, value, 1.0] * 9, key, nan=3) is None


@pytest.mark.parametrize(
    ("key", "below", "above"),
    [("actor/ppo_kl", 0.19, 0.3), ("actor/kl_loss", 14, 20), ("actor/reward_kl_penalty", 14, 20)],
)
def test_a_divergence_above_its_threshold_is_found(key, below, above):
    assert replay([below] * 100, key, kl=5) is None
    assert replay([below] * 10 + [above] * 5, key, kl=5).step == 15
    assert replay([math.nan, above] * 20, key, kl=2) is None


@pytest.mark.parametrize("offset", [0.0, -10.0, 1000.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_fall_is_found_whatever_the_scale_and_sign(offset, scale):
    """Rises by 1 over 200 steps, then loses nine tenths of it."""
    for seed in range(20):
        rng = random.Random(seed)
        rewards = [
            offset + scale * (min(1, n / 200) if n < 300 else 0.1) + scale * rng.gauss(0, 0.05) for n in range(400)
        ]
        finding = replay(rewards, reward_fall=5)
        assert finding is not None
        assert 300 < finding.step <= 312
        assert "the reward fell from" in describe(finding)


@pytest.mark.parametrize(
    "make",
    [
        lambda rng, n: 0.0,
        lambda rng, n: -3.0,
        lambda rng, n: rng.gauss(0, 1),
        lambda rng, n: -5 + sum(rng.expovariate(1) for _ in range(8)) / 8,
        lambda rng, n: min(1, n / 500) + rng.gauss(0, 0.1),
        lambda rng, n: batch(rng, 0.02),
        lambda rng, n: batch(rng, 0.5),
        lambda rng, n: batch(rng, 0.5, 1),
        lambda rng, n: batch(rng, min(0.9, n / 1000)),
        lambda rng, n: math.nan if n % 7 == 0 else rng.gauss(1, 1),
    ],
)
@pytest.mark.parametrize("runs", [10, pytest.param(50, marks=pytest.mark.full)])
def test_noise_is_no_fall(make, runs):
    """None of so many runs of 1,000 steps without a fall is stopped."""
    for seed in range(runs):
        rng = random.Random(seed)
        assert replay([make(rng, n) for n in range(1000)], reward_fall=5) is None


@pytest.mark.parametrize("high", [6, 15, 19, 20, 21, 60])
def test_a_run_that_only_falls_has_not_risen(high):
    """A reward of 1 that becomes 0 is found at its step, and what is lower after the best is no gain."""
    rewards = [1.0] * high + [0.0] * 40
    finding = replay(rewards, reward_fall=5)
    assert (finding.began, describe(finding)) == (high + 1, "the reward fell from 1 to 0, for 5 steps")


def test_a_gain_is_what_came_before_the_best():
    """Rises by 0.5, has its best, and loses half of the gain slowly."""
    rewards = [0.5] * 40 + [1.0] * 40 + [1 - 0.0125 * n for n in range(40)]
    finding = replay(rewards, reward_fall=5)
    assert finding.seen.gained == pytest.approx(0.5)
    assert finding.seen.value == pytest.approx(0.75, abs=0.08)


def test_a_fall_that_recovers_in_time_is_none():
    rewards = [min(1, n / 100) for n in range(200)] + [0.0] * 5 + [1.0] * 50
    assert replay(rewards, reward_fall=8) is None
    assert replay(rewards, reward_fall=2) is not None


def test_a_plateau_is_found_and_a_slow_rise_is_none():
    rng = random.Random(0)
    flat = [min(1, n / 50) + rng.gauss(0, 0.02) for n in range(400)]
    assert 150 <= replay(flat, plateau=100).step <= 400
    assert replay([n / 1000 for n in range(1000)], plateau=100) is None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.integers(1, 5))
def test_any_values_are_taken(rewards, steps):
    """Whatever a reward is, conditions neither raise nor give a finding without a number of steps."""
    finding = replay(rewards, nan=steps, kl=steps, reward_fall=steps, plateau=steps)
    assert finding is None or steps <= finding.step <= len(rewards)
