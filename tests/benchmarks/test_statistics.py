# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From rounds of processes to a figure, how sure it is, and a verdict."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import comparison, statistics
from benchmarks.statistics import Estimate
from tests.benchmarks.benchmarks_found import measured, results

costs = st.floats(1e-9, 1e3)


def test_the_interval_of_nine_is_the_second_to_the_eighth():
    """The classical table of order statistics: of nine values these enclose the median with 96 %."""
    found = statistics.estimate([5, 1, 9, 3, 7, 2, 8, 4, 6])
    assert found[:3] == (5, 2, 8)
    assert found.confidence == pytest.approx(0.961, abs=0.001)


def test_of_three_values_there_is_no_sure_interval():
    """It goes from the least to the largest, and says that this is 75 %."""
    assert statistics.estimate([3, 1, 2]) == Estimate(2, 1, 3, 0.75, 3)


@pytest.mark.full
@given(st.lists(costs, min_size=1, max_size=40), st.floats(0.5, 0.999))
def test_the_interval_holds_the_median(values, confidence):
    """It encloses the median of what was measured, and is as sure as was asked for if it leaves anything out."""
    found = statistics.estimate(values, confidence)
    assert min(values) <= found.low <= median(values) <= found.high <= max(values)
    assert found.confidence >= confidence or (found.low, found.high) == (min(values), max(values))


def test_overhead_is_over_the_baseline():
    """A steady operation counts by its fastest round, a job by its usual one; it is never below nothing."""
    seconds, baseline = [5.0, 9.0, 7.0], [1.0, 1.0, 4.0]
    assert statistics.overhead(seconds, baseline, steady=True) == 4.0
    assert statistics.overhead(seconds, baseline, steady=False) == 6.0
    assert statistics.overhead(seconds, (), steady=True) == 5.0
    assert statistics.overhead(baseline, seconds, steady=True) == 0.0


@pytest.mark.full
@given(st.lists(st.tuples(costs, costs, costs), min_size=1, max_size=30), st.floats(0.5, 20.0))
def test_a_ratio_is_that_of_the_overheads_whatever_the_machine_does(rounds, factor):
    """Each round may be slowed down as a whole: a ratio is formed within it."""
    ours = [base + own for base, own, _ in rounds]
    theirs = [base + own * factor for base, own, _ in rounds]
    base = [base for base, _, _ in rounds]
    slow = [slow for _, _, slow in rounds]
    found = statistics.ratio(theirs, ours, base)
    slowed = statistics.ratio(*([a * b for a, b in zip(each, slow, strict=True)] for each in (theirs, ours, base)))
    if all(own > base * 1e-3 for base, own, _ in rounds):  # else the subtraction has no digits left
        assert found == pytest.approx(factor, rel=1e-6)
        assert slowed == pytest.approx(factor, rel=1e-6)


def test_no_ratio_where_ours_is_no_longer_than_the_baseline():
    """Rounds without an overhead of ours say nothing; where they are more than half there is no ratio."""
    assert statistics.ratio([9, 9, 9], [1, 2, 2], [1, 1, 1]) == 8
    assert statistics.ratio([9, 9, 9], [1, 1, 2], [1, 1, 1]) is None


@pytest.mark.parametrize(
    ("low", "high", "at_most", "at_least"),
    [
        (80, 90, "met", "not met"),
        (80, 92, "met", "not met"),
        (80, 93, "not significant", "not significant"),
        (90, 110, "not significant", "not significant"),
        (107, 120, "not significant", "not significant"),
        (109, 120, "not met", "met"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low, high, at_most, at_least):
    """What is promised is 100; an interval that holds it, or would in another run, says nothing on either side."""
    found = Estimate((low + high) / 2, low, high, 0.96, 9)
    assert statistics.judge_at_most(found, 100) == at_most
    assert statistics.judge_at_least(found, 100) == at_least


def test_nothing_measured_is_no_verdict():
    """A peer that is not installed does not make a promise kept."""
    assert statistics.judge_at_most(None, 100) == statistics.judge_at_least(None, 100) == "not measured"


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ((90, 100, 110), (120, 130, 140), "slower"),
        ((120, 130, 140), (90, 100, 110), "faster"),
        ((90, 100, 110), (111, 115, 118), "not significant"),
        ((90, 100, 110), (100, 130, 140), "not significant"),
    ],
)
def test_two_runs_differ_where_their_intervals_are_apart(before, after, word):
    """By more than what two runs of the same code differ by."""
    old, new = (results([measured(each, 1000) for each in values]) for values in (before, after))
    assert word in next(line for line in comparison.render(old, new).splitlines() if " verl_otel " in line)


def test_a_difference_is_a_share_of_the_baseline():
    """One of each round; below zero for what is faster."""
    assert statistics.differences([11, 30, 9], [10, 20, 10]) == pytest.approx([0.1, 0.5, -0.1])


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (4, 0), (5, 5), (7, 7), (8, 7), (9, 8), (20, 15)])
def test_an_upper_bound_is_that_of_the_sign_test(count, rank):
    """Its critical values at five percent, one-sided, as every table has them; four values are never enough."""
    found = statistics.upper_bound(range(1, count + 1))
    assert found == (rank or None)


NOISE = (-0.02, -0.01, -0.005, 0.0, 0.004, 0.008, 0.01, 0.015, 0.03)


@pytest.mark.parametrize(
    ("added", "same", "word"),
    [
        (0.0, NOISE, "not significant"),
        (0.01, NOISE, "not significant"),
        (0.2, NOISE, "slower"),
        (0.0, tuple(0.1 + each for each in NOISE), "unfair"),
        (0.0, tuple(each - 0.1 for each in NOISE), "unfair"),
        (0.0, NOISE[:4], "not measured"),
    ],
)
def test_pairs_say_what_can_be_said(added, same, word):
    """A difference within the noise is no finding, one far beyond it is; where two of the same differ always to one side nothing is."""
    found = statistics.compare_pairs([added + each for each in NOISE], same)
    assert found.outcome == word
    assert found.most == pytest.approx(added + 0.015)
    assert found.least == pytest.approx(added - 0.01)


def test_what_cannot_be_seen_is_told():
    """The resolution is how far two of the same came apart, at whichever end; it does not depend on what was changed."""
    assert statistics.compare_pairs([0.5] * 9, NOISE).resolution == 0.015
    assert statistics.compare_pairs([0.0] * 9, [-each for each in NOISE]).resolution == 0.015
