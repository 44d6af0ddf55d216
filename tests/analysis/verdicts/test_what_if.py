# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Savings: only the wait that would really have been shorter, never more for removing less, as simulating the wait finds, too."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import forests as f
from verl_otel.analysis.verdicts import what_if

LAW = settings(max_examples=150, deadline=None)
S = 10**9


def save(begin, end, members, *, before=(), length=None):
    """Savings of a step that is one ``gen`` from begin to end, in seconds."""
    root = f.step(0, length or end, f.phase("gen", begin, end, *before, f.consume(end, *members)))
    found = what_if.find_savings(f.tell(root, members).path, members, root)
    return {each.what: (each.trajectories, each.seconds) for each in found}


def roll(start, end, *children, **more):
    return f.roll(start * S, end * S, *children, **more)


def gen(*members, begin=0, end=10):
    return save(begin * S, end * S, members)


def test_without_the_slowest_the_second_slowest_is_waited_for():
    """Only the lead is saved, not the whole wait; the rest is still waited for."""
    assert gen(roll(0, 2), roll(0, 9), roll(0, 6))["slowest"] == (1, 3.0)


def test_two_that_end_together_save_nothing_alone():
    """Removing one of two equals saves nothing; both together save what is left to the third."""
    members = [roll(0, 9), roll(0, 9), *(roll(0, 4) for _ in range(20))]
    found = gen(*members)
    assert found["slowest"] == (1, 0.0)
    assert found["1%"] == (1, 0.0)
    assert found["5%"] == (2, 5.0)


def test_nothing_is_saved_before_the_phase_began():
    """A trajectory that ran long before the phase did not hold it then: no more than the wait can be saved."""
    assert gen(roll(-50, 9), begin=4)["slowest"] == (1, 5.0)


def test_the_rest_of_a_wait_was_forced():
    """While the servers were woken up nobody could have been faster, nor while a call beside the rollouts went on."""
    wake_up = f.call("wake_up", 0, 3 * S)
    assert save(0, 10 * S, [roll(5, 9)], before=[wake_up])["slowest"] == (1, 6.0)
    beside = f.call("load", 4 * S, 7 * S)
    assert save(0, 10 * S, [roll(2, 9)], before=[beside])["slowest"] == (1, 2.0)


def test_a_step_that_waited_for_nobody_saves_nothing():
    """Samples of long ago, or none at all."""
    assert gen(roll(-9, -2)) == {}
    assert gen() == {}


def test_a_slow_replica_is_what_its_trajectories_cost():
    """Without the trajectories of one replica the step waits for the other one; a single replica is no group."""
    slow = [roll(0, 9 - each, f.chat(0, 8 * S, served=(0, (8 - each) * S), at=3)) for each in range(2)]
    fast = [roll(0, 4, f.chat(0, 3 * S, served=(0, 3 * S), at=4))]
    found = gen(*slow, *fast)
    assert found["replica llm_server-0"] == (2, 5.0)
    assert "replica llm_server-1" not in found
    assert not [what for what in gen(*slow) if what.startswith("replica")]


def test_a_replica_is_not_blamed_for_one_trajectory():
    """Its other trajectories are as fast as those of the other replica."""
    slow = roll(0, 9, f.chat(0, S, served=(0, S), at=3), f.tool("add", S, 9 * S))
    members = [slow, *(roll(0, 3, f.chat(0, S, served=(0, S), at=each)) for each in (3, 4))]
    found = gen(*members)
    assert found["slowest"] == (1, 6.0)
    assert not [what for what in found if what.startswith("replica")]


def test_a_slow_tool_is_what_it_took_beyond_its_median():
    """Each call is brought down to the median of all calls of this tool."""
    times = [(0, 9), (0, 8), (0, 2), (0, 2), (0, 2)]
    members = [roll(0, end + 1, f.tool("search", begin * S, end * S)) for begin, end in times]
    assert gen(*members, end=12)["tool search"] == (2, 7.0)


def test_rewards_are_what_they_took():
    """Without rewards each trajectory ends that much earlier."""
    members = [roll(0, 9, f.reward(5 * S, 9 * S)), roll(0, 6, f.reward(4 * S, 6 * S))]
    assert gen(*members)["reward"] == (2, 4.0)


def test_each_wait_of_a_step_counts():
    """A trainer that takes samples twice waits twice; both waits can be shorter."""
    first, second = [roll(0, 2), roll(0, 4)], [roll(0, 7), roll(0, 9)]
    root = f.step(
        0,
        10 * S,
        f.phase("gen", 0, 5 * S, f.consume(5 * S, *first)),
        f.phase("gen", 5 * S, 10 * S, f.consume(10 * S, *second)),
    )
    found = {each.what: each for each in what_if.find_savings(f.tell(root, first + second).path, first + second, root)}
    assert found["slowest"][1:] == (1, 2.0)
    assert found["5%"][1:] == (2, 4.0)


def test_groups_are_bounded():
    """Thousands of tools make no thousands of savings."""
    members = [roll(0, 9 - n / 100, f.tool(f"t{n}", 0, 5 * S), f.tool(f"t{n}", 5 * S, 6 * S)) for n in range(40)]
    assert len(gen(*members)) <= 3 + what_if.MAX_GROUPS


MEMBERS = st.lists(st.tuples(st.integers(-10, 20), st.integers(0, 25)), min_size=1, max_size=7)
"""Start and length of trajectories."""


def tell(times, begin, length):
    members = [f.roll(start, start + long) for start, long in times]
    root = f.step(0, 30, f.phase("gen", begin, begin + length, f.consume(begin + length, *members)))
    return f.tell(root, members), members, root


def simulate(wait, members, ends):
    """Wait again, tick by tick, until everybody has come who had come."""
    tick = wait.begin_ns
    awaited = [each for each in members if each.end_ns <= wait.end_ns or each.trace_id == wait.trace_id]
    while any(ends.get(each.trace_id, each.end_ns) > tick for each in awaited):
        tick += 1
    return tick


def shorten(waits, members, ends):
    """Nanoseconds that are saved if some trajectories end earlier."""
    return what_if._shorten([what_if._find_awaited(wait, members) for wait in waits], ends)


@pytest.mark.full
@LAW
@given(MEMBERS, st.integers(0, 8), st.integers(1, 20), st.data())
def test_what_is_saved_is_what_waiting_again_saves(times, begin, length, data):
    """The formula agrees with a wait that is simulated, for any set of trajectories that would have been any faster."""
    step, members, _ = tell(times, begin, length)
    waits = what_if.find_waits(step.path)
    ends = {
        each.trace_id: data.draw(st.integers(each.start_ns, each.end_ns))
        for each in members
        if data.draw(st.booleans())
    }
    expected = sum(max(0, wait.end_ns - simulate(wait, members, ends)) for wait in waits)
    assert shorten(waits, members, ends) == expected
    assert 0 <= expected <= sum(wait.end_ns - wait.begin_ns for wait in waits)


@pytest.mark.full
@LAW
@given(MEMBERS, st.integers(0, 8), st.integers(1, 20), st.data())
def test_taking_more_away_never_saves_less(times, begin, length, data):
    """A larger set of trajectories, or a larger part of each, saves at least as much."""
    step, members, _ = tell(times, begin, length)
    waits = what_if.find_waits(step.path)
    few = {each.trace_id: data.draw(st.integers(-20, each.end_ns)) for each in members if data.draw(st.booleans())}
    more = {key: data.draw(st.integers(-40, end)) for key, end in few.items()}
    more |= {each.trace_id: what_if.GONE for each in members if data.draw(st.booleans())}
    assert shorten(waits, members, few) <= shorten(waits, members, more)


@pytest.mark.full
@LAW
@given(MEMBERS, st.integers(0, 8), st.integers(1, 20))
def test_shares_are_ordered_and_within_the_wait(times, begin, length):
    """The slowest saves no more than 1 %, that no more than 5 %, and nothing more than the step waited."""
    step, members, root = tell(times, begin, length)
    found = {each.what: each.seconds for each in what_if.find_savings(step.path, members, root)}
    waited = sum(wait.end_ns - wait.begin_ns for wait in what_if.find_waits(step.path, root)) / 1e9
    if found:
        assert 0 <= found["slowest"] <= found["1%"] <= found["5%"] <= waited
        assert all(seconds <= waited for seconds in found.values())
