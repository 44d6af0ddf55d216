# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Windows lie side by side over the whole run, each with all that touches it, whatever the order in which it becomes known."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import stories
from tests.builders.stories import T0, Story
from verl_otel.analysis import aggregator, summary
from verl_otel.analysis.aggregator import Draft, Restart, Windows, find_restarts
from verl_otel.analysis.model import Step, Trajectory
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import SpanRecord


def draft(begin, end):
    """A step of which only the times matter."""
    return Draft(Step(None, 1, begin, end, False, (), 0.0, (), 0, 0, 0), ())


def trajectory(begin, end):
    """A trajectory of which only the times matter."""
    return Trajectory(begin * 1000 + end, "u", 0, None, False, begin, end, None, False, True)


def node(begin, end, *children):
    """A span of which only the times matter."""
    span = SpanRecord(1, 1, 0, "x", 1, begin, end, {}, (), (), 0, "", 1, "")
    return Node(span, "trainer-0", 0, list(children))


TIMES = st.tuples(st.integers(0, 100), st.integers(0, 40)).map(lambda each: (each[0], each[0] + each[1]))


@pytest.mark.full
@given(st.lists(TIMES, max_size=8), st.lists(TIMES, max_size=8), st.lists(TIMES, max_size=4))
@settings(deadline=None)
def test_windows_tile_the_run_with_all_that_touches_them(steps, rollouts, others):
    """Fed in the order of ends, windows cover the run without gap or overlap, and each knows whatever overlaps it."""
    closed_windows = Windows()
    events = [(end, begin, kind) for kind, group in enumerate((rollouts, others, steps)) for begin, end in group]
    found = []
    for begin in sorted(begin for _, begin, _ in events):
        closed_windows.note_time(begin)
    for end, begin, kind in sorted(events, key=lambda event: (event[0], event[2])):
        if kind == 0:
            closed_windows.add_trajectory(trajectory(begin, end))
        else:
            closed_windows.add_root(node(begin, end))
            if kind == 2:
                closed_windows.add_step(draft(begin, end))
        found += closed_windows.close(end - 100)
    last = max([0, *(end for end, _, _ in events)])
    found += closed_windows.close_all(last)
    if not events:
        assert found == []
        return
    bounds = [(window.begin_ns, window.end_ns) for window in found]
    assert bounds[0][0] == min(begin for _, begin, _ in events)
    assert bounds[-1][1] == last
    assert all(first[1] == second[0] for first, second in itertools.pairwise(bounds))
    assert sum(window.draft is not None for window in found) == len(steps)
    for window in found:
        seen = sorted((each.start_ns, each.end_ns) for each in window.trajectories)
        assert seen == sorted(each for each in rollouts if each[0] < window.end_ns and each[1] > window.begin_ns)
        roots = sorted((each.span.start_ns, each.span.end_ns) for each in window.roots)
        assert roots == sorted(
            each for each in (*others, *steps) if each[0] < window.end_ns and each[1] > window.begin_ns
        )


def test_a_window_waits_for_what_may_still_touch_it():
    """As long as the longest thing of the run could have begun in a window and not have ended, it is not closed."""
    closed_windows = Windows()
    closed_windows.note_time(0)
    closed_windows.add_trajectory(trajectory(0, 50))
    for begin in (10, 60, 100):
        closed_windows.add_step(draft(begin, begin + 30))
    assert [window.end_ns for window in closed_windows.close(109)] == [10]
    assert [window.end_ns for window in closed_windows.close(110)] == [60]
    assert [window.end_ns for window in closed_windows.close(149)] == []
    assert [window.end_ns for window in closed_windows.close(150)] == [100]
    (last,) = closed_windows.close_all(200)
    assert (last.begin_ns, last.end_ns, last.draft.step.start_ns) == (100, 200, 100)


def test_what_ends_below_a_root_counts():
    """A worker that goes on after its step touches the next window, too."""
    closed_windows = Windows()
    closed_windows.note_time(0)
    closed_windows.add_root(node(0, 10, node(5, 25)))
    for begin in (0, 20):
        closed_windows.add_step(draft(begin, begin + 10))
    assert [len(window.roots) for window in closed_windows.close_all(40)] == [0, 1, 1]


def test_the_beginning_stays_once_a_window_is_closed():
    """What turns out later to have begun earlier does not move windows that were accounted for."""
    closed_windows = Windows()
    closed_windows.note_time(50)
    closed_windows.note_time(40)
    closed_windows.add_step(draft(60, 70))
    assert [(window.begin_ns, window.end_ns) for window in closed_windows.close(1000)] == [(40, 60)]
    closed_windows.note_time(5)
    assert [(window.begin_ns, window.end_ns) for window in closed_windows.close_all(70)] == [(60, 70)]


def test_too_much_that_is_held_closes_a_window_early(monkeypatch):
    """Memory is bounded: with more than is kept, the oldest window does not wait."""
    monkeypatch.setattr(aggregator, "MAX_HELD", 10)
    closed_windows = Windows()
    closed_windows.note_time(0)
    closed_windows.add_step(draft(0, 10))
    closed_windows.add_step(draft(20, 30))
    for _ in range(11):
        closed_windows.add_trajectory(trajectory(0, 19))
    assert [window.end_ns for window in closed_windows.close(5)] == [0, 20]


def bounds(windows):
    return [
        (window.begin_ns, window.end_ns, window.draft is not None, window.is_last, window.restarted)
        for window in windows
    ]


@pytest.mark.parametrize(
    ("ended", "end"),
    [(45, 45), (0, 40), (30, 40), (70, 40)],
    ids=["ended in order", "killed", "before its last record", "after the next start"],
)
def test_time_between_attempts_belongs_to_no_window(ended, end):
    """The last step of an attempt ends with it, and the next attempt begins with a window of its own, its start-up."""
    windows = Windows([Restart(ended, 60)])
    windows.note_time(0)
    windows.add_trajectory(trajectory(25, 40))
    for begin in (10, 20, 70, 80):
        windows.add_step(draft(begin, begin + 8))
    windows.note_time(65)
    assert bounds(windows.close_all(90)) == [
        (0, 10, False, False, False),
        (10, 20, True, False, False),
        (20, end, True, True, False),
        (60, 70, False, False, True),
        (70, 80, True, False, False),
        (80, 90, True, True, False),
    ]


def test_attempts_without_a_step():
    """Attempts that end in their start-up have a window, too."""
    windows = Windows([Restart(5, 20), Restart(30, 40), Restart(0, 60)])
    windows.note_time(0)
    windows.add_root(node(20, 25))
    windows.add_step(draft(45, 50))
    assert bounds(windows.close_all(70)) == [
        (0, 5, False, True, False),
        (20, 30, False, True, True),
        (40, 45, False, False, True),
        (45, 50, True, True, False),
        (60, 70, False, True, True),
    ]


def test_a_manifest_that_was_written_late():
    """An attempt that is noted after its first step has begun begins with that step; one whose files are missing changes nothing."""
    windows = Windows([Restart(0, 5), Restart(0, 42)])
    windows.note_time(10)
    for begin in (10, 40):
        windows.add_step(draft(begin, begin + 8))
    assert bounds(windows.close_all(50)) == [
        (10, 10, False, False, False),
        (10, 18, True, True, False),
        (40, 40, False, False, True),
        (40, 50, True, True, False),
    ]


def test_restarts_of_a_damaged_manifest():
    """What is no time is left out."""
    attempts = [
        {"started": 1.0, "ended": "x"},
        {"started": 3.0, "ended": 4.0},
        7,
        {"started": 2.5},
        {"started": 1e300},
        {},
    ]
    assert find_restarts({"attempts": attempts}) == (Restart(4_000_000_000, 2_500_000_000), Restart(0, 3_000_000_000))
    assert find_restarts({"attempts": 3}) == find_restarts({}) == ()


# -- A run that was killed and resumed: what lies between its attempts counts for no step, and steps that were trained again are marked --


def train(trainer, worker, agent, number, begin, gen=2.0):
    """One step: rollouts of ``gen`` seconds, then an update of 2 s on the GPU."""
    ready = begin + gen
    rollout = stories.trajectory(
        agent, begin, ready, uid=str(number), step=number, calls=[("llm", "qwen", begin, ready)]
    )
    root = stories.step(
        trainer, number, begin, ready + 2, [("gen", begin, ready), ("update_actor", ready, ready + 2)], [rollout]
    )
    call = trainer.span("verl.call update_actor", ready, ready + 2, root, kind=stories.CLIENT, verl__world_size=1)
    worker.span("verl.worker Actor.update_actor", ready, ready + 2, call, kind=stories.SERVER)


@pytest.fixture
def resumed(tmp_path):
    """Steps 1 to 6 of 4 s each, killed in the seventh at 30 s; resumed at 1000 s with step 5, whose rollouts wait for the engine's start."""
    story = Story(tmp_path / "r1")
    for attempt, (start, numbers) in enumerate([(0, range(1, 7)), (1000, range(5, 9))], 1):
        trainer, agent = story.process("trainer"), story.process("agent_loop")
        worker = story.process("actor_rollout_ref", verl__rank=0)
        begin = start + 5
        for number in numbers:
            slow = attempt == 2 and number == 5
            train(trainer, worker, agent, number, begin, 12.0 if slow else 2.0)
            begin += 14 if slow else 4
        if attempt == 1:
            trainer.still_open("verl.step", begin, begin + 1, verl__step__number=7)
    started = [{"started": T0 + 0.5}, {"started": T0 + 1000, "ended": T0 + 1031}]
    story.manifest(attempts=started)
    return summary.explain([story.write()])


def test_repeated_steps_are_marked(resumed):
    """Each step knows its attempt; those of the first that the second trained again are marked."""
    assert [(step.number, step.attempt, step.repeated) for step in resumed.steps] == [
        (1, 1, False), (2, 1, False), (3, 1, False), (4, 1, False), (5, 1, True), (6, 1, True),
        (5, 2, False), (6, 2, False), (7, 2, False), (8, 2, False),
    ]  # fmt: skip


def test_the_pause_counts_for_no_step(resumed):
    """Neither the last step before it nor the GPU has the time in which no process was there."""
    last = resumed.steps[5]
    assert last.between == pytest.approx(1.0), "until the killed attempt wrote for the last time"
    assert not [verdict for step in resumed.steps for verdict in step.verdicts if verdict.kind == "between"]
    (gpu,) = resumed.devices
    assert sum(gpu.nanoseconds.values()) / 1e9 == pytest.approx(25 + 31)
    assert gpu.nanoseconds["start_up"] / 1e9 == pytest.approx(5)


def test_the_start_up_of_an_attempt_is_no_finding(resumed):
    """Its first step may take longer than others, as the first of the run."""
    assert not [verdict for step in resumed.steps for verdict in step.verdicts]
