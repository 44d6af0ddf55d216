# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Levers: what a replay with one change saves, never more than was waited, ranked, with its uncertainty, or a reason why not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.levers.test_schedules import STEPS
from tests.builders.schedules import PlannedTrajectory, record
from verl_otel.analysis.levers import ranking, schedules
from verl_otel.analysis.levers.ranking import find_candidates
from verl_otel.analysis.levers.replay import Item, Part, Pool, Rollout, Schedule, replay

LAW = settings(max_examples=60, deadline=None)
S = 10**9
LOOP = (Pool("loop", "x", 1),)
ROLLOUT = (
    "tool",
    "reward",
    "unblocked_tool",
    "unblocked_reward",
    "tail",
    "agent_loop_workers",
    "replicas",
    "reward_workers",
    "asynchrony",
)


def planned(*pieces, start=0):
    return PlannedTrajectory(start, tuple((kind, round(length * S)) for kind, length in pieces))


def levers_of(*steps, **more):
    """Levers of some equal steps, by kind and subject."""
    found = ranking.find_levers(record(list(steps), train=2 * S, between=S, **more))
    return {(lever.kind, lever.subject): lever for lever in found.levers}


def test_a_tool_saves_what_the_step_waits_less():
    """Half of a tool that takes 4 s saves 2 s, but where another trajectory is waited for after 3 s, only 1 s."""
    alone = [planned(("llm", 1), ("tool", 4))]
    assert levers_of(*[alone] * 5)["tool", "t"].seconds == pytest.approx(2.0)
    beside = [*alone, planned(("llm", 4))]
    assert levers_of(*[beside] * 5)["tool", "t"].seconds == pytest.approx(1.0)


def test_the_tail_is_what_the_slowest_takes_longer_than_the_others():
    """One of eight in each step; two that are equally slow save nothing."""
    others = [planned(("llm", 1)) for _ in range(7)]
    assert levers_of(*[[*others, planned(("tool", 5))]] * 5)["tail", "1%"].seconds == pytest.approx(4.0)
    assert levers_of(*[[*others, planned(("tool", 5)), planned(("tool", 5))]] * 5)["tail", "1%"].seconds == 0


def test_a_step_earlier_hides_the_rollouts_behind_the_training():
    """Rollouts of 2 s vanish behind 3 s of training and logging; of rollouts of 5 s, two batches of which run at once, 4 s do."""
    assert levers_of(*[[planned(("llm", 2))]] * 6)["asynchrony", ""].seconds == pytest.approx(2.0)
    assert levers_of(*[[planned(("llm", 5))]] * 7)["asynchrony", ""].seconds == pytest.approx(4.0)


def test_one_replayed_step_does_not_tell_what_a_step_earlier_brings():
    """Its trajectories were submitted in it, and no step before it is known: that is not a gain of nothing."""
    found = ranking.find_levers(record([[planned(("llm", 2))]] * 3, train=2 * S, between=S))
    assert len(found.steps) == 1
    assert "asynchrony" not in {lever.kind for lever in found.levers}
    assert any("one step earlier" in sentence for sentence in found.unknown)


def test_the_time_between_steps_is_halved():
    """It lies in no step."""
    assert levers_of(*[[planned(("llm", 2))]] * 5)["between", ""].seconds == pytest.approx(0.5)


def test_the_uncertainty_is_that_of_the_steps():
    """Equal steps give an interval without width, unequal ones do not; fewer than three steps give none."""
    equal = [[planned(("tool", 4))]] * 6
    lever = levers_of(*equal)["tool", "t"]
    assert (lever.low, lever.high) == (lever.seconds, lever.seconds)
    unequal = levers_of(*[[planned(("tool", length))] for length in (1, 2, 3, 4, 5, 6)])["tool", "t"]
    assert unequal.low < unequal.seconds < unequal.high
    assert levers_of(*equal[:5])["tool", "t"].low is None


def test_one_long_step_does_not_decide_what_all_steps_gain():
    """One step of eight waits 40 s for its tool. The others gain what they gain without it; what only that step gains stands apart."""
    usual = [planned(("llm", 2), ("tool", 2))]
    plain = ranking.find_levers(record([usual] * 8, train=2 * S, between=S))
    held = ranking.find_levers(
        record([*[usual] * 4, [planned(("llm", 2), ("tool", 40))], *[usual] * 3], train=2 * S, between=S)
    )
    (left_out,) = held.left_out
    assert left_out not in held.steps
    assert held.period == pytest.approx(plain.period)
    gains = [{lever.kind: lever for lever in found.levers} for found in (plain, held)]
    assert gains[1]["between"].share == pytest.approx(gains[0]["between"].share)
    assert gains[1]["between"].seconds == pytest.approx(0.5)
    assert (gains[1]["tool"].only_step, gains[1]["tool"].seconds) == (None, pytest.approx(1.0))
    beside = [planned(("llm", 2)), planned(("llm", 2))]
    once = ranking.find_levers(
        record([*[beside] * 4, [*beside, planned(("tool", 40))], *[beside] * 3], train=2 * S, between=S)
    )
    (tool,) = [lever for lever in once.levers if lever.kind == "tool"]
    assert (tool.only_step, tool.seconds) == (left_out, pytest.approx(20))
    assert plain.left_out == ()


@pytest.mark.parametrize(
    ("lengths", "longest"), [((4, 7), slice(4, None)), ((7, 4), slice(None, 7)), ((5, 5), slice(5, None))]
)
def test_steps_of_one_attempt_are_replayed(lengths, longest):
    """A run that was resumed has the levers of the attempt with more steps, or of the newer one. The pause is in none of them."""
    first, second = (
        [[planned(("llm", 1), ("tool", seconds))]] * count for seconds, count in zip((2, 8), lengths, strict=True)
    )
    found = ranking.find_levers(record([*first, *second], train=2 * S, between=S, resumed_at=len(first), pause=600 * S))
    alone = ranking.find_levers(record([*first, *second][longest], train=2 * S, between=S))
    gains, usual = ({(each.kind, each.subject): each.seconds for each in one.levers} for one in (found, alone))
    assert gains == pytest.approx(usual)
    assert (found.period, found.waited, len(found.steps)) == (alone.period, alone.waited, len(alone.steps))
    assert any("attempt" in sentence for sentence in found.unknown)
    assert not any("attempt" in sentence for sentence in alone.unknown)


def test_what_cannot_be_replayed_is_said():
    """Without the submitter of trajectories, without steps, or where they ran in the trainer, there are no levers but a reason."""
    steps = record([[planned(("llm", 2))]] * 5)
    unlinked = [step._replace(members=tuple(m._replace(submitter=0) for m in step.members)) for step in steps]
    own = [step._replace(members=tuple(m._replace(instance="trainer-0") for m in step.members)) for step in steps]
    for given_steps, word in ((unlinked, "submitted"), (own, "process of the training loop"), ([], "no step")):
        found = ranking.find_levers(given_steps)
        assert not found.levers
        assert word in found.unknown[0]


def test_too_many_pieces_are_not_replayed():
    """The newest steps are, at least one."""
    steps = record([[planned(("llm", 2))]] * 5)
    pieces = len(steps[0].members[0].path)
    assert [len(ranking._choose_steps(steps, count * pieces)) for count in (0, 1, 2, 3, 100)] == [1, 1, 2, 3, 4]


def test_more_workers_share_what_they_had_to_wait_for():
    """Four trajectories in one slot take four times as long; with twice as many workers, twice as long."""
    row = (Item("server", "", "s", 0, 0, 10),)
    rollouts = tuple(Rollout(n, 0, 0, 0, row) for n in range(4))
    parts = (Part("phase", "gen", "gen", 0, 0, (0, 1, 2, 3)),)
    schedule = Schedule(0, (1,), parts, rollouts, (Pool("server", "s", 1),))
    assert replay(schedule).starts_ns[-1] == 40
    assert replay(ranking._double(schedule, "server")).starts_ns[-1] == 20
    assert ranking._double(schedule, "loop") is schedule


@pytest.mark.parametrize(("kind", "pool"), [("tool", "loop"), ("reward", "reward")])
def test_what_does_not_block_runs_beside_the_others(kind, pool):
    """Calls that waited for each other take as long as one of them."""
    row = (Item(kind, "add", "a", 0, 0, 10),)
    parts = (Part("phase", "gen", "gen", 0, 0, (0, 1, 2)),)
    schedule = Schedule(0, (1,), parts, tuple(Rollout(n, 0, 0, 0, row) for n in range(3)), (Pool(pool, "a", 1),))
    found = {each.kind: each for each in find_candidates(schedule, replay(schedule))}
    after = replay(found[f"unblocked_{kind}"].schedule)
    assert (replay(schedule).starts_ns[-1], after.starts_ns[-1]) == (30, 10)


def test_what_a_blocking_tool_held_up_is_shorter_by_its_share():
    """A piece that has got the event loop, and was held up by calls of two tools in turn, loses the time of the one that is changed."""
    calls = (Item("tool", "a", "x", 0, 0, 30), Item("tool", "b", "x", 0, 0, 10))
    held_up = (Item("llm", "", "x", 5, 0, 0, 40),)
    parts = (Part("phase", "gen", "gen", 0, 0, (0, 1)),)
    schedule = Schedule(
        0, (1,), parts, tuple(Rollout(n, 0, 0, 50 * n, row) for n, row in enumerate((calls, held_up))), LOOP
    )
    found = {(each.kind, each.subject): each.schedule for each in find_candidates(schedule, replay(schedule))}
    rests = {what: changed.rollouts[1].items[0].rest_ns for what, changed in found.items() if what[0] != "tail"}
    assert (rests["unblocked_tool", "a"], rests["unblocked_tool", "b"]) == (10, 30)
    assert (rests["tool", "a"], rests["tool", "b"]) == (25, 35)
    assert (rests["agent_loop_workers", ""], rests["replicas", ""]) == (20, 40)
    assert replay(found["unblocked_tool", "a"]).ends_ns[1] == 50 + 5 + 10


@LAW
@given(STEPS)
def test_nothing_saves_more_than_was_waited(steps):
    """No lever on trajectories saves more than the waits for them, none on the trainer more than its own time."""
    schedule = schedules.build(record(steps))
    timeline = replay(schedule)
    waited = sum(timeline.find_waits(schedule))
    for candidate in find_candidates(schedule, timeline):
        saved = timeline.starts_ns[-1] - replay(candidate.schedule).starts_ns[-1]
        if candidate.kind in ROLLOUT:
            assert saved <= waited
        else:
            parts = zip(schedule.parts, candidate.schedule.parts, strict=True)
            assert saved <= sum(old.length_ns for old, new in parts if new != old)


@LAW
@given(STEPS, st.booleans())
def test_levers_are_ranked_and_the_same_each_time(steps, reverse):
    """The largest gain first, in whatever order trajectories were read."""
    order = (lambda members: members[::-1]) if reverse else (lambda members: members)
    found = ranking.find_levers(record(steps, shuffle=order))
    assert found == ranking.find_levers(record(steps))
    gains = [lever.seconds for lever in found.levers]
    assert gains == sorted(gains, reverse=True)
    assert all(lever.low is None or lever.low <= lever.seconds + 1e-9 for lever in found.levers)
