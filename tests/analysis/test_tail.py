# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which trajectory held a step: only where it did, with what it spent its time on, the worst first."""

import pytest

from verl_otel.analysis import tail, timeline
from verl_otel.analysis.load import read_run


@pytest.fixture
def judged(stories, story):
    """Judge steps of which each is (begin, end, trajectories), a trajectory being (begin, end, more)."""

    def judge(*steps):
        trainer, agent = story.process(), story.process("agent_loop")
        for number, (begin, end, members) in enumerate(steps, 1):
            made = [
                stories.trajectory(agent, first, last, uid=f"u{number}", index=index, step=number, **more)
                for index, (first, last, more) in enumerate(members)
            ]
            stories.step(trainer, number, begin, end, [("gen", begin, end)], made)
        return tail.judge(timeline.build(read_run([story.write()])))

    return judge


SLOW_TOOL = {"calls": [("llm", "m", 0, 1), ("tool", "search", 1, 8)]}


def test_the_slow_one_is_named_with_what_it_did(judged):
    """A step that waited for one trajectory names it, how far it lagged behind, and its longest part."""
    (verdict,) = judged((0, 10, [(0, 2, {}), (0, 8, SLOW_TOOL), (0, 3, {})]))
    assert (verdict.step.number, verdict.trajectory.label, verdict.lead) == (1, "u1/1", 5.0)
    assert (verdict.part.kind, verdict.part.name, verdict.part.turn) == ("tool", "search", 1)


def test_the_worst_step_comes_first(judged):
    """Verdicts are in the order of what the wait may have cost."""
    steps = [
        (start, start + 10, [(start, start + 1, {}), (start, start + lag, {})])
        for start, lag in ((0, 5), (10, 9), (20, 7))
    ]
    assert [(verdict.step.number, verdict.lead) for verdict in judged(*steps)] == [(2, 8.0), (3, 6.0), (1, 4.0)]


@pytest.mark.parametrize(
    "members",
    [
        [],
        [(0, 9, {})],
        [(0, 8, {}), (0, 9, {})],
        [(0, 9, {}), (0, 9, {})],
    ],
    ids=["no trajectory", "one alone", "a small lead", "two at the same time"],
)
def test_no_verdict_where_no_single_one_held_the_step(judged, members):
    """A step without a trajectory that ended far behind all others has no verdict."""
    assert judged((0, 10, members)) == ()


def test_a_lead_of_a_fifth_is_enough(judged):
    """From a fifth of the step on the wait is worth a verdict."""
    assert len(judged((0, 10, [(0, 5, {}), (0, 7, {})]))) == 1


def test_rollouts_that_ran_ahead_held_nobody(judged):
    """Trajectories that had ended before the step began, as in asynchronous training, are no reason for its length."""
    assert judged((100, 110, [(0, 50, {}), (0, 90, {})])) == ()


def test_a_step_never_waited_longer_than_it_took(judged):
    """The wait for a trajectory that began long before the step is bounded by the step."""
    for verdict in judged((100, 110, [(0, 50, {}), (0, 105, {})])):
        assert verdict.lead <= 5.0


def test_nothing_is_said_of_what_was_not_kept(judged):
    """A trajectory of which only the root was kept is not said to have waited: nobody knows what it did."""
    verdicts = judged((0, 10, [(0, 2, {}), (0, 8, {"whole": False})]))
    assert [verdict.part.kind for verdict in verdicts] != ["wait"]


def test_the_slowest_are_sorted_and_limited(stories, story):
    """The slowest trajectories come first, as many as are asked for."""
    agent = story.process("agent_loop")
    for index in range(10):
        stories.trajectory(agent, 0, (index * 7) % 10 + 1, index=index)
    built = timeline.build(read_run([story.write()]))
    assert [each.seconds for each in tail.slowest(built.trajectories.values(), 3)] == [10.0, 9.0, 8.0]
    assert len(tail.slowest(built.trajectories.values(), 100)) == 10
    assert tail.slowest([], 3) == []
