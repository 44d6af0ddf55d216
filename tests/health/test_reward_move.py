# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which components of the reward moved when the reward moved."""

import random
from itertools import combinations
from statistics import fmean

from verl_otel.cli.learning import describe_move
from verl_otel.health.reward_move import find_move

REWARD = "critic/rewards/mean"


def make(steps, reward, **components):
    return [
        (step, {REWARD: reward(step), **{f"reward/{name}_mean": value(step) for name, value in components.items()}})
        for step in range(1, steps + 1)
    ]


def noisy(value, seed):
    noise = random.Random(seed)
    return lambda step: value(step) + noise.uniform(-0.02, 0.02)


def test_the_component_that_fell_with_the_reward_is_named_and_one_that_stayed_is_not():
    """The reward is half of each, and collapses at step 61 because answers are no longer right."""
    right, form = noisy(lambda step: 0.8 if step <= 60 else 0.2, 1), noisy(lambda _: 0.9, 2)
    steps = [
        (number, {**values, REWARD: (values["reward/right_mean"] + values["reward/form_mean"]) / 2})
        for number, values in make(100, lambda _: 0.0, right=right, form=form)
    ]
    move = find_move(steps, 20)
    assert move.first[1] <= 60 < move.last[0]
    assert {change.name: change.moved for change in move.components} == {"right": True, "form": False}
    text = describe_move(move)
    assert text.startswith("at step 61 the mean reward fell from 0.8")
    assert "right fell from 0.8" in text
    assert text.endswith(" did not")


def test_the_windows_are_those_with_the_largest_difference():
    """Sought here among all pairs that do not overlap."""
    noise = random.Random(3)
    rewards = [noise.gauss(0, 0.1) + (step > 30) - (step > 50) for step in range(1, 81)]
    move = find_move(make(80, lambda step: rewards[step - 1], part=lambda step: step), 10)
    means = {begin: fmean(rewards[begin : begin + 10]) for begin in range(71)}
    begin, end = max(
        (pair for pair in combinations(means, 2) if pair[1] - pair[0] >= 10),
        key=lambda pair: abs(means[pair[1]] - means[pair[0]]),
    )
    assert (move.first, move.last) == ((begin + 1, begin + 10), (end + 1, end + 10))


def test_no_move_is_reported_where_noise_explains_it():
    """Nor of a reward without components, nor of a few steps."""
    noise = noisy(lambda _: 0.5, 4)
    assert find_move(make(200, noise, part=noise), 20) is None
    assert find_move(make(100, lambda step: step / 100), 20) is None
    assert find_move(make(7, lambda step: step, part=lambda step: step), 2) is None
    assert find_move(make(9, lambda step: 2.0**step, part=lambda step: 2.0**step), 3) is None


def test_no_component_may_have_moved():
    """A penalty that is no component moved the reward."""
    move = find_move(make(60, lambda step: float(step > 30), part=noisy(lambda _: 1.0, 5)), 20)
    assert "no component moved" in describe_move(move)


def test_a_component_that_fell_while_another_rose_is_named():
    """The mean reward stays, so that only the components show what is learned."""
    right, form = noisy(lambda step: 0.9 - 0.6 * (step > 40), 6), noisy(lambda step: 0.1 + 0.6 * (step > 40), 7)
    move = find_move(make(100, noisy(lambda _: 0.5, 8), right=right, form=form), 20)
    assert (move.moved, move.step) == (False, 41)
    text = describe_move(move)
    assert text.startswith("at step 41 the mean reward moved within the noise between steps (0.")
    assert "right fell from 0.9" in text
    assert "form rose from 0.0" in text


def test_a_move_over_many_steps_has_no_step_of_its_own():
    """It is named by the steps between which it moved."""
    move = find_move(make(100, lambda step: step / 100, part=noisy(lambda _: 0.5, 9)), 20)
    assert move.step is None
    assert describe_move(move).startswith("from steps 1-20 to steps 81-100 the mean reward rose")
