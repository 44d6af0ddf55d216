# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The test behind ``compare``: right against tables and by simulation, and indifferent to what must not matter."""

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis import significance as sig

VALUES = st.lists(st.floats(0.01, 1000), min_size=4, max_size=20)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.706, 1, 0.05), (2.776, 4, 0.05), (2.228, 10, 0.05), (3.169, 10, 0.01), (1.96, math.inf, 0.05), (0, 5, 1.0)],
)
def test_students_t_is_that_of_the_tables(t, freedom, p):
    """Critical values of printed tables have their probabilities, and the other way round."""
    assert sig.two_sided(t, freedom) == pytest.approx(p, abs=2e-4)
    if t:
        assert sig.critical(freedom, p) == pytest.approx(t, abs=2e-3)


def test_it_is_students_test_of_pairs_where_nothing_is_trimmed():
    """With four values, no noise of runs and none of neighbours the result is the t-test of their differences."""
    a, b = [1.0, 3.0, 1.5, 2.5], [4.0, 6.5, 4.5, 5.75]
    found = sig.differ(a, b, noise=0.0)
    apart = [right - left for left, right in zip(a, b, strict=True)]
    assert sig._stretch(apart) == 1.0
    assert found.change == pytest.approx((fmean(b) - fmean(a)) / fmean(a))
    assert found.error == pytest.approx(stdev(apart) / 2 / fmean(a))
    assert found.freedom == 3
    assert found.p == pytest.approx(sig.two_sided(fmean(apart) / (stdev(apart) / 2), 3))


def test_what_both_runs_have_in_common_is_no_noise():
    """Runs that warm up over their first steps alike differ by little for sure; the same values in another order do not."""
    warm = [1 + math.exp(-index / 3) for index in range(8)]
    slower = [1.2 * value + 0.01 * (-1) ** index for index, value in enumerate(warm)]
    assert sig.differ(warm, slower).p < 0.01
    assert sig.differ(warm, [slower[index] for index in (3, 6, 0, 5, 1, 7, 4, 2)]).p > 0.1


def test_of_the_longer_run_the_first_steps_count():
    """What comes later has no counterpart."""
    a = [1.0, 1.1, 1.05, 1.02]
    assert sig.differ(a, [1.5, 1.6, 1.4, 1.5, 99.0, 99.0]) == sig.differ(a, [1.5, 1.6, 1.4, 1.5])


def test_what_a_run_is_like():
    """One slow step of five moves neither the typical value nor the quartiles."""
    assert sig.describe([3.0, 1.0, 2.0, 4.0, 500.0]) == sig.Sample(5, 3.0, 3.0, 2.0, 4.0)


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=100)
@given(VALUES, VALUES, st.floats(0.01, 100))
def test_units_and_direction_do_not_matter(a, b, scale):
    """In other units the probability is the same; seen from B it is as large."""
    p = sig.differ(a, b).p
    assert sig.differ([v * scale for v in a], [v * scale for v in b]).p == pytest.approx(p, rel=1e-5, abs=1e-12)
    assert sig.differ(b, a).p == pytest.approx(p, rel=1e-5, abs=1e-12)
    assert 0 <= p <= 1


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=100)
@given(VALUES, VALUES, st.floats(0, 0.5), st.floats(0, 0.5))
def test_more_noise_of_runs_leaves_more_doubt(a, b, one, other):
    """The error of the change grows with the noise that is assumed; the change itself does not depend on it."""
    low, high = sorted((one, other))
    quiet, loud = sig.differ(a, b, noise=low), sig.differ(a, b, noise=high)
    assert loud.change == quiet.change
    assert loud.error >= quiet.error * (1 - 1e-9)


def test_constant_runs():
    """Runs without any spread differ for sure without noise; equal ones do not."""
    assert sig.differ([1.0] * 4, [2.0] * 4, noise=0.0).p == 0.0
    assert sig.differ([1.0] * 4, [1.0] * 4, noise=0.0).p == 1.0
    assert sig.differ([0.0] * 4, [1.0] * 4).change == math.inf
    assert sig.differ([1.0] * 4, [1.2] * 4).p < 1e-4
    assert sig.differ([1.0] * 4, [1.04] * 4).p > 0.05


def test_neighbours_that_resemble_each_other_count_for_less():
    """The same differences in the order of a slow wave leave more doubt than in an order without one."""
    wave = [1 + 0.1 * math.sin(index / 3) for index in range(24)]
    mixed = random.Random(4).sample(wave, len(wave))
    alike, unlike = sig.differ([1.2] * 24, wave, noise=0.0), sig.differ([1.2] * 24, mixed, noise=0.0)
    assert alike.error > 1.25 * unlike.error
    assert alike.freedom < 0.8 * unlike.freedom


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=100)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_agrees_with_its_definition(values):
    """A hypothesis falls at a level exactly if Holm's step-down procedure, done by hand, rejects it."""
    adjusted = sig.holm(values)
    for level in (0.01, 0.05, 0.3):
        rejected = set()
        for rank, index in enumerate(sorted(range(len(values)), key=lambda each: values[each])):
            if values[index] * (len(values) - rank) > level:
                break
            rejected.add(index)
        assert {index for index, value in enumerate(adjusted) if value <= level} == rejected


def make_run(rng, steps, *, spread, correlation=0.2, level=1.0, warm_up=0.2):
    """Steps of a healthy run: it warms up, neighbours resemble each other, a slow trend, one step in twenty is much slower."""
    state, trend, made = rng.gauss(0, 1), rng.uniform(-0.03, 0.03), []
    for index in range(steps):
        state = correlation * state + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
        value = level * math.exp(spread * state) * (1 + trend * (index / (steps - 1) - 0.5))
        value *= 1 + warm_up * math.exp(-index / 3)
        made.append(value * (rng.uniform(1.3, 2) if rng.random() < 0.05 else 1))
    return made


@pytest.mark.parametrize("steps", [4, 7, 20])
@pytest.mark.parametrize("spread", [0.03, 0.08])
def test_healthy_runs_seldom_differ(steps, spread):
    """Of 400 pairs of runs of the same thing, whose levels drift by 2 % besides, fewer than 5 % differ (0.025 is the step's half)."""
    rng = random.Random(7)
    found = 0
    for _ in range(400):
        a, b = (make_run(rng, steps, spread=spread, level=math.exp(rng.gauss(0, 0.02))) for _ in "ab")
        difference = sig.differ(a, b)
        found += difference.p < 0.025 and abs(difference.change) >= 0.03
    assert found < 20


@pytest.mark.parametrize(("steps", "power"), [(6, 0.6), (8, 0.7), (20, 0.96)])
def test_a_fifth_is_found(steps, power):
    """A run that is 20 % slower is found in most cases at 5 % noise with outliers and drift; the measured share is in the guide."""
    rng = random.Random(8)
    found = 0
    for _ in range(300):
        a, b = (make_run(rng, steps, spread=0.05, level=math.exp(rng.gauss(0, 0.01))) for _ in "ab")
        found += sig.differ(a, [1.2 * value for value in b]).p < 0.025
    assert found > power * 300
