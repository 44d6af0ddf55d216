# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Levels of detail: what is left out of a page is put together with its neighbours, never lost from a sum."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.page import explanations
from verl_otel.analysis.model import Activity, Segment
from verl_otel.cli.page import data

KINDS = ("decode", "tool", "worker")


def path_of(lengths):
    """A critical path of parts of these lengths."""
    at, found = 1_000, []
    for index, length in enumerate(lengths):
        found.append(Segment(at, at + length, KINDS[index % 3], f"n{index}"))
        at += length
    return found


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(3, 60))
def test_a_shortened_path_has_the_same_ends_and_no_gap(lengths, limit):
    """A path of at most so many parts; they touch, reach from its start to its end, and stand for all its parts."""
    path = path_of(lengths)
    kept = data.shorten(path, limit)
    assert len(kept) <= max(limit, 1)
    assert (kept[0].start_ns, kept[-1].end_ns) == (path[0].start_ns, path[-1].end_ns)
    assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(kept))
    assert sum(each.parts for each in kept) == len(path)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=200, unique=True), st.integers(3, 60))
def test_the_longest_part_stays_as_it_is(lengths, limit):
    """Whoever looks for what took longest finds it with its own name and ends."""
    path = path_of(lengths)
    longest = max(path, key=lambda each: each.end_ns - each.start_ns)
    kept = data.shorten(path, limit)
    assert (longest, longest.start_ns, longest.end_ns, 1) in [tuple(each) for each in kept]


@pytest.mark.full
@given(st.lists(st.integers(0, 1000), max_size=80), st.integers(1, 20))
def test_the_longest_activities_stay_in_their_order(lengths, limit):
    """As many activities as fit; none that is left out is longer than one that is kept."""
    every = [Activity("tool", "t", "a", at, at + length) for at, length in enumerate(lengths)]
    kept = data.choose_longest(every, limit)
    assert kept == [each for each in every if each in kept][: len(kept)]
    assert len(kept) == min(limit, len(every))
    left = sorted(each.end_ns - each.start_ns for each in every)[: len(every) - len(kept)]
    assert not left or max(left) <= min(each.end_ns - each.start_ns for each in kept)


@pytest.mark.full
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300), st.integers(1, 50))
def test_a_thinned_line_stays_within_its_band(values, limit):
    """Each value lies between the minimum and the maximum of its point; what is no number is left out of them."""
    xs, rows = data.thin(list(range(len(values))), values, limit)
    assert len(xs) == len(rows[0]) <= limit or len(values) <= limit
    if len(rows) == 1:
        assert [each is None for each in rows[0]] == [not math.isfinite(each) for each in values]
        return
    means, least, most = rows
    for place, begin in enumerate(xs):
        end = xs[place + 1] if place + 1 < len(xs) else len(values)
        mine = [each for each in values[begin:end] if math.isfinite(each)]
        if not mine:
            assert means[place] is least[place] is most[place] is None
            continue
        for kept, exact in (
            (least[place], min(mine)),
            (most[place], max(mine)),
            (means[place], math.fsum(mine) / len(mine)),
        ):
            assert math.isclose(kept, exact, rel_tol=1e-4)


def test_each_step_has_a_row_until_there_are_too_many():
    """Above the limit the slowest of each few neighbours stands for them; the slowest of all is never lost."""
    steps = explanations.make(50, gpus=1, members=2, scalars=0).steps
    assert data.choose_rows(steps, 50) == list(range(50))
    kept = data.choose_rows(steps, 20)
    assert len(kept) <= 20
    assert max(range(50), key=lambda index: steps[index].seconds) in kept


def test_failed_and_held_steps_are_wanted_first_and_others_are_spread():
    """The order of detail: failed, held, and in between steps from all over the run; each once."""
    steps = list(explanations.make(64, gpus=1, members=2, scalars=0, slow=(30,)).steps)
    steps[50] = steps[50]._replace(failed=True)
    order = list(data.most_wanted(steps))
    assert sorted(order) == list(range(64))
    assert set(order[:3]) >= {50, 29}
    early = sorted(order[:24])
    assert max(other - one for one, other in itertools.pairwise(early)) <= 24


def test_steps_without_a_path_come_last():
    """Detail goes to steps of which there is any."""
    steps = explanations.make(20, gpus=1, members=2, scalars=0, whole=lambda number: number % 4 == 0).steps
    assert all(steps[index].path for index in list(data.most_wanted(steps))[:5])
