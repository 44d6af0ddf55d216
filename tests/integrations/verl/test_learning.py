# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How the training goes: steps since the best, the trend, and what changed all of a sudden."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.health.recent_past import MIN_VALUES, LearningProgress, measure_trend
from verl_otel.integrations.verl import learning, training
from verl_otel.integrations.verl.sample_origin import Origin

FINITE = st.floats(-1e6, 1e6)


@pytest.fixture(autouse=True)
def fresh():
    """Begin with nothing seen."""
    training.begin()
    yield
    training.begin()


def follow(values, key="critic/rewards/mean", first=1):
    """Log one value a step; return what the last step said, by metric and label."""
    said = {}
    for step, value in enumerate(values, first):
        said = {
            (point.instrument.name.rpartition(".")[2], point.labels[0][1]): point.value
            for point in learning.follow({key: value}, step, 1)
        }
    return said


def test_a_rising_reward_is_at_its_best_and_rises():
    """A reward that rises has its best step now, and a trend of 1."""
    assert follow([step / 10 for step in range(30)]) == {("steps_since_best", "reward"): 0, ("trend", "reward"): 1.0}


def test_a_reward_that_fell_says_since_when():
    """Steps are counted from the best; the trend looks at the last twenty steps only."""
    said = follow([*range(20), *[5.0 - step / 10 for step in range(30)]])
    assert said[("trend", "reward")] == -1.0
    assert said[("steps_since_best", "reward")] == 30


def test_one_lucky_step_is_not_the_best_for_ever():
    """A single high value does not hide the rise that follows."""
    rise = [0.1 * step for step in range(40)]
    assert follow([*rise[:5], 3.0, *rise[5:]])[("steps_since_best", "reward")] <= 1
    assert follow([0.9, *rise])[("steps_since_best", "reward")] <= 1


@pytest.mark.full
def test_noise_has_no_trend():
    """Over many runs of noise, the trend lies far from its ends."""
    source = random.Random(5)
    trends = [follow([source.gauss(0, 1) for _ in range(40)])[("trend", "reward")] for _ in range(200)]
    assert sum(abs(trend) > 0.5 for trend in trends) <= 4  # at 20 values this is beyond 3 standard deviations
    assert abs(sum(trends)) / len(trends) < 0.1


def test_a_short_run_has_no_trend():
    """Before there are enough values nothing is said of the trend."""
    assert ("trend", "reward") not in follow(range(MIN_VALUES - 1))
    assert ("trend", "reward") in follow(range(MIN_VALUES))


@pytest.mark.full
@given(st.lists(FINITE, min_size=2, max_size=20))
def test_the_trend_is_kendalls_tau(values):
    """It equals rising pairs less falling ones over all pairs, lies within -1 and 1, and turns its sign with the values."""
    pairs = list(itertools.combinations(values, 2))
    expected = sum((late > early) - (late < early) for early, late in pairs) / len(pairs)
    assert math.isclose(measure_trend(values), expected, abs_tol=1e-12)
    assert -1 <= measure_trend(values) <= 1
    assert measure_trend([-value for value in values]) == -measure_trend(values)


@pytest.mark.full
@given(st.lists(FINITE, min_size=1, max_size=60), FINITE, st.floats(0.01, 100))
def test_scale_and_offset_of_a_reward_do_not_matter(values, offset, factor):
    """A reward in other units has the same trend, unless rounding makes different values equal."""
    moved = [factor * value + offset for value in values]
    courses = [LearningProgress(), LearningProgress()]
    for step, pair in enumerate(zip(values, moved, strict=True)):
        for course, value in zip(courses, pair, strict=True):
            course.add(step, value)
    distinct = len({*values[-20:]}) == len(values[-20:]) == len({*moved[-20:]})
    ordered = sorted(range(len(values)), key=values.__getitem__) == sorted(range(len(moved)), key=moved.__getitem__)
    if distinct and ordered:
        assert courses[0].find_trend() == courses[1].find_trend()


@pytest.mark.parametrize(
    ("odd", "expected"), [(float("nan"), 1), (float("inf"), 1), (-float("inf"), 1), ("text", None), (None, None)]
)
def test_values_that_are_no_numbers_are_left_out(odd, expected):
    """NaN and infinity count as a step without a new best; of a step whose value is text or missing nothing is said."""
    assert follow([*range(10), odd]).get(("steps_since_best", "reward")) == expected


def test_validation_scores_are_one_curve():
    """The mean of all ``val-core`` scores is followed, at the steps at which there was a validation."""
    for step, score in ((10, 0.1), (20, 0.3), (30, 0.3), (40, 0.3), (50, 0.3)):
        points = list(learning.follow({"val-core/a/acc/mean@1": score, "val-core/b/acc/mean@1": score}, step, 1))
    assert [(dict(point.labels), point.value) for point in points] == [({"verl.metric": "val"}, 0)]
    assert not list(learning.follow({"val-aux/a/acc/mean@1": 0.2}, 51, 1))


@pytest.mark.parametrize(("first", "resumes"), [(0, 0), (1, 0), (41, 1)])
def test_a_run_that_begins_behind_its_first_step_was_resumed(recorded, first, resumes):
    """A first step above 1 counts as a resume, once; the validation before the first step does not."""
    learning.record_limits({})
    follow(range(5), first=first)
    assert recorded.value("verl.training.resumes") == resumes


def test_configured_bounds_are_said(recorded):
    """Bounds are gauges; what is switched off, or no number, is not there."""
    learning.record_limits({"response_tokens": 512, "save_frequency": -1, "staleness": None})
    assert recorded.value("verl.limit", verl_limit_name="response_tokens") == 512
    assert [dict(point.labels) for point in recorded.points if point.instrument.name == "verl.limit"] == [
        {"verl.limit.name": "response_tokens"}
    ]


# -- `verl.training.change`: from the scalars of a run, and from the trajectories of its steps --


def follow_rows(rows):
    """Log scalars step by step; return the points of each step, by the label."""
    return [{point.labels[0][1]: point.value for point in learning.follow(row, None, 1)} for row in rows]


def test_a_step_that_becomes_slow_is_said():
    points = follow_rows([{"timing_s/step": 10.0, "actor/pg_loss": -0.1}] * 20 + [{"timing_s/step": 40.0}] * 2)
    assert points[-1] == {"step": 4.0}
    assert points[19] == {"step": 1.0, "policy_loss": pytest.approx(1)}
    assert points[9] == {}


def test_scalars_that_are_missing_or_no_numbers_are_ignored():
    assert follow_rows([{}, {"timing_s/step": "x"}, {"timing_s/step": None}]) == [{}, {}, {}]


def test_a_new_run_begins_anew():
    follow_rows([{"timing_s/step": 1.0}] * 30)
    training.begin()
    assert follow_rows([{"timing_s/step": 9.0}] * 10)[-1] == {}


def test_trajectories_wait_longer_for_tools(monkeypatch):
    """The mean over the trajectories of each step counts, of those that know it."""
    values = {}

    class Gauge:
        def __init__(self, name, labels):
            self.key = labels[0][1]

        def set(self, value):
            values[self.key] = value

    monkeypatch.setattr(learning, "gauge", Gauge)
    for step in range(22):
        tool = 6.0 if step >= 20 else 1.0
        facts = [{"llm": 4.0, "tool": tool}, {"llm": 4.0, "tool": 3 * tool}, {}]
        learning.follow_trajectories([Origin(1, n, 9.0, 1.0, "math", facts=each) for n, each in enumerate(facts)])
    assert values == {"generation": 1.0, "tool": 6.0}
