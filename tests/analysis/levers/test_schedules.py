# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule of recorded steps replays to the recorded times, whatever was recorded and in whatever order it was read."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builders.schedules import PlannedTrajectory, record
from verl_otel.analysis import bounded_steps
from verl_otel.analysis.levers import schedules
from verl_otel.analysis.levers.replay import UNANCHORED, replay

LAW = settings(max_examples=200, deadline=None)
MS = 10**6
PIECES = st.lists(st.tuples(st.sampled_from(["llm", "tool", "reward", "own"]), st.integers(0, 60 * MS)), max_size=6)
PLANNED = st.builds(PlannedTrajectory, st.integers(0, 9 * MS), PIECES.map(tuple), st.integers(3, 4))
STEPS = st.lists(st.lists(PLANNED, max_size=6), min_size=1, max_size=4)


def ends_of(schedule, timeline):
    return {rollout.trace_id: end for rollout, end in zip(schedule.rollouts, timeline.ends_ns, strict=True)}


@pytest.mark.full
@LAW
@given(STEPS)
def test_recorded_steps_replay_to_the_recorded_times(plan):
    """Each step is as long as it was, and each trajectory ends when it did."""
    steps = record(plan, train=10 * MS)
    schedule = schedules.build(steps)
    timeline = replay(schedule)
    periods = [(step.end_ns if step.is_last else step.next_ns) - step.start_ns for step in steps]
    assert timeline.find_periods(schedule) == periods
    assert ends_of(schedule, timeline) == {m.trace_id: m.end_ns for step in steps for m in step.members}


@pytest.mark.full
@LAW
@given(STEPS)
@example([[PlannedTrajectory(0, (("llm", 1),)), PlannedTrajectory(1, ())]])
def test_work_and_waits_are_the_whole_period(plan):
    """Conservation: what the trainer did and what it waited for is the time of the steps, no more and no less."""
    steps = record(plan, train=10 * MS)
    schedule = schedules.build(steps)
    timeline = replay(schedule)
    work = sum(part.length_ns for part in schedule.parts if part.awaited is None)
    assert work + sum(timeline.find_waits(schedule)) == timeline.starts_ns[-1] - timeline.starts_ns[0]


@pytest.mark.full
@LAW
@given(STEPS, st.integers(0, 1 << 30))
def test_the_order_in_which_trajectories_were_read_does_not_matter(plan, seed):
    """The schedule is the same."""
    mix = lambda members: random.Random(seed).sample(members, len(members))  # noqa: E731 - one of two
    built = [schedules.build(record(plan, shuffle=order)) for order in (lambda members: members, mix)]
    same = [[rollout._replace(anchor=0) for rollout in schedule.rollouts] for schedule in built]
    assert same[0] == same[1]
    assert [part[3:] for part in built[0].parts] == [part[3:] for part in built[1].parts]


def test_a_wait_is_for_all_that_had_ended():
    """The trainer waits for the trajectories of its step; each is tied to the wait in which it began."""
    schedule = schedules.build(record([[PlannedTrajectory(1, (("own", 5),)), PlannedTrajectory(2, (("own", 9),))]]))
    (wait,) = [part for part in schedule.parts if part.awaited is not None]
    assert wait.awaited == (0, 1)
    assert {rollout.anchor for rollout in schedule.rollouts} == {schedule.parts.index(wait)}
    assert [rollout.offset_ns for rollout in schedule.rollouts] == [1, 2]


def test_what_an_unknown_step_submitted_begins_when_it_did():
    """It has no part of the trainer to be tied to."""
    (step,) = record([[PlannedTrajectory(1, (("own", 5),))]])
    members = tuple(member._replace(submitter=12345) for member in step.members)
    (rollout,) = schedules.build([step._replace(members=members)]).rollouts
    assert (rollout.anchor, rollout.offset_ns) == (UNANCHORED, members[0].start_ns)


def test_unlinked_trajectories_are_counted():
    """Those that are missing, and those whose submitter is unknown."""
    (step,) = record([[PlannedTrajectory(1, (("own", 5),)), PlannedTrajectory(1, (("own", 5),))]])
    first = step.members[0]._replace(submitter=0)
    assert schedules.count_unlinked([step]) == (0, 2)
    assert schedules.count_unlinked([step._replace(members=(first,))]) == (2, 2)


def test_the_newest_steps_are_kept(monkeypatch):
    """A long run keeps no more than its limits allow, and at least one step."""
    monkeypatch.setattr(bounded_steps, "MAX_STEPS", 2)
    plan = [[PlannedTrajectory(0, (("own", 5),))] * 3] * 4
    assert [step.number for step in record(plan)] == [3, 4]
    assert [step.number for step in record(plan, limit=3)] == [4]
    assert [step.number for step in record(plan, limit=1)] == [4]
    assert record(plan, limit=0) == ()
