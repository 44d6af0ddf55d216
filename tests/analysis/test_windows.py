# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Windows lie side by side over the whole run, each with all that touches it, whatever the order in which it becomes known."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import stories
from tests.builders.stories import T0, Story
from verl_otel.analysis import reader
from verl_otel.analysis.gpu import accounting
from verl_otel.analysis.model import Step, Trajectory
from verl_otel.analysis.steps import Draft
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.windows import Windows, find_restarts
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
    monkeypatch.setattr("verl_otel.analysis.windows.MAX_HELD", 10)
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


def test_time_between_attempts_belongs_to_no_window():
    """An attempt ends with its last record, whenever its process exits; the next one begins with a window of its own, its start-up."""
    windows = Windows([60])
    windows.note_time(0)
    windows.add_trajectory(trajectory(25, 40))
    for begin in (10, 20, 70, 80):
        windows.add_step(draft(begin, begin + 8))
    windows.note_time(65)
    assert bounds(windows.close_all(90)) == [
        (0, 10, False, False, False),
        (10, 20, True, False, False),
        (20, 40, True, True, False),
        (60, 70, False, False, True),
        (70, 80, True, False, False),
        (80, 90, True, True, False),
    ]


def test_attempts_without_a_step():
    """Attempts that end in their start-up have a window, too."""
    windows = Windows([20, 40, 60])
    windows.note_time(0)
    windows.add_root(node(20, 25))
    windows.add_step(draft(45, 50))
    assert bounds(windows.close_all(70)) == [
        (0, 0, False, True, False),
        (20, 25, False, True, True),
        (40, 45, False, False, True),
        (45, 50, True, True, False),
        (60, 70, False, True, True),
    ]


def test_a_manifest_that_was_written_late():
    """An attempt that is noted after its first step has begun begins with that step; one whose files are missing changes nothing."""
    windows = Windows([5, 42])
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
    assert find_restarts({"attempts": attempts}) == (2_500_000_000, 3_000_000_000)
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
    return reader.read([story.write()])[0]


def test_repeated_steps_are_marked(resumed):
    """Each step knows its attempt; those of the first that the second trained again are marked."""
    assert [(step.number, step.attempt, step.repeated) for step in resumed.steps] == [
        (1, 1, False), (2, 1, False), (3, 1, False), (4, 1, False), (5, 1, True), (6, 1, True),
        (5, 2, False), (6, 2, False), (7, 2, False), (8, 2, False),
    ]  # fmt: skip


def test_the_pause_counts_for_no_step(resumed):
    """Neither the last step before it nor the GPU has the time in which no process was there."""
    last = resumed.steps[5]
    assert (last.next_ns - last.end_ns) / 1e9 == pytest.approx(1.0), "until the killed attempt wrote for the last time"
    assert not [verdict for step in resumed.steps for verdict in step.verdicts if verdict.kind == "between"]
    (gpu,) = resumed.devices
    assert sum(gpu.nanoseconds.values()) / 1e9 == pytest.approx(29.5 + 31)
    assert gpu.nanoseconds["start_up"] / 1e9 == pytest.approx(4.5 + 5)


def test_the_start_up_of_an_attempt_is_no_finding(resumed):
    """Its first step may take longer than others, as the first of the run."""
    assert not [verdict for step in resumed.steps for verdict in step.verdicts]


# -- The devices of a run with several attempts are those of each attempt: a resume makes no further ones --


def attempt_of(story, number, start, steps, *, hosts=("node-1",), ids=("0",), nodes=1, lingers=0.0):
    """One attempt: a rank on each GPU of each host, each host with ``nodes`` nodes of Ray, whose ids are new in each attempt."""
    trainer, agent = story.process("trainer", pid=number), story.process("agent_loop", pid=number)
    places = [(host, node, gpu) for host in hosts for node in range(nodes) for gpu in ids]
    workers = [
        story.process(
            "actor_rollout_ref",
            rank,
            host,
            pid=100 * number + rank,
            verl__rank=rank,
            verl__gpu__ids=[gpu],
            ray__node__id=f"{number}{node}{host}",
            verl__run__attempt=number,
        )
        for rank, (host, node, gpu) in enumerate(places)
    ]
    begin = start + 5
    for step in steps:
        for worker in workers[1:]:
            worker.span("verl.worker Actor.update_actor", begin + 2, begin + 4)
        train(trainer, workers[0], agent, step, begin)
        begin += 4
    if lingers:
        for worker in workers:
            worker.span("verl.worker Actor.shutdown", begin, begin + lingers)


def explain_attempts(tmp_path, *attempts, **facts):
    """The explanation of a run; of each attempt: start, its steps, and keywords of `attempt_of`."""
    story = Story(tmp_path / "r1")
    for number, (start, steps, more) in enumerate(attempts, 1):
        attempt_of(story, number, start, steps, **more)
    story.manifest(attempts=[{"started": T0 + start, "ended": T0 + start + 500} for start, _, _ in attempts], **facts)
    return reader.read([story.write()])[0]


def seconds_of(devices):
    return {device.device: sum(device.nanoseconds.values()) / 1e9 for device in devices}


@pytest.mark.parametrize("nodes", [1, 2], ids=["a node of Ray on the host", "a test's cluster of two"])
def test_a_resume_makes_no_further_device(tmp_path, nodes):
    """Three attempts of two steps on the same host: one GPU for each node, which has the time of each attempt once."""
    run = explain_attempts(tmp_path, *((1000 * n, (2 * n + 1, 2 * n + 2), {"nodes": nodes}) for n in range(3)))
    assert list(seconds_of(run.devices).values()) == pytest.approx(nodes * [3 * (5 + 8)])
    for step in run.steps:
        assert len(step.devices) == nodes
        assert step.cost.gpu_seconds == pytest.approx(4 * nodes)
        assert [device.nanoseconds["train"] / 1e9 for device in step.devices] == pytest.approx(nodes * [2])


def test_an_attempt_on_another_host_or_with_more_gpus_has_its_own_devices(tmp_path):
    """The GPUs of the attempts before are in none of its windows."""
    run = explain_attempts(
        tmp_path,
        (0, (1, 2), {}),
        (1000, (3, 4), {"hosts": ("node-2",)}),
        (2000, (5, 6), {"hosts": ("node-1", "node-2"), "ids": ("0", "1")}),
    )
    assert [[device.device for device in step.devices] for step in run.steps[::2]] == [
        ["node-1/0"],
        ["node-2/0"],
        ["node-1/0", "node-1/1", "node-2/0", "node-2/1"],
    ]
    assert seconds_of(run.devices) == pytest.approx({"node-1/0": 26, "node-1/1": 13, "node-2/0": 26, "node-2/1": 13})


def test_workers_that_outlive_their_attempt_are_no_devices_of_the_next(tmp_path):
    """Those of a killed attempt write until after the start of the next one, which has another node of Ray on the same host."""
    run = explain_attempts(tmp_path, (0, (1, 2), {"lingers": 13.0}), (25, (3, 4), {}))
    assert [len(step.devices) for step in run.steps] == [1, 1, 1, 1]


def test_a_container_that_is_started_again_is_in_both_attempts(tmp_path):
    """Host, process ids and instances are the same in both: its records are those of one process."""
    story = Story(tmp_path / "r1")
    trainer, agent = story.process("trainer"), story.process("agent_loop")
    worker = story.process("actor_rollout_ref", verl__rank=0, verl__gpu__ids=["0"])
    for number, begin in ((1, 5), (2, 9), (3, 1005), (4, 1009)):
        train(trainer, worker, agent, number, begin)
    story.manifest(attempts=[{"started": T0}, {"started": T0 + 1000}])
    run = reader.read([story.write()])[0]
    assert [len(step.devices) for step in run.steps] == [1, 1, 1, 1]


def test_an_attempt_ends_with_its_last_record(tmp_path):
    """Its process exits long after the last step; that time is no time between two steps."""
    run = explain_attempts(tmp_path, (0, (1, 2), {}), (1000, (3,), {}))
    assert [step.between for step in run.steps] == [0, 0, 0]


# -- Tokens whose update was lost are waste, and not trained --


def test_tokens_of_lost_steps_are_no_trained_ones(tmp_path):
    """Resumed twice, from step 2 and from step 3: whatever trained on later steps before is lost, also step 6, which was not reached again."""
    story = Story(tmp_path / "r1")
    for number, (start, steps) in enumerate([(0, range(1, 7)), (1000, (3, 4, 5)), (2000, (4, 5))]):
        trainer, agent = story.process("trainer", pid=number), story.process("agent_loop", pid=number)
        for place, step in enumerate(steps):
            begin = start + 5 + 4 * place
            made = [
                stories.trajectory(
                    agent, begin, begin + 1, uid=str(step), index=index, step=step,
                    verl__response__tokens=10 ** number, verl__reward__score=1.0,
                )
                for index in range(2)
            ]  # fmt: skip
            failed = {"error__type": "ValueError"} if (number, step) == (2, 5) else {}
            stories.step(trainer, step, begin, begin + 4, [("gen", begin, begin + 1)], made, **failed)
    story.manifest(attempts=[{"started": T0 + start} for start in (0, 1000, 2000)], verl__algorithm="gae")
    run = reader.read([story.write()])[0]
    assert [(step.number, step.repeated, step.cost.trained_tokens, step.cost.wasted_tokens) for step in run.steps] == [
        (1, False, 2, {}),
        (2, False, 2, {}),
        *((number, True, 0, {"lost": 2}) for number in (3, 4, 5, 6)),
        (3, False, 20, {}),
        (4, True, 0, {"lost": 20}),
        (5, True, 0, {"lost": 20}),
        (4, False, 200, {}),
        (5, False, 0, {"lost": 200}),
    ]
    total = accounting.sum_costs(run.steps, run.unused)
    assert (total.trained_tokens, total.wasted_tokens, total.generated_tokens) == (224, {"lost": 248}, 472)


@pytest.mark.parametrize(
    ("started", "begin"),
    [(0, 7200), (3700, 3700), (7100, 7100), (7300, 7200)],
    ids=["the oldest files were removed", "an hour before", "before", "noted late"],
)
def test_a_run_begins_with_its_process(started, begin):
    """Unless what it did first is in no file any more: that time is no start-up."""
    windows = Windows((), at_seconds(started))
    windows.note_time(at_seconds(7200))
    assert windows.begin_ns == at_seconds(begin)


def at_seconds(seconds):
    return round((T0 + seconds) * 1e9)
