# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The last steps against those before: sudden changes are seen, single slow steps and drifts are not."""

import math
import random

import pytest

from verl_otel.health.recent_past import (
    BEFORE,
    MIN_BEFORE,
    RECENT,
    RecentPast,
    StepFollower,
    find_course,
    find_jump,
    measure_trend,
)


def follow(values, **keywords):
    """Return the ratio after each value."""
    past, found = RecentPast(**keywords), []
    for value in values:
        past.add(value)
        found.append(past.find_ratio())
    return found


def test_a_sudden_slowdown_is_seen_in_the_second_slow_step():
    """Of three steps two are slow then, whatever a step takes."""
    for seconds in (0.01, 10, 7200):
        ratios = follow([seconds] * 20 + [3 * seconds] * 3)
        assert ratios[20] == pytest.approx(1)
        assert ratios[21] == ratios[22] == pytest.approx(3)


def test_one_slow_step_is_no_slowdown():
    ratios = follow(([1.0] * 9 + [30.0]) * 6)
    assert max(ratio for ratio in ratios if ratio is not None) == 1


def test_what_stays_slow_becomes_usual():
    """After as many slow steps as are compared with, the ratio is 1 again."""
    ratios = follow([1.0] * BEFORE + [3.0] * (BEFORE + RECENT))
    assert ratios[-1] == 1


def test_growing_responses_are_no_slowdown():
    """A step that becomes 2 % longer each time, with noise of 10 %, never doubles against its recent past."""
    source = random.Random(3)
    ratios = follow([1.02**step * source.uniform(0.9, 1.1) for step in range(300)])
    assert max(ratio for ratio in ratios if ratio is not None) < 1.6


def test_a_short_run_has_no_past():
    ratios = follow([1.0] * (MIN_BEFORE + RECENT))
    assert ratios[:-1] == [None] * (MIN_BEFORE + RECENT - 1)
    assert ratios[-1] == 1


def test_the_largest_of_the_last_values_is_a_jump():
    """The sign does not matter; a jump is seen in its own step, and for as many steps as are recent."""
    ratios = follow([-0.1, 0.1] * 10 + [-2.0] + [0.1] * 3, largest=True)
    assert [pytest.approx(ratio) for ratio in ratios[20:]] == [20, 20, 20, 1]


def test_nothing_is_a_multiple_of_nothing():
    """Without tools their time is 0."""
    assert set(follow([0.0] * 30)) == {None}


def test_values_that_are_not_finite_are_ignored():
    assert follow([1.0] * 20 + [math.nan, math.inf, -math.inf])[-1] == 1


@pytest.mark.parametrize(
    ("usual", "recent", "ratio"), [(1e-5, 5e-5, 1), (1e-5, 0.3, 3), (1.0, 0.05, 0.1), (1.0, 4.0, 4)]
)
def test_durations_too_short_to_matter_are_no_slowdown(usual, recent, ratio):
    """Calls of some microseconds take several times as long on a busy machine."""
    follower = StepFollower()
    for seconds in [usual] * BEFORE + [recent] * RECENT:
        found = follower.follow_changes({"generation": seconds})
    assert found == [("verl.training.change", "generation", pytest.approx(ratio))]


@pytest.mark.parametrize("count", range(3, 60))
def test_a_straight_line_has_no_jump_and_a_step_has_one(count):
    assert find_jump([0.1 * n for n in range(count)]) is None
    for place in range(1, count):
        assert find_jump([0.1] * place + [0.7] * (count - place)) == place


@pytest.mark.parametrize("count", [8, 10, 14, 20])
def test_noise_rises_or_falls_as_seldom_in_short_runs(count):
    """In one of 20 cases; discrete values of tau make it less for the shortest."""
    noise = random.Random(1)
    found = [find_course(measure_trend([noise.random() for _ in range(count)]), count, 0.32) for _ in range(2000)]
    assert 0.02 < sum(course != 0 for course in found) / 2000 < 0.07
    assert find_course(measure_trend(range(count)), count, 0.32) == 1
