# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A replay of an unchanged schedule gives the recorded times; slots are granted in the order of arrival; nothing is gained or lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis.levers.replay import NO_POOL, UNANCHORED, Item, Part, Pool, Rollout, Schedule, replay
from verl_otel.analysis.levers.schedules import Demand, calibrate

LAW = settings(max_examples=300, deadline=None)
POOLS = (Pool("loop", "agent_loop-0", 1), Pool("server", "llm_server-0", 2))
DEMANDS = st.builds(
    Demand,
    kind=st.just("tool"),
    name=st.just("t"),
    instance=st.just("p"),
    length_ns=st.integers(0, 30),
    pool=st.integers(-1, 1),
    lead_ns=st.integers(0, 40),
    holds=st.booleans(),
)
ROWS = st.lists(st.tuples(st.integers(0, 40), st.lists(DEMANDS, max_size=5)), min_size=1, max_size=7)
"""Start and pieces of trajectories."""
ITEMS = st.builds(
    Item, st.just("tool"), st.just("t"), st.just("p"), st.integers(0, 20), st.integers(-1, 1), st.integers(0, 20), st.integers(0, 9)
)  # fmt: skip


def wait_for(rows, pools=POOLS, offsets=None):
    """A schedule of one step that waits for trajectories with these items."""
    rollouts = tuple(
        Rollout(number + 1, 0, UNANCHORED, 0 if offsets is None else offsets[number], tuple(items))
        for number, items in enumerate(rows)
    )
    parts = (Part("phase", "gen", "gen", 0, 0, tuple(range(len(rows)))), Part("phase", "adv", "adv", 5, 0))
    return Schedule(0, (1,), parts, rollouts, pools)


def item(lead=0, pool=NO_POOL, hold=0, rest=0, kind="tool"):
    return Item(kind, "t", "p", lead, pool, hold, rest)


def end_of(rows, **more):
    return replay(wait_for(rows, **more)).ends_ns


def test_without_limits_trajectories_run_beside_each_other():
    """Each takes the sum of its items, and the trainer waits for the last one."""
    timeline = replay(wait_for([[item(3), item(4)], [item(9)]]))
    assert timeline.ends_ns == (7, 9)
    assert timeline.starts_ns == (0, 9, 14)
    assert timeline.find_waits(wait_for([[item(9)]])) == [9]


def test_slots_are_granted_in_the_order_of_arrival():
    """Three hold one of two slots for ten: the one that came last waits for the first one to end."""
    assert end_of([[item(2, 1, 10)], [item(1, 1, 10)], [item(0, 1, 10)]]) == (20, 11, 10)


def test_what_needs_no_time_in_a_slot_still_waits_for_it():
    """Code that an event loop has to resume goes on when the loop is free."""
    assert end_of([[item(0, 0, 10)], [item(3, 0, 0, 2)]]) == (10, 12)


def test_trajectories_begin_with_the_part_of_the_trainer_they_are_tied_to():
    """What is submitted after a part of the trainer comes earlier if that part is shorter."""
    rollout = Rollout(1, 0, 1, 2, (item(10),))
    parts = [Part("phase", "a", "a", 7, 0), Part("phase", "gen", "gen", 1, 0, (0,))]
    assert replay(Schedule(100, (1,), tuple(parts), (rollout,), ())).starts_ns == (100, 107, 120)
    parts[0] = parts[0]._replace(length_ns=3)
    assert replay(Schedule(100, (1,), tuple(parts), (rollout,), ())).starts_ns == (100, 103, 116)


def test_work_in_the_background_delays_only_the_same_work_of_the_next_step():
    """The trainer goes on at once, and waits for it when it starts it again."""
    parts = []
    for step in (0, 1):
        parts += [Part("phase", "gen", "gen", 4, step)]
        parts += [Part("worker", "w", "sync", each, step, None, overlapped=True) for each in (4, 6)]
    assert replay(Schedule(0, (1, 2), tuple(parts), (), ())).starts_ns == (0, 4, 4, 4, 8, 14, 14)


def test_a_step_without_a_part_has_no_length():
    """As one that a damaged file reports: the others keep their lengths."""
    parts = (Part("phase", "a", "a", 3, 1), Part("phase", "a", "a", 4, 3))
    schedule = Schedule(10, (1, 2, 3, 4, 5), parts, (), ())
    assert replay(schedule).find_periods(schedule) == [0, 3, 0, 4, 0]


def test_a_wait_for_what_never_begins_is_refused():
    """A schedule that cannot end is an error, not a result."""
    parts = (Part("phase", "gen", "gen", 0, 0, (0,)), Part("phase", "adv", "adv", 5, 0))
    with pytest.raises(ValueError, match="never begins"):
        replay(Schedule(0, (1,), parts, (Rollout(1, 0, 1, 0, (item(1),)),), ()))


@pytest.mark.full
@LAW
@given(ROWS)
def test_an_unchanged_schedule_replays_to_the_recorded_times(rows):
    """Whatever was recorded: with the waiting for slots taken out and put back, each trajectory ends when it did."""
    starts = [start for start, _ in rows]
    items = calibrate([row for _, row in rows], starts, POOLS)
    recorded = tuple(start + sum(demand.length_ns for demand in row) for start, row in rows)
    assert replay(wait_for(items, offsets=starts)).ends_ns == recorded
    own = [sum(each.length_ns for each in row) for row in items]
    assert all(length <= end - start for length, end, start in zip(own, recorded, starts, strict=True))


@pytest.mark.full
@LAW
@given(st.lists(st.lists(ITEMS, max_size=5), min_size=1, max_size=6))
def test_every_trajectory_gets_all_of_its_time(rows):
    """Conservation: each takes its own time and what it waited; with its limits lifted, exactly its own time."""
    ends = end_of(rows)
    own = tuple(sum(each.length_ns if each.pool != NO_POOL else each.lead_ns for each in row) for row in rows)
    assert all(end >= length for end, length in zip(ends, own, strict=True))
    assert end_of(rows, pools=tuple(pool._replace(slots=99) for pool in POOLS)) == own


@pytest.mark.full
@LAW
@given(st.lists(st.lists(ITEMS, max_size=5), min_size=1, max_size=6), st.data())
def test_without_limits_something_faster_never_makes_it_slower(rows, data):
    """Each trajectory ends at the same time or earlier."""
    free = tuple(pool._replace(slots=99) for pool in POOLS)
    faster = [
        [each._replace(lead_ns=data.draw(st.integers(0, each.lead_ns))) if data.draw(st.booleans()) else each for each in row]
        for row in rows
    ]  # fmt: skip
    before, after = end_of(rows, pools=free), end_of(faster, pools=free)
    assert all(late >= early for late, early in zip(before, after, strict=True))


def test_with_limits_something_faster_can_make_it_slower():
    """The anomaly that is documented: who comes earlier takes the slot of one that has more to do afterwards."""
    pools = (Pool("server", "s", 1),)
    before = [[item(5, 0, 10)], [item(4, 0, 10), item(20)]]
    after = [[item(3, 0, 10)], [item(4, 0, 10), item(20)]]
    assert max(end_of(before, pools=pools)) == 34
    assert max(end_of(after, pools=pools)) == 43
