# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stragglers: who came late, prepared long, had more tokens or computed more, before collectives made all equally slow."""

import sys
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis.model import Step, Straggler
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts import stragglers
from verl_otel.model import SpanRecord

S = 1_000_000_000


def node(name, begin, end, *children, instance="", **attributes):
    """A span from ``begin`` to ``end`` seconds; ``__`` stands for a dot in attributes."""
    values = {key.replace("__", "."): value for key, value in attributes.items()}
    span = SpanRecord(1, 1, 0, name, 1, round(begin * S), round(end * S), values, (), (), 0, "", 1, "")
    return Node(span, instance, 0, list(children))


def rank(number, begin, end, computes=None, *, enters=None, method="update_actor", batch="train_batch", **attributes):
    """One rank's part of a call; ``computes``: when its first compute span begins, ``enters``: when the method around that begins."""
    below = []
    if computes is not None:
        inner = node(f"verl.worker W.{batch}", computes, end, verl__worker__method=batch, verl__worker__nested=True)
        below.append(
            node(
                "verl.worker W.train_mini_batch",
                begin if enters is None else enters,
                end,
                inner,
                verl__worker__method="train_mini_batch",
            )
        )
    name = f"verl.worker Actor.{method}"
    return node(name, begin, end, *below, instance=f"actor-{number}", verl__rank=number, **attributes)


def step(*groups):
    """A step with one call for each group of ranks."""
    calls = [node("verl.call update_actor", 0, 10, *group, verl__world_size=len(group)) for group in groups]
    return node("verl.step", 0, 100, node("verl.phase.update_actor", 0, 10, *calls))


def found(root, **more):
    return [(each.rank, each.evidence, round(each.seconds, 3)) for each in stragglers.find(root, **more)]


def test_the_rank_that_the_call_reached_late_is_named():
    """All ranks end together because of a collective; the one that began late held them, by how much is the delay."""
    ranks = [rank(number, 2.0 if number == 3 else 0.01 * number, 9, 2.1 if number == 3 else 0.2) for number in range(4)]
    assert stragglers.find(step(ranks)) == (Straggler("update_actor", 3, "actor-3", pytest.approx(1.99), "arrival"),)


def test_the_rank_that_fetched_its_data_slowly_is_named():
    """All came in time and end together; the one that began to compute late held them."""
    ranks = [rank(number, 0, 9, 3.0 if number == 1 else 0.5) for number in range(4)]
    assert found(step(ranks)) == [(1, "data", 2.5)]


def test_those_who_wait_in_their_preparation_are_not_blamed():
    """Where a collective precedes the computing, ranks in time have a long preparation, and only the late one is named."""
    ranks = [rank(number, 3.0 if number == 0 else 0, 9, 3.2) for number in range(4)]
    assert found(step(ranks)) == [(0, "arrival", 3.0)]


def test_a_rank_that_was_held_before_a_collective_in_its_preparation_is_named():
    """The late rank enters the method with the collective late; the others enter it in time, wait in it, and compute when it does."""
    ranks = [rank(n, 0.01, 2.7, 2.07, enters=2.04 if n == 1 else 0.03) for n in range(2)]
    assert found(step(ranks)) == [(1, "data", 2.01)]


def test_ranks_that_do_different_things_are_not_compared():
    """Where ranks call different methods, their stages have nothing to do with each other."""
    ranks = [rank(n, 0, 9, 5.0 if n == 1 else 0.5, batch="infer_batch" if n == 1 else "train_batch") for n in range(4)]
    assert found(step(ranks)) == []


def test_a_larger_share_of_tokens_is_named_with_the_time_it_costs():
    """A rank with half as many tokens again is named with the third of its computing that goes back to them."""
    ranks = [rank(n, 0, 9, 0.0, verl__batch__tokens=1500 if n == 2 else 1000) for n in range(4)]
    assert found(step(ranks)) == [(2, "tokens", 3.0)]


def test_tokens_within_the_balance_name_nobody():
    """A few per cent of difference is what verl's balancing leaves."""
    ranks = [rank(n, 0, 9, 0.0, verl__batch__tokens=1000 + 25 * n) for n in range(4)]
    assert found(step(ranks)) == []


def test_a_rank_that_computed_more_on_the_host_is_named():
    """Others waited without using their CPU; the one that used it for seconds held them."""
    ranks = [rank(n, 0, 9, 0.1, verl__cpu__time=6.0 if n == 2 else 1.0 + 0.1 * n) for n in range(4)]
    assert found(step(ranks)) == [(2, "cpu", 4.9)]


def test_cpu_time_is_not_told_twice():
    """Slow preparation is CPU time, too: it is told once, as data."""
    ranks = [rank(n, 0, 9, 4.0 if n == 2 else 0.1, verl__cpu__time=6.0 if n == 2 else 1.0) for n in range(4)]
    assert found(step(ranks)) == [(2, "data", 3.9)]


def test_who_was_done_before_the_others_held_nobody():
    """Without a collective, a rank that began late and ended first kept nobody waiting."""
    ranks = [rank(n, 3.0 if n == 2 else 0, 4.0 if n == 2 else 9) for n in range(4)]
    assert found(step(ranks)) == []


def test_a_pair_needs_a_clear_lead():
    """Of two ranks there is no spread: a delay that names one of four names none of two."""
    late = 0.9
    assert found(step([rank(n, late if n == 0 else 0, 9) for n in range(4)])) == [(0, "arrival", late)]
    assert found(step([rank(n, late if n == 0 else 0, 9) for n in range(2)])) == [(0, "arrival", late)]
    assert found(step([rank(n, 0.6 if n == 0 else 0, 9) for n in range(2)])) == []


def test_noise_among_ranks_is_no_lead():
    """Where all ranks come at different times, the last one is no outlier."""
    assert found(step([rank(n, 0.4 * n, 9) for n in range(8)])) == []


def test_a_delay_within_the_uncertainty_of_clocks_is_not_believed():
    """Two hosts' clocks may be apart by as much."""
    ranks = [rank(n, 1.0 if n == 0 else 0, 9) for n in range(4)]
    assert found(step(ranks), uncertainty=0.2) == [(0, "arrival", 1.0)]
    assert found(step(ranks), uncertainty=2.0) == []


def test_delays_of_several_calls_add_up():
    """One rank's delays in the calls of one method are one straggler; the worst rank comes first."""
    late = [rank(n, 1.0 if n == 0 else 0, 9) for n in range(4)]
    later = [rank(n, 5.0 if n == 1 else 0, 9) for n in range(4)]
    assert found(step(late, late, later)) == [(1, "arrival", 5.0), (0, "arrival", 2.0)]


def test_one_rank_has_nobody_to_be_late_for():
    """A group of one shows nothing, and says so."""
    root = step([rank(0, 5, 9, 8)])
    assert stragglers.find(root) == ()
    assert stragglers.find_blind_spots(root) == stragglers.EVIDENCE


def test_what_cannot_be_seen_is_said():
    """Ranks without compute spans, tokens and CPU time show their arrival only."""
    assert stragglers.find_blind_spots(step([rank(n, 0, 9) for n in range(4)])) == ("data", "tokens", "cpu")
    ranks = [rank(n, 0, 9, 1, verl__batch__tokens=3, verl__cpu__time=1.0) for n in range(4)]
    assert stragglers.find_blind_spots(step(ranks)) == ()
    half = [rank(n, 0, 9, 1 if n else None) for n in range(4)]
    assert "data" in stragglers.find_blind_spots(step(half))


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=100)
@given(
    starts=st.lists(st.integers(0, 5000), min_size=2, max_size=8),
    prepare=st.lists(st.integers(0, 3000), min_size=8, max_size=8),
    shift=st.integers(0, 10**9),
)
def test_delays_are_bounded_and_do_not_depend_on_the_date(starts, prepare, shift):
    """No rank is late by more than the distance of the first and the last; moving all spans changes nothing."""

    def seen_with(by):
        ranks = [
            rank(n, (by + s) / 1000, (by + 20_000) / 1000, (by + s + p) / 1000)
            for n, (s, p) in enumerate(zip(starts, prepare, strict=False))
        ]
        return stragglers.find(step(ranks))

    computes = [s + p for s, p in zip(starts, prepare, strict=False)]
    for each in seen_with(0):
        values = starts if each.evidence == "arrival" else computes
        assert 0 < each.seconds <= (max(values) - min(values)) / 1000 + 1e-9
    assert seen_with(shift) == seen_with(0)


def test_the_work_grows_with_the_ranks_and_not_with_their_pairs():
    """Eight times as many ranks cost about eight times as many steps of Python, not sixty-four times as many."""

    def count(size):
        root, events = (
            step([rank(n, 0.0001 * n, 9, 1, verl__batch__tokens=3, verl__cpu__time=1.0) for n in range(size)]),
            [0],
        )

        def profile(*_):
            events[0] += 1

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            stragglers.find(root)
        finally:
            sys.setprofile(before)
        return events[0]

    assert count(256) < 12 * count(32)


def make_step(number, *late):
    """A step's facts with these stragglers."""
    found = tuple(Straggler("m", who, f"a-{who}", seconds, "arrival") for who, seconds in late)
    return Step(number, number, 0, S, False, (), 0.0, (), 0, 0, 0, stragglers=found)


def test_persistence_over_steps():
    """Who is late in most steps comes first, with how many of how many and the sum; only the last steps count."""
    steps = [make_step(1, (9, 100.0)), make_step(2, (0, 1.0)), make_step(3, (0, 2.0), (1, 9.0)), make_step(4)]
    first, second = stragglers.find_persistent(steps, recent=3)
    assert (first.rank, first.late, first.steps, first.seconds, first.evidence) == (0, 2, 3, 3.0, "arrival")
    assert (second.rank, second.late, second.seconds) == (1, 1, 9.0)
    assert stragglers.find_persistent([]) == ()


# -- What stands out from the others does so whichever way it is computed --


@settings(deadline=None, database=None, max_examples=200)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.integers(0, 20))
def test_each_value_is_compared_with_the_median_of_the_others(values, lead):
    """The one sorted list of all ranks says the same as a list of the others for each of them."""
    field = stragglers.RankValues(values)
    for index, own in enumerate(values):
        others = values[:index] + values[index + 1 :]
        usual = median(others)
        spread = 1.4826 * median(abs(each - usual) for each in others)
        is_clear = own > usual and own - usual >= lead and own - usual > stragglers.OUTLIER * spread
        assert field.median_without(own) == usual
        assert field.excess(own, lead) == (own - usual if is_clear else 0.0)
