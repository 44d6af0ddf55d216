# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run is explained from its files, the same in one piece or many, on one host's clock or many."""

import math
import time

import pytest

import verl_otel
from tests.builders import stories, texts
from verl_otel.analysis import findings, reader
from verl_otel.analysis.io import followed_files
from verl_otel.analysis.traces import clocks, whole_traces
from verl_otel.cli import headlines


def explain(folder, **more):
    """Explain one folder in this process."""
    return reader.read([folder], **more)[0]


def long_story(folder, steps=30, hosts=("node-1",), shift=0.0):
    """A run of many steps of ten seconds: a rollout of 2 to 8 s in each, some that run ahead, validations, scalars."""
    story = stories.Story(folder)
    trainer = story.process("trainer", host=hosts[0])
    agent = story.process("agent_loop", host=hosts[-1])
    server = story.process("llm_server", host=hosts[-1])
    rank = story.process("actor_rollout_ref", host=hosts[-1], verl__rank=0)
    for number in range(1, steps + 1):
        begin = number * 10
        members = []
        for index in range(4):
            end = begin + 2 + (number * 7 + index * 3) % 7 + shift
            calls = [
                ("llm", "m", begin + 0.5 + shift, begin + 1.5 + shift),
                ("tool", "t", begin + 1.5 + shift, end - 0.1),
            ]
            early = 25 if index == 3 else 0.5
            members.append(
                stories.trajectory(
                    agent,
                    begin - early + 1 + shift,
                    end,
                    uid=f"u{number}",
                    index=index,
                    step=number,
                    calls=calls,
                    server=server,
                )
            )
        root = stories.step(
            trainer, number, begin, begin + 9.5, [("gen", begin, begin + 9), ("adv", begin + 9, begin + 9.5)], members
        )
        call = trainer.span("verl.call update", begin + 9, begin + 9.4, root, kind=3, verl__world_size=1)
        rank.span("verl.worker A.update", begin + 9.1 + shift, begin + 9.3 + shift, call, kind=2)
        trainer.scalar("verl.training.step", begin + 9.4, number)
        if number % 10 == 0:
            trainer.span("verl.validation", begin + 9.6, begin + 9.9, state=stories.STEP, verl__step__number=number)
    for each in story.processes:
        each.spans.sort(key=lambda span: span.end_ns)
    return story.write()


def test_a_small_run_is_explained_whole(tmp_path):
    """Counts, steps with their parts, windows of GPU time and series of a small run."""
    run = explain(stories.training(tmp_path / "r1").write())
    assert run.run_id == "r1"
    assert run.state == "finished"
    assert run.counts == (
        run.counts.spans, 4, 4, 5, 1, 1, 4, 0, 0, 0
    )  # fmt: skip
    first, second = run.steps
    assert [step.number for step in run.steps] == [1, 2]
    assert (second.members, len(second.trajectories), len(second.slowest)) == (2, 2, 2)
    assert second.path[0].start_ns == second.start_ns
    assert second.path[-1].end_ns == second.end_ns
    assert [device.device for device in run.devices] == ["actor_rollout_ref-0"]
    assert sum(first.devices[0].nanoseconds.values()) == second.start_ns - first.start_ns
    assert (run.start_ns, run.end_ns) == (stories.at(0), stories.at(25))
    assert {series.name for series in run.series} == {"verl.training.step", "verl.average_reward", "verl.run.state"}
    assert run.problems == ()


@pytest.mark.parametrize("late", [0, 1])
def test_a_step_that_all_ranks_record_is_one_step(tmp_path, late):
    """With the trajectories and the mean reward of all of them, and with what that rank says which was delayed."""
    story = stories.Story(tmp_path / "r1")
    ranks = [story.process("process", index) for index in range(2)]
    for number in range(1, 7):
        for index, rank in enumerate(ranks):
            begin = number * 10 + 0.01 * index
            slow = 4 if (number, index) == (5, late) else 0
            member = stories.trajectory(
                rank,
                begin + 0.1,
                begin + 2 + slow,
                uid=f"u{number}",
                index=index,
                step=number,
                verl__reward__score=index,
            )
            rank.scalar("verl.average_reward", begin + 7 + index / 100, index)
            phases = [("gen", begin, begin + 2 + slow), ("update", begin + 2 + slow, begin + 7 + index / 100)]
            stories.step(rank, number, begin, begin + 7 + index / 100, phases, [member], verl__rank=index)
    run = explain(story.write())
    assert [step.number for step in run.steps] == [1, 2, 3, 4, 5, 6]
    assert [(step.members, len(step.trajectories)) for step in run.steps] == [(2, 2)] * 6
    assert run.counts.trained == 12
    assert [tuple(one.values) for one in run.series if one.name == "verl.average_reward"] == [(0.5,) * 6]
    assert all(0 < step.between < 4 for step in run.steps[:-1])
    assert {verdict.instance for verdict in run.steps[4].verdicts} == {f"process-{late}"}


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_waits_for_another_is_not_named(tmp_path, late):
    """One rank generated longer, and the other waited for it in the update: that wait is no cause.

    Where both took longer in the same phase, either may have waited, and no process is named.
    """
    story = stories.Story(tmp_path / "r1")
    for index in range(2):
        rank, begin = story.process("process", index), 0
        for number in range(1, 8):
            gen, end = 2, 4
            if number == 5:
                gen, end = (6, 8) if index == late else (2, 8.05)
            elif number == 6:
                end = 8
            phases = [("gen", begin, begin + gen), ("update", begin + gen, begin + end)]
            stories.step(rank, number, begin, begin + end, phases, verl__rank=index)
            begin += 10
    run = explain(story.write())
    found = [(verdict.subject, verdict.instance) for step in run.steps for verdict in step.verdicts]
    assert found == [("gen", f"process-{late}"), ("update", "")]


@pytest.mark.parametrize("early", [0, 1])
def test_the_first_step_of_each_rank_includes_the_start_up(tmp_path, early):
    """The rank that starts first waits in its first collective for the others: that is no slow phase."""
    story = stories.Story(tmp_path / "r1")
    for index in range(2):
        rank = story.process("process", index)
        for number in range(1, 7):
            start, end = 30 * number, 30 * number + (20 if number == 1 else 4)
            start += 16 if number == 1 and index != early else 0
            phases = [("gen", start, start + 2), ("update", start + 2, end)]
            stories.step(rank, number, start, end, phases, verl__rank=index)
    run = explain(story.write())
    assert not [verdict for step in run.steps for verdict in step.verdicts]


@pytest.mark.parametrize(("slow", "found"), [(2, [("trajectory", 3.0)] * 2), (4, [("reward", 12.0)])])
def test_what_delayed_trajectories_in_turn_adds_up(story, slow, found):
    """A loop that runs one trajectory after the other waits for each: a reward that was slow in many of them is named, with the sum."""
    loop, now = story.process(), 0.0
    for number in range(1, 7):
        begin, spans = now, []
        for index in range(4):
            scored = 4.0 if number == 4 and index < slow else 1.0
            own = stories.trajectory(
                loop, now, now + 0.5 + scored, uid=str(number), index=index, reward=(now + 0.5, now + 0.5 + scored)
            )
            now += 0.5 + scored
            spans.append(own)
        step = stories.step(loop, number, begin, now + 1, [("gen", begin, now)], verl__step__lineage="submitted")
        link = stories.LinkRecord(step.trace_id, step.span_id, {"verl.link.type": "submitted_by"}, "", 0)
        loop.spans = [each._replace(links=(link,)) if each in spans else each for each in loop.spans]
        now += 1
    step = explain(story.write()).steps[3]
    assert [(verdict.kind, round(verdict.saved, 3)) for verdict in step.verdicts] == found
    assert findings.sum_savings(step) == pytest.approx(3.0 * slow)


def ordered(step):
    """A recent step with its trajectories in an order that does not depend on the pieces."""
    return step._replace(members=tuple(sorted(step.members)))


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 20_000, 60_000])
def test_pieces_change_nothing(monkeypatch, tmp_path, size):
    """A run says the same read line by line or in many pieces as read in one piece."""
    folder = long_story(tmp_path / "r1")
    whole = explain(folder)
    monkeypatch.setattr(followed_files, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(reader, "PIECE_BYTES", size)
    again = explain(folder)
    assert again._replace(recent_steps=()) == whole._replace(recent_steps=())
    assert list(map(ordered, again.recent_steps)) == list(map(ordered, whole.recent_steps))


@pytest.mark.full
@pytest.mark.parametrize("shift", [3600.0, -40.0, 0.0])
def test_another_hosts_clock_is_brought_to_the_trainers(tmp_path, shift):
    """However far the clock of a second host is ahead, steps are explained as if it were right, within the uncertainty."""
    right = explain(long_story(tmp_path / "right"))
    run = explain(long_story(tmp_path / "r1", hosts=("node-1", "node-2"), shift=shift))
    (own, other) = run.offsets
    assert own == ("node-1", 0.0, 0.0)
    host, ahead, uncertainty = other
    assert host == "node-2"
    assert abs(ahead - shift) <= uncertainty <= 1.0
    assert run.end_ns == pytest.approx(right.end_ns, abs=uncertainty * 1e9)
    for step, expected in zip(run.steps, right.steps, strict=True):
        assert step.members == expected.members
        assert step.rollouts_end_ns == pytest.approx(expected.rollouts_end_ns, abs=uncertainty * 1e9)
        assert step.uncertainty <= uncertainty


def test_a_host_that_joins_late_has_a_clock(monkeypatch, story):
    """What is read tells how far a clock is, and not only the beginning of the run."""
    trainer, late = story.process(), story.process("actor_rollout_ref", host="node-3")
    ahead = 30.0
    for number in range(1, 9):
        root = stories.step(trainer, number, number, number + 0.9)
        if number > 4:
            call = trainer.span("verl.call update", number + 0.1, number + 0.8, root, kind=3)
            late.span("verl.worker A.update", number + 0.2 + ahead, number + 0.7 + ahead, call, kind=2)
    monkeypatch.setattr(whole_traces, "AHEAD_BYTES", 1)
    monkeypatch.setattr(reader, "PIECE_BYTES", 1)
    monkeypatch.setattr(followed_files, "CHUNK_BYTES", 1)
    run = explain(story.write())
    assert run.problems == ()
    assert run.offsets[1] == ("node-3", pytest.approx(ahead, abs=0.11), pytest.approx(0.2, abs=0.01))


def test_several_folders_are_one_run(tmp_path):
    """Folders of several nodes make one run; its record is taken from whichever has one."""
    nodes = [stories.Story(tmp_path / name / "r1") for name in ("a", "b")]
    for number, (story, host) in enumerate(zip(nodes, ("a", "b"), strict=True)):
        stories.step(story.process(host=host, pid=7), number, number, number + 1)
        story.write()
    nodes[1].manifest(verl__project="p")
    run = reader.read([story.folder for story in nodes])[0]
    assert [step.number for step in run.steps] == [0, 1]
    assert run.manifest["verl.project"] == "p"
    assert run.folders == tuple(str(story.folder) for story in nodes)


def test_rotated_files_are_read_and_others_left_alone(story):
    """Files of every rotation belong to the run; files of other kinds do not."""
    process = story.process()
    stories.step(process, 1, 0, 1)
    folder = story.write()
    (path,) = folder.glob("traces-*")
    process.spans.clear()
    stories.step(process, 2, 1, 2)
    path.rename(path.with_suffix(".1.jsonl"))
    story.write()
    (folder / "notes.jsonl").write_text("not ours\n")
    (folder / "training.log").write_text("not ours either\n")
    run = explain(folder)
    assert [step.number for step in run.steps] == [1, 2]
    assert not [problem for problem in run.problems if ".jsonl" in problem]


def test_open_rows_are_dropped_once_their_span_has_ended(story):
    """Of what was written as open only what has not ended in any file is left; its process has not ended."""
    trainer = story.process()
    ended = stories.step(trainer, 1, 0, 10)
    trainer.still_open("verl.phase.gen", 5, 8, ended, last_child="verl.consume")
    trainer.opened.append(ended._replace(end_ns=0))
    run = explain(story.write())
    (unfinished,) = run.completeness.unfinished
    (left,) = unfinished.work
    assert (left.span.name, left.age, left.last_child) == ("verl.phase.gen", 3.0, "verl.consume")
    assert not unfinished.process.ended


def test_an_unfinished_step_is_no_step_but_its_time_counts(story):
    """A step that had not ended is not explained; the GPU time of the run goes on to the last sign of life."""
    trainer, rank = story.process(), story.process("actor_rollout_ref", verl__rank=0)
    stories.step(trainer, 1, 0, 10)
    root = trainer.still_open("verl.step", 10, 30, verl__step__number=2)
    call = trainer.still_open("verl.call update_actor", 12, 30, root, verl__world_size=1)
    rank.still_open("verl.worker A.update_actor", 13, 30, call, verl__worker__method="update_actor")
    run = explain(story.write())
    assert [step.number for step in run.steps] == [1]
    assert run.end_ns == stories.at(30)
    (device,) = run.devices
    assert device.nanoseconds["train"] == stories.at(30) - stories.at(13)
    assert sum(device.nanoseconds.values()) == run.end_ns - run.start_ns


def test_a_trajectory_that_never_came_is_missed_by_nothing(story):
    """A step trains on trajectories of which files are missing: they count as trained on, what is known is explained."""
    trainer, agent = story.process(), story.process("agent_loop")
    known, lost = stories.trajectory(agent, 0, 3), stories.trajectory(agent, 0, 4)
    agent.spans.remove(lost)
    stories.step(trainer, 1, 0, 10, [("gen", 0, 5)], [known, lost])
    run = explain(story.write())
    assert (run.counts.trajectories, run.counts.trained) == (1, 2)
    assert run.steps[0].members == 2


def test_a_trajectory_that_two_steps_trained_on_counts_once(story):
    """Samples that are used again are one trajectory, known or not, and each of the steps has it."""
    trainer, agent = story.process(), story.process("agent_loop")
    known, lost = stories.trajectory(agent, 0, 3), stories.trajectory(agent, 0, 4)
    agent.spans.remove(lost)
    for number in (1, 2):
        stories.step(trainer, number, number * 10, number * 10 + 9, [("gen", number * 10, number * 10 + 5)], [known])
    run = explain(story.write())
    assert (run.counts.trajectories, run.counts.trained) == (1, 1)
    assert [len(step.slowest) for step in run.steps] == [1, 1]


def test_tokens_that_no_step_trained_on_are_waste_of_their_step(story):
    """Trajectories that were generated for a step and never used are found at the end, validation is no waste."""
    trainer, agent = story.process(), story.process("agent_loop")
    used = stories.trajectory(agent, 0, 3, verl__response__tokens=10)
    stories.trajectory(agent, 0, 3, index=1, verl__response__tokens=7)
    stories.trajectory(agent, 0, 3, index=2, verl__response__tokens=5, verl__validate=True)
    stories.step(trainer, 1, 0, 10, [("gen", 0, 5)], [used])
    cost = explain(story.write()).steps[0].cost
    assert (cost.trained_tokens, cost.wasted_tokens) == (10, {"dropped": 7})


def test_answers_of_tools_are_neither_trained_on_nor_waste(story):
    """Tokens of a step are those that the model wrote; a response of which nobody says that counts as a whole."""
    trainer, agent = story.process(), story.process("agent_loop")
    tokens = [(50, 10), (60, 7), (5, None)]
    members = [
        stories.trajectory(agent, 0, 3, index=index, verl__response__tokens=response)
        for index, (response, _) in enumerate(tokens)
    ]
    for member, (_, generated) in zip(members, tokens, strict=True):
        if generated is not None:
            member.attributes["verl.generated.tokens"] = generated
    stories.step(trainer, 1, 0, 10, [("gen", 0, 5)], [members[0], members[2]])
    cost = explain(story.write()).steps[0].cost
    assert (cost.trained_tokens, cost.wasted_tokens) == (15, {"dropped": 7})


def test_a_step_waits_for_filtered_trajectories_and_trains_on_the_others(story):
    """Their tokens are waste of their step, and its critical path leads through the one that the step waited for."""
    trainer, agent = story.process(), story.process("agent_loop")
    used = stories.trajectory(agent, 0, 3, verl__response__tokens=10)
    filtered = stories.trajectory(agent, 0, 4, index=1, verl__response__tokens=7)
    root = stories.step(trainer, 1, 0, 10, [("gen", 0, 5)], [used, filtered])
    stories.evict(trainer, root, 9, [filtered])
    run = explain(story.write())
    (step,) = run.steps
    assert (run.counts.trained, step.members) == (1, 1)
    assert (step.cost.trained_tokens, step.cost.wasted_tokens) == (10, {"dropped": 7})
    assert {part.trace_id for part in step.path} - {0} == {filtered.trace_id}
    assert [one.trace_id for one in step.slowest] == [filtered.trace_id, used.trace_id]


@pytest.mark.parametrize("outcome", [{"error__type": "ValueError"}, {"verl__outcome": "cancelled"}])
def test_a_failed_trajectory_that_its_step_waited_for_has_a_verdict(story, outcome):
    """A loop goes on when one of its trajectories has failed late, as with ``asyncio.gather(return_exceptions=True)``: its slow tool is named."""
    loop = story.process()
    for number, begin, late in ((1, 0, 0), (2, 2, 0), (3, 4, 5), (4, 11, 0)):
        for index in range(4):
            end = begin + 1 + (late if index == 2 else 0)
            more = outcome if index == 2 and late else {}
            stories.trajectory(
                loop, begin, end, index=index, step=number, calls=[("tool", "search", begin, end)], **more
            )
        phases = [("gen", begin, begin + 1 + late), ("update_actor", begin + 1 + late, begin + 2 + late)]
        stories.step(loop, number, begin, begin + 2 + late, phases, verl__step__lineage="submitted")
    run = explain(story.write())
    (verdict,) = run.steps[2].verdicts
    assert (verdict.subject, verdict.cause_name, round(verdict.saved)) == ("u/2", "search", 5)
    assert run.steps[2].members == 3
    assert run.steps[2].savings[0].seconds == pytest.approx(5)
    assert not any(each.verdicts for each in (*run.steps[:2], run.steps[3]))


def test_the_trajectory_that_each_round_waited_for_is_known(story):
    """Those of a long round are slower than any of a short one."""
    trainer, agent = story.process(), story.process("agent_loop")
    rounds = [[stories.trajectory(agent, 0, 9 + index / 10, index=index) for index in range(4)]]
    rounds.append([stories.trajectory(agent, 10, 11 + index / 10, index=index, uid="v") for index in range(4)])
    root = stories.step(trainer, 1, 0, 15)
    for number, members in enumerate(rounds):
        phase = trainer.span("verl.phase.gen", number * 10, number * 10 + 10 - number * 8, root)
        trainer.span(
            "verl.consume", phase.end_ns / 1e9 - stories.T0, phase.end_ns / 1e9 - stories.T0, phase, links=members
        )
    (step,) = explain(story.write()).steps
    awaited = {members[-1].trace_id for members in rounds}
    assert {part.trace_id for part in step.path} - {0} == awaited
    assert awaited < {one.trace_id for one in step.slowest}


def test_tokens_that_belong_to_no_step_are_waste_of_the_run(story):
    """Trajectories of no step (fully asynchronous) and of a step that never ended are counted, with the run."""
    trainer, agent = story.process(), story.process("agent_loop")
    used = stories.trajectory(agent, 0, 3, verl__response__tokens=10)
    stories.trajectory(agent, 0, 3, index=1, step=9, verl__response__tokens=7)
    free = stories.trajectory(agent, 0, 3, index=2, verl__response__tokens=5)
    del free.attributes["verl.step.number"]
    stories.step(trainer, 1, 0, 10, [("gen", 0, 5)], [used])
    run = explain(story.write())
    assert run.steps[0].cost.wasted_tokens == {}
    assert run.unused == {"dropped": 12}


def test_tokens_of_a_number_that_two_steps_have_count_once(story):
    """A resumed run does a step again: what was generated for its number and not used is waste of the last one."""
    trainer, agent = story.process(), story.process("agent_loop")
    stories.trajectory(agent, 0, 3, verl__response__tokens=7)
    for begin in (0, 20):
        stories.step(trainer, 1, begin, begin + 10)
    run = explain(story.write())
    assert [step.cost.wasted_tokens for step in run.steps] == [{}, {"dropped": 7}]
    assert run.unused == {}


def test_an_unbounded_clock_allows_no_verdict(tmp_path, monkeypatch):
    """Where nothing tells how far the clock of a host on the path is, the uncertainty is infinite, and not zero."""
    folder = long_story(tmp_path / "r1", steps=6, hosts=("node-1", "node-2"))
    unbounded = clocks.estimate([], "node-1", ["node-1", "node-2"])
    assert unbounded["node-2"].uncertainty == math.inf
    monkeypatch.setattr(clocks, "estimate", lambda *_: unbounded)
    run = explain(folder)
    assert {step.uncertainty for step in run.steps} == {math.inf}
    assert not any(step.verdicts for step in run.steps)


def test_a_run_in_which_nothing_has_ended_begins_with_what_is_open(story):
    """Before the first span has ended, the run began with the first that is open."""
    trainer = story.process()
    trainer.still_open("verl.step", 3, 30, verl__step__number=1)
    run = explain(story.write())
    assert (run.start_ns, run.end_ns) == (stories.at(3), stories.at(30))


def test_a_run_without_spans_begins_with_its_first_value(story):
    """Without any span, the scalars tell when the run was there."""
    trainer = story.process()
    trainer.scalar("verl.run.state", 2, 1)
    trainer.scalar("verl.run.state", 7, 1)
    run = explain(story.write())
    assert (run.start_ns, run.end_ns) == (stories.at(2), stories.at(7))


def test_validations_are_told_with_their_step(story):
    """Validations are roots of their own and no steps."""
    story.process().span("verl.validation", 0, 3, state=stories.STEP, verl__step__number=0)
    run = explain(story.write())
    assert run.validations == ((0, stories.at(0), stories.at(3)),)
    assert run.steps == ()


@pytest.mark.parametrize(
    ("states", "attempts", "state"),
    [
        ([1, 2], None, "finished"),
        ([1, 3], None, "failed"),
        ([1], None, "no end seen"),
        ([1], [{"ended": 1.0}], "ended"),
        ([1], [{"ended": 1.0}, {}], "no end seen"),
        ([1], "damaged", "no end seen"),
        ([], None, "no end seen"),
    ],
)
def test_how_the_run_ended(story, states, attempts, state):
    """What the trainer said last, else what the process that started it wrote."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 1)
    for second, value in enumerate(states):
        trainer.scalar("verl.run.state", second, value)
    story.manifest(**({} if attempts is None else {"attempts": attempts}))
    assert explain(story.write()).state == state


def test_a_run_that_is_going_on_is_running(monkeypatch, story):
    """Files that were written just now belong to a run that has not ended."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 10)
    trainer.scalar("verl.run.state", 0, 1)
    folder = story.write()
    monkeypatch.setattr(time, "time", lambda: stories.T0 + 12.0)
    assert explain(folder).state == "running"


def test_progress_is_told(tmp_path):
    """After each part the caller knows how many bytes were read, of how many; at last all."""
    parts_read = []
    folder = stories.training(tmp_path / "r1").write()
    explain(folder, progress=lambda done, total: parts_read.append((done, total)))
    size = sum(path.stat().st_size for kind in ("traces", "metrics") for path in folder.glob(f"{kind}-*"))
    assert parts_read[-1] == (size, size)
    assert parts_read == sorted(parts_read)


def test_a_real_session_is_read(tmp_path):
    """What a session wrote has one process, its step, its scalars, and nothing open."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="real")
    try:
        with verl_otel.step(1), verl_otel.phase("gen"):
            pass
        verl_otel.gauge("my.gauge").set(2.5, kind="x")
    finally:
        verl_otel.shutdown()
    run = explain(tmp_path / "real")
    assert (run.run_id, run.counts.processes, run.counts.spans) == ("real", 1, 2)
    assert [(step.number, [phase.key for phase in step.phases]) for step in run.steps] == [(1, ["gen"])]
    (series,) = (each for each in run.series if each.name == "my.gauge")
    assert (list(series.values), dict(series.labels)["kind"]) == ([2.5], "x")
    assert run.completeness.unfinished == ()


def test_a_run_that_has_only_begun_can_be_read(story):
    """A folder with nothing but run.json is a run without spans."""
    story.manifest(verl__project="p")
    run = explain(story.folder)
    assert (run.run_id, run.steps, run.counts.spans, run.start_ns, run.end_ns) == ("r1", (), 0, 0, 0)


@pytest.mark.parametrize(("failing", "is_headline"), [(1, False), (3, True)])
def test_scores_of_0_where_a_tool_failed_are_counted(story, failing, is_headline):
    """Verl converts an exception of a tool to text, and the trajectory goes on: its score is that of the environment."""
    trainer, agent = story.process("trainer"), story.process("agent_loop")
    consumed = []
    for index in range(8):
        score = 0.0 if index < 4 else 1.0
        own = stories.trajectory(agent, 1, 3, index=index, verl__reward__score=score)
        error = {"error__type": "error"} if index < failing else {}
        agent.span("execute_tool add", 1.2, 1.3, own, state=stories.TRAJECTORY, gen_ai__tool__name="add", **error)
        consumed.append(own)
    stories.step(trainer, 1, 0, 5, [("gen", 0, 4), ("update_actor", 4, 5)], consumed)
    run = reader.read([story.write()])[0]
    assert run.steps[0].failures == (("tool", "add", failing, failing, failing),)
    text = (
        "tool add: 1 call in 1 trajectory, 1 of them with score 0 or none"
        if failing == 1
        else "tool add: 3 calls in 3 trajectories, 3 of them"
    )
    assert text in texts.explain_step(run, run.steps)
    assert any("score 0 or none may be" in line.text for line in headlines.find_headlines(run)) == is_headline
    assert ("score 0 or none may be" in texts.explain(run)) == is_headline


@pytest.mark.parametrize(
    ("sizes", "short"), [((4, 4), []), ((4, 3), []), ((4, 2), [1]), ((0, 4, 4, 4), [0]), ((4, None), [])]
)
def test_a_rank_that_trains_on_less_is_named(story, sizes, short):
    """Nothing is slow then, and the gradient is that of fewer samples."""
    trainer = story.process("trainer")
    step = stories.step(trainer, 1, 0, 5, [("update_actor", 1, 5)], ())
    call = trainer.span("verl.call update_actor", 1, 5, step)
    for rank, size in enumerate(sizes):
        worker = story.process("actor_rollout_ref", verl__rank=rank)
        facts = {} if size is None else {"verl__batch__size": size}
        worker.span("verl.worker W.update_actor", 1, 5, call, verl__rank=rank, **facts)
    run = reader.read([story.write()])[0]
    assert [each.rank for each in run.steps[0].short_ranks] == short
    assert ("rank 1: 2 samples in update_actor, the others 4" in texts.explain_step(run, run.steps)) == (short == [1])
    assert any("a rank trained on less" in line.text for line in headlines.find_headlines(run)) == bool(short)
