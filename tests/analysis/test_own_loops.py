# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Loops of one's own, recorded with the verbs: steps have their trajectories, scores and causes, without verl."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import verl_otel
from tests.builders import stories, texts
from verl_otel.analysis import reader
from verl_otel.cli import formatting

pytestmark = pytest.mark.full

SLOW, FAST = 0.8, 0.005
STEPS, SAMPLES, SLOW_STEP, SLOW_SAMPLE = 4, 4, 3, 1


@verl_otel.tool("search")
def search(seconds):
    time.sleep(seconds)


@verl_otel.tool("search")
async def search_async(seconds):
    await asyncio.sleep(seconds)


@verl_otel.reward("math")
def score(index):
    return float(index)


def find_seconds(number, index):
    return SLOW if (number, index) == (SLOW_STEP, SLOW_SAMPLE) else FAST


def run_in_turn(number):
    """One trajectory after the other, in the thread of the step."""
    for index in range(SAMPLES):
        with verl_otel.trajectory(f"p{number}", index), verl_otel.turn(0):
            search(find_seconds(number, index))
            score(index)


def run_at_once(number):
    """All trajectories of a step in one event loop."""

    async def run(index):
        with verl_otel.trajectory(f"p{number}", index), verl_otel.turn(0):
            await search_async(find_seconds(number, index))
            score(index)

    async def run_all():
        await asyncio.gather(*map(run, range(SAMPLES)))

    asyncio.run(run_all())


def train(folder, rollout, **settings):
    """Run a loop with telemetry, and return what is known of it."""
    verl_otel.init(run_dir=folder, run_id="own", exporters="file", **settings)
    try:
        for number in range(1, STEPS + 1):
            with verl_otel.step(number):
                with verl_otel.phase("gen"):
                    rollout(number)
                with verl_otel.phase("update_actor"):
                    time.sleep(FAST)
    finally:
        verl_otel.shutdown()
    return reader.read([folder / "own"])[0]


def test_the_gpu_of_a_loop_waits_for_its_tools(tmp_path):
    """A process that generates and trains on its own GPU: LLM calls and updates use it, tools leave it idle."""
    story = stories.Story(tmp_path / "r1")
    loop = story.process("process", index=7)
    for number, begin in enumerate((0, 10), 1):
        calls = [("llm", "", begin, begin + 3), ("tool", "search", begin + 3, begin + 7)]
        rollout = stories.trajectory(loop, begin, begin + 7, uid=str(number), step=number, calls=calls)
        root = stories.step(loop, number, begin, begin + 10, [("gen", begin, begin + 7)], [rollout])
        loop.span("verl.worker update", begin + 7, begin + 9, root, verl__worker__method="update")
    loop.scalar("verl.gpu.owner", 1, 1, hw__id="GPU-a", hw__name="0")
    loop.scalar("hw.gpu.utilization", 1, 0.5, hw__id="GPU-a")
    run = reader.read([story.write()])[0]
    (gpu,) = run.devices
    assert run.has_gpu
    assert not run.problems
    assert {cause: spent / 1e9 for cause, spent in gpu.nanoseconds.items()} == {
        "rollout": 6, "tool_wait": 8, "train": 4, "data": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rollout", [run_in_turn, run_at_once])
def test_the_slow_tool_is_named(tmp_path, rollout):
    """The verdict is on the one trajectory, turn and tool that was slow, whether trajectories run one by one or at once."""
    run = train(tmp_path, rollout)
    step = run.steps[SLOW_STEP - 1]
    (verdict,) = step.verdicts
    assert (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name, verdict.turn) == (
        "trajectory", f"p{SLOW_STEP}/{SLOW_SAMPLE}", "tool", "search", 0,
    )  # fmt: skip
    assert SLOW / 2 < verdict.saved <= step.seconds
    largest = texts.explain(run).partition("Critical path, largest parts first\n")[2].partition("\n")[0]
    assert f"trajectory p{SLOW_STEP}/{SLOW_SAMPLE}: tool search" in largest


def run_in_bare_threads(number, **keywords):
    """All trajectories of a step in threads that do not have the context of the step."""

    def run(index):
        with verl_otel.trajectory(f"p{number}", index, **keywords), verl_otel.turn(0):
            search(find_seconds(number, index))

    with ThreadPoolExecutor(SAMPLES) as pool:
        list(pool.map(run, range(SAMPLES)))


def test_without_a_link_the_cause_is_unknown(tmp_path):
    """In threads without the context, with two open steps, trajectories are linked to none: the text says so, and names no wrong cause."""

    def run_beside_another_step(number):
        with verl_otel.step(100 + number):
            run_in_bare_threads(number)

    text = texts.explain(train(tmp_path, run_beside_another_step))
    assert "gen: unknown: no trajectory is linked to this step" in text
    assert "gen: the trainer itself" not in text
    assert "  no link: begin trajectories inside of the step" in text


@pytest.mark.parametrize("rollout", [run_in_bare_threads, lambda number: run_in_bare_threads(number, step=number)])
def test_trajectories_in_threads_belong_to_their_step(tmp_path, rollout):
    """Without a copy of the context they belong to the only open step, or to the one that they name; the slow tool of one is named."""
    run = train(tmp_path, rollout)
    assert [step.members for step in run.steps] == [SAMPLES] * STEPS
    (verdict,) = run.steps[SLOW_STEP - 1].verdicts
    assert (verdict.subject, verdict.cause_name) == (f"p{SLOW_STEP}/{SLOW_SAMPLE}", "search")


@pytest.mark.parametrize("rollout", [run_in_turn, run_at_once])
def test_every_trajectory_belongs_to_its_step(tmp_path, rollout):
    """Number of the step, score and count of each are those of the loop; the path of a step covers it without a gap."""
    run = train(tmp_path, rollout)
    assert (run.counts.trajectories, run.counts.trained) == (STEPS * SAMPLES, STEPS * SAMPLES)
    assert [step.members for step in run.steps] == [SAMPLES] * STEPS
    assert {(item.uid, item.rollout_index, item.step, item.score) for item in run.slowest} == {
        (f"p{number}", index, number, float(index)) for number in range(1, STEPS + 1) for index in range(SAMPLES)
    }
    for step in run.steps:
        ends = [step.start_ns, *(segment.end_ns for segment in step.path)]
        assert ends == sorted(ends)
        assert [segment.start_ns for segment in step.path] == ends[:-1]
        assert ends[-1] == step.end_ns


def test_a_run_of_an_own_loop_has_names_a_state_and_an_end(tmp_path):
    """Project, experiment and state are those of the settings and of the loop."""
    run = train(tmp_path, run_in_turn, project="toys", experiment="e1")
    assert (run.state, run.manifest["verl.project"], run.manifest["verl.experiment"]) == ("finished", "toys", "e1")
    last = {series.name: series.values[-1] for series in run.series}
    assert last["verl.training.step"] == STEPS


def test_a_validation_of_an_own_loop_is_counted(tmp_path):
    """A phase `testing` of a step is one."""
    verl_otel.init(run_dir=tmp_path, run_id="own", exporters="file")
    for number in (1, 2, 3):
        with verl_otel.step(number), verl_otel.phase("gen" if number == 2 else "testing"):
            pass
    verl_otel.shutdown()
    run = reader.read([tmp_path / "own"])[0]
    assert [number for number, _, _ in run.validations] == [1, 3]
    assert "3 steps, 2 validations, " in texts.explain(run)


def test_a_loop_whose_last_step_raises_has_failed(tmp_path):
    """The state of the run is failed, and the step says why."""

    def fail(number):
        if number == SLOW_STEP:
            raise KeyError(number)

    with pytest.raises(KeyError):
        train(tmp_path, fail)
    run = reader.read([tmp_path / "own"])[0]
    assert run.state == "failed"
    assert run.steps[-1].error == "KeyError"
    assert formatting.failed(run).startswith("FAILED: step 3 after ")
    assert re.search(r": KeyError in fail \(test_own_loops\.py:\d+\)$", formatting.failed(run))


def test_a_step_does_not_train_on_what_failed_or_was_cancelled(tmp_path):
    """Of six trajectories of a step one fails and two are cancelled as too slow: it waited for all, and trained on three. The report says so."""

    async def roll_out(number, index):
        with verl_otel.trajectory(f"p{number}", index) as span:
            span.set_attribute("verl.generated.tokens", 10)
            await asyncio.sleep(FAST if index < 4 else 600)
            if index == 3:
                raise ValueError

    async def run_all(number):
        tasks = [asyncio.create_task(roll_out(number, index)) for index in range(6)]
        await asyncio.wait(tasks[:4])
        for task in tasks[4:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run = train(tmp_path, lambda number: asyncio.run(run_all(number)))
    counts = run.counts
    assert (counts.trajectories, counts.trained) == (6 * STEPS, 3 * STEPS)
    assert (counts.cancelled, counts.failed) == (2 * STEPS, STEPS)
    assert [step.members for step in run.steps] == [3] * STEPS
    assert {(one.step, one.uid) for one in run.slowest} == {(number, f"p{number}") for number in range(1, STEPS + 1)}
    header = "\n".join(formatting.headline(run))
    assert "24 trajectories (12 trained on), of which 8 cancelled and 4 failed" in header


@pytest.mark.parametrize(("bind", "count"), [(lambda function: function, 2 * STEPS), (verl_otel.bind_context, 0)])
def test_calls_outside_of_every_trajectory_are_named(tmp_path, bind, count):
    """A pool does not take the context over, so that the calls in it belong to no trajectory: the report says so and names the remedy."""

    def roll_out(number):
        with ThreadPoolExecutor(1) as pool:
            for index in range(2):
                with verl_otel.trajectory(f"p{number}", index):
                    pool.submit(bind(search), find_seconds(number, index)).result()

    run = train(tmp_path, roll_out)
    assert run.counts.tool_calls == 2 * STEPS - count
    named = [problem for problem in run.missing if "outside of every trajectory" in problem]
    assert [text.split(" began")[0] for text in named] == [f"{count} calls of tool search"] * bool(count)
    assert all("verl_otel.bind_context" in text for text in named)
    assert all(text in texts.explain(run) for text in named)
    assert ("  lost calls: pass verl_otel.bind_context(function)" in texts.explain(run)) == bool(count)


def test_what_a_step_consumes_can_be_said(tmp_path):
    """A step that trains on the trajectories of the step before says so, by spans or by their traceparent."""
    verl_otel.init(run_dir=tmp_path, run_id="own", exporters="file")
    before: list = []
    for number in range(1, STEPS + 1):
        with verl_otel.step(number):
            verl_otel.consume(before)
            before = []
            for index in range(SAMPLES):
                with verl_otel.trajectory(f"p{number}", index) as span:
                    before.append(span if index % 2 else span.traceparent)
    verl_otel.shutdown()
    run = reader.read([tmp_path / "own"])[0]
    assert [step.members for step in run.steps] == [SAMPLES] * STEPS  # the first says nothing: it is taken by its own
    uids = {item.trace_id: item.uid for item in run.slowest}
    assert [{uids[trace_id] for trace_id in step.trajectories} for step in run.steps[1:]] == [
        {f"p{number}"} for number in range(1, STEPS)
    ]


def test_what_is_no_trajectory_is_not_consumed(recorded, caplog):
    """Other values are left out, with one line."""
    with verl_otel.step(1):
        verl_otel.consume(["no traceparent", 3])
    assert "neither a span nor a traceparent" in caplog.text


def test_tokens_without_a_price_are_printed_once(tmp_path):
    """Where no process says on which device it ran, steps have no block of tokens; the run has their number."""

    def run_with_tokens(number):
        for index in range(SAMPLES):
            with verl_otel.trajectory(f"p{number}", index) as span:
                search(find_seconds(number, index))
                span.set_attribute("verl.response.tokens", 10)

    text = texts.explain(train(tmp_path, run_with_tokens))
    assert text.count("is not known") == 1
    assert f"{10 * STEPS * SAMPLES} tokens were trained on" in text


def test_a_trajectory_without_a_uid_is_named_by_its_trace(story):
    """An index alone would name all of them alike."""
    process = story.process("agent_loop")
    stories.trajectory(process, 0.0, 1.0, uid="", index=0)
    (trajectory,) = reader.read([story.write()])[0].slowest
    assert trajectory.label == f"{trajectory.trace_id:032x}"[:8]


def test_a_model_server_that_is_slow_for_all_is_named(story):
    """No single trajectory was longer than the others; what they have in common are their calls."""
    process, now = story.process(), 0.0
    for number in range(1, 9):
        length = 3.0 if number == SLOW_STEP else 1.0
        members = [
            stories.trajectory(
                process,
                now,
                now + length,
                uid=f"u{number}",
                index=index,
                step=number,
                calls=[("llm", "m", now, now + length)],
            )
            for index in range(SAMPLES)
        ]
        stories.step(process, number, now, now + length + 1.0, [("gen", now, now + length)], members)
        now += length + 1.0
    run = reader.read([story.write()])[0]
    assert {
        step.number: [(each.kind, each.cause, each.seconds) for each in step.verdicts]
        for step in run.steps
        if step.verdicts
    } == {SLOW_STEP: [("code", "llm", pytest.approx(2.0))]}
    assert "Several trajectories delayed it: LLM call" in texts.explain(run)


def test_a_late_worker_without_the_context_of_the_step_is_named(story):
    """Over a pipe no context is passed on: a method of a worker belongs to the phase in which it began and ended."""
    process = story.process()
    workers = [story.process(verl__rank=rank) for rank in range(2)]
    for number in range(1, 9):
        now = 10.0 * number
        length = 4.0 if number == SLOW_STEP else 1.0
        for rank, worker in enumerate(workers):
            end = now + (length if rank else 1.0)
            worker.span("verl.worker Rank.update", now, end, verl__worker__method="update", verl__rank=rank)
        stories.step(
            process, number, now, now + length, [("update_actor", now, now + length)], verl__step__lineage="submitted"
        )
    run = reader.read([story.write()])[0]
    (verdict,) = run.steps[SLOW_STEP - 1].verdicts
    assert (verdict.kind, verdict.subject, verdict.cause_name) == ("rank", "worker 1", "update")
