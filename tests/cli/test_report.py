# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel report``: the first lines say what held the run, the rest shows where its time went."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import stories
from verl_otel import cli
from verl_otel.cli.report import seconds


def block(text, title):
    """The lines below a title, up to the next empty line."""
    lines = text.partition(title)[2].splitlines()[1:]
    return lines[: lines.index("")] if "" in lines else lines


def test_the_first_lines_name_the_slow_tool(call, runs):
    """The report begins with the run, what it counted, and the tool that held a step, with trajectory and turn."""
    result = call("report", stories.training(runs / "r1").write())
    head, counts, empty, verdict, *_ = result.out.splitlines()
    assert result.code == 0
    assert head == "Run r1 · bed/demo · grpo · verl 0.9.1 · finished"
    assert counts == (
        "2 steps, 0 validations, 4 trajectories (4 trained on), 5 LLM calls, 1 tool call, 4 processes, 25.00 s from the start to the last record"
    )
    assert empty == ""
    assert verdict == (
        "Step 2 (15.00 s): it waited up to 7.00 s for trajectory bbbbbbbb/0 alone, which spent 7.00 s of its 9.00 s "
        "in tool calculator (turn 1)."
    )


def test_a_tool_that_held_every_trajectory_is_named_too(call, story):
    """Where all trajectories of a step spent their time in one tool, the first lines name it."""
    trainer, agent = story.process(), story.process("agent_loop")
    calls = [("llm", "m", 0, 1), ("tool", "calculator", 1, 9)]
    members = [stories.trajectory(agent, 0, 9, index=index, calls=calls) for index in range(4)]
    stories.step(trainer, 1, 0, 10, [("gen", 0, 9)], members)
    assert "calculator" in "\n".join(call("report", story.write()).out.splitlines()[:6])


def test_phases_are_shown_with_seconds_and_share(call, runs):
    """Each step has a row with its phases and the time in no phase."""
    out = call("report", stories.training(runs / "r1").write()).out
    head, first, second, *_ = block(out, "Steps: seconds and share")
    assert head.split() == ["step", "total", "gen", "update_actor", "no", "phase", "between"]
    assert first.split() == ["1", "10.00", "3.00", "30%", "5.00", "50%", "2.00", "20%", "0.00"]
    assert second.split() == ["2", "15.00", "10.00", "67%", "4.00", "27%", "1.00", "7%", "0.00"]


@pytest.mark.parametrize(
    ("noticed", "lines"),
    [
        ((2.1, 2.1), []),
        ((2.1, 4.5), ["  step 2: rollouts ended 2.00 s into gen, the trainer noticed it 2.50 s later"]),
        (
            (4.0, 3.5, 4.5, 5.0),
            [
                "  step 1: rollouts ended 2.00 s into gen, the trainer noticed it 2.00 s later",
                "  step 3: rollouts ended 2.00 s into gen, the trainer noticed it 2.50 s later",
                "  step 4: rollouts ended 2.00 s into gen, the trainer noticed it 3.00 s later",
                "  and 1 more step in which the trainer noticed the end of the rollouts late",
            ],
        ),
    ],
)
def test_a_late_notice_of_the_trainer_is_reported(call, story, noticed, lines):
    """Only steps in which the trainer noticed the end of its rollouts late have a line; of many the worst three."""
    trainer, agent = story.process(), story.process("agent_loop")
    for index, seconds_of_gen in enumerate(noticed):
        begin = 10 * index
        members = [stories.trajectory(agent, begin, begin + 2, index=n, step=index + 1) for n in range(2)]
        stories.step(trainer, index + 1, begin, begin + 10, [("gen", begin, begin + seconds_of_gen)], members)
    shown = block(call("report", story.write()).out, "Steps: seconds and share")
    assert shown[1 + len(noticed) :] == lines


@pytest.mark.parametrize("facts", [{"error__type": "TimeoutError"}, {"verl__outcome": "cancelled"}])
def test_gen_that_waits_for_a_trajectory_that_stops_is_no_late_notice(call, story, facts):
    """A step of an own loop waits for each trajectory that it submitted, and trains on those that came to their end."""
    process = story.process()
    stories.trajectory(process, 0, 2)
    stories.trajectory(process, 0, 8, index=1, **facts)
    stories.step(process, 1, 0, 10, [("gen", 0, 8)], verl__step__lineage="submitted")
    assert "the trainer noticed" not in call("report", story.write()).out


def test_a_slow_phase_is_named_where_no_trajectory_held_a_step(call, story):
    """Without a late trajectory the first lines name the slowest step and its largest phase; start-up is told apart."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 10, [("gen", 0, 2), ("update_actor", 2, 10)])
    stories.step(trainer, 2, 10, 15, [("gen", 10, 11), ("update_actor", 11, 15)])
    lines = call("report", story.write()).out.splitlines()
    assert lines[3].startswith("Slowest step after the first: 2, 5.00 s, 80% of it in update_actor.")
    assert lines[4] == "Step 1, the first one, took 10.00 s, which includes the start-up (update_actor 80%)."


def test_steps_without_phases_have_a_first_line(call, story):
    """A loop of one's own may have none: the first lines, and the page, do not say that no step has ended."""
    trainer = story.process()
    for number in range(1, 7):
        stories.step(trainer, number, 10 * number, 10 * number + (5 if number == 3 else 4), [])
    lines = call("report", story.write()).out.splitlines()
    assert lines[3] == "Slowest step: 3, 5.00 s. Nothing delayed any of 6 steps noticeably."


def test_a_phase_beside_others_is_not_what_a_step_took_long_for(call, story):
    """``generate_async`` of the one-step-off trainer goes on behind the step: the trainer was in the update."""
    phases = [("generate_async", 0, 9), ("update_actor", 1, 5)]
    stories.step(story.process(), 1, 0, 5, phases)
    lines = call("report", story.write()).out.splitlines()
    assert "80% of it in update_actor." in lines[3]
    assert "5.00 100%" in lines[7]


def test_what_trajectories_did_is_said_only_of_a_step_that_waited_for_them(call, story):
    """Where a step spent its time in an update, what its trajectories did is beside the point."""
    trainer, agent = story.process(), story.process("agent_loop")
    members = [stories.trajectory(agent, 0, 1, index=n, calls=[("llm", "m", 0, 1)]) for n in range(2)]
    stories.step(trainer, 1, 0, 10, [("gen", 0, 1), ("update_actor", 1, 10)], members)
    out = call("report", story.write()).out
    assert "90% of it in update_actor" in out
    assert "slowest trajectories spent" not in out
    assert "of their time in LLM" not in out


def test_a_failed_step_comes_first(call, story):
    """The step that an exception ended stands in the first lines of report and explain, with the exception's type and where it was raised.

    That is the line of the innermost span that it left, which may be one of a worker; a tool whose own exception was caught is none of them.
    """
    trainer, worker = story.process(), story.process("actor", pid=7)
    stories.step(trainer, 1, 0, 10, [("gen", 0, 10)])
    failed = {"error__type": "RuntimeError", "verl__error__line": "/verl/trainer.py:7 in fit"}
    death = {"verl__error__child": "process 7 was killed by SIGKILL"}
    step = stories.step(trainer, 2, 10, 14, [], **failed, **death)
    caught = {"error__type": "ValueError", "verl__error__line": "a.py:1 in add"}
    trainer.span("execute_tool add", 11, 12, step, state=stories.STEP, **caught)
    called = trainer.span("verl.call.update", 12, 14, step, state=stories.STEP, **failed)
    failed["verl__error__line"] = "/me/loss.py:12 in policy_loss"
    worker.span("verl.worker.update", 12, 14, called, state=stories.STEP, **failed)
    folder = story.write()
    for command in ("report", "explain"):
        lines = call(command, folder).out.splitlines()
        text = "FAILED: step 2 after 4.00 s: RuntimeError in policy_loss (loss.py:12) on actor-0; process 7 was killed by SIGKILL"
        assert text in lines[:5]


def test_an_exception_after_the_last_step_comes_first(call, story):
    """No step failed, and the training did: what ended it is named."""
    stories.step(story.process(), 1, 0, 10, [("gen", 0, 10)])
    story.status({"state": "failed", "error": "OSError.ENOSPC", "error_line": "/me/loop.py:9 in save"})
    folder = story.write()
    for command in ("report", "explain"):
        assert "FAILED after step 1: OSError.ENOSPC in save (loop.py:9)" in call(command, folder).out.splitlines()[:5]


@pytest.mark.parametrize(
    ("error", "word", "interrupted"), [("RuntimeError", "FAILED", False), ("KeyboardInterrupt", "INTERRUPTED", True)]
)
def test_how_a_step_ended_is_in_every_form(call, story, error, word, interrupted):
    """Also for programs: `explain --brief` has the line of the text, and the JSON of both commands the type of the exception."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 10, [("gen", 0, 10)])
    stories.step(trainer, 2, 10, 14, [("gen", 10, 14)], error__type=error)
    folder = story.write()
    assert f"{word}: step 2 after 4.00 s: {error}" in call("explain", "--brief", folder).out.splitlines()
    for command in (("report",), ("explain", "--step", "2")):
        step = json.loads(call(*command, "--json", folder).out)["steps"][-1]
        assert (step["failed"], step["interrupted"], step["error"]) == (True, interrupted, error)


def test_names_from_elsewhere_cannot_write_to_the_terminal(call, story):
    """Escape codes in names of tools, models, runs and open spans are written out, wherever they are shown."""
    evil = "py\x1b[2J\u202ethon\nFORGED"
    trainer, agent = story.process(), story.process("agent_loop", pid=7)
    calls = [("llm", evil, 0, 1), ("tool", evil, 1, 90)]
    members = [stories.trajectory(agent, 0, 90, uid=evil, index=n, calls=calls) for n in range(2)]
    stories.step(trainer, 1, 0, 100, [("gen", 0, 95)], members)
    agent.still_open(f"execute_tool {evil}", 95, 96, last_child=evil)
    story.manifest(verl__project=evil)
    folder = story.write()
    for command in ("report", "explain"):
        out = call(command, folder).out
        assert "\x1b" not in out
        assert "\nFORGED" not in out
        assert "\u202e" not in out
        assert out.count("\\u001b[2J") >= 4


def test_a_page_that_cannot_be_written_is_said(call, runs, tmp_path):
    """A folder, or a place where nothing can be: exit code 2, the name that was given, and nothing is left behind."""
    folder = stories.training(runs / "r1").write()
    (tmp_path / "file").write_text("")
    for place, reason in (
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "x", "Not a"),
        (tmp_path / "no" / "x", "No such"),
    ):
        result = call("report", folder, "--html", place)
        assert result.code == 2
        assert result.err.startswith(f"verl-otel: {place} cannot be written: {reason}")


def test_folders_of_different_runs_are_not_mixed(call, tmp_path):
    """Exit code 2, the runs, and the command that is meant."""
    folders = [stories.training(tmp_path / name, name).write() for name in ("a", "b")]
    result = call("report", *folders)
    assert result.code == 2
    assert f"{folders[0]} (a), {folders[1]} (b); compare them with verl-otel compare" in result.err


def test_slow_steps_without_a_cause_are_named(call, story):
    """A step much longer than the others without a verdict has a line; start-up has none."""
    trainer, agent, at = story.process(), story.process("agent_loop"), 0
    for number, length in enumerate((30, 2, 2, 2, 7, 2, 2), 1):
        members = [stories.trajectory(agent, at, at + length, uid=f"u{n}", index=n, step=number) for n in range(3)]
        stories.step(trainer, number, at, at + length, [("gen", at, at + length)], members)
        at += length
    lines = call("report", story.write()).out.splitlines()
    assert lines[3] == "Slow, and no single cause was found: step 5 (7.00 s)."
    assert not [line for line in lines[3:6] if "step 1 " in line]


def test_a_program_without_verl_misses_no_parts_of_verl(call, story):
    """A loop of a user's own on a CPU has no GPUs and no servers of verl that could be missing."""
    own = story.process("agent")
    root = stories.trajectory(own, 0, 2)
    facts = {"gen_ai__operation__name": "chat", "gen_ai__provider__name": "verl"}
    own.span("chat m", 0, 1, root, kind=3, **facts)
    stories.step(own, 1, 0, 3)
    out = call("report", story.write()).out
    assert "What is missing" not in out
    assert (
        "1 step, 0 validations, 1 trajectory (0 trained on), 1 LLM call, 0 tool calls, 1 process, 3.00 s from the start to the last record"
        in out
    )


def test_the_slowest_trajectories_with_their_time(call, runs):
    """Trajectories are listed by their length with LLM, tools, reward, wait; as many as are asked for."""
    folder = stories.training(runs / "r1").write()
    rows = [line.split() for line in block(call("report", folder).out, "Slowest trajectories")]
    assert rows[1] == ["bbbbbbbb/0", "2", "9.00", "1.50", "(2x)", "calculator", "7.00", "(1x)", "0.50", "0.00", "-"]
    assert len(rows) == 5
    assert len(block(call("report", folder, "--slowest", "1").out, "Slowest trajectories")) == 2
    assert "Slowest trajectories" not in call("report", folder, "--slowest", "0").out


@pytest.mark.parametrize(
    ("end", "mark"), [({"error__type": "E"}, "FAILED"), ({"verl__outcome": "cancelled"}, "cancelled")]
)
def test_trajectories_are_marked(end, mark, call, story):
    """Validation, how it ended and a trajectory of which only the root was kept are marked; its score is shown."""
    agent = story.process("agent_loop")
    facts = {"verl__validate": True, **end, "verl__reward__score": -1.0}
    stories.trajectory(agent, 0, 3, whole=False, **facts)
    row = block(call("report", story.write()).out, "Slowest trajectories")[1]
    assert row.split("  ")[-1] == f"validation, {mark}, only its root was kept"
    assert "-1" in row.split()


def test_many_steps_are_shortened_to_the_slowest(call, story):
    """Of many steps the slowest are shown, in the order of time, and the title says so."""
    trainer = story.process()
    for number in range(1, 31):
        stories.step(trainer, number, number * 100, number * 100 + (50 if number in (7, 23) else 10))
    folder = story.write()
    rows = block(call("report", folder, "--steps", "2-3").out, "Steps: seconds")
    assert [row.split()[0] for row in rows[1:3]] == ["2", "3"]
    assert "None of these steps is in the run." in call("report", folder, "--steps", "70-80").out
    out = call("report", folder, "--steps", "2").out
    assert "(the 2 slowest of 30)" in out
    assert [line.split()[0] for line in block(out, "Steps: seconds and share")] == ["step", "7", "23"]


def test_reward_of_each_step(call, runs, story):
    """The reward that verl logged is shown for each step, with the means of its first and last third; long runs are shortened."""
    out = call("report", stories.training(runs / "r1").write()).out
    assert "  1: 0.25  2: 0.75\n" in out
    trainer = story.process()
    stories.step(trainer, 1, 0, 1)
    for number in range(30):
        trainer.scalar("verl.training.step", number, number)
        trainer.scalar("verl.average_reward", number, number / 10)
    (line,) = block(call("report", story.write()).out, "Reward, mean of each step")
    shown = [int(word[:-1]) for word in line.partition("(")[0].replace("...", "").split()[::2]]
    assert shown == [0, 1, 2, *range(21, 30)]
    assert line.endswith("(mean of the first 10: 0.45, of the last 10: 2.45)")


def test_a_reward_of_a_step_that_was_trained_again_is_left_out(call, story):
    """The second attempt began behind step 1, and ended before it reached step 3: as in `explain`."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 1)
    for at, number in enumerate((1, 2, 3, 2)):
        trainer.scalar("verl.training.step", at, number)
        trainer.scalar("verl.average_reward", at, at / 10)
    folder = story.write()
    assert json.loads(call("report", "--json", folder).out)["reward"] == {"1": 0.0, "2": 0.3}
    assert "  1: 0  2: 0.3\n" in call("report", folder).out


def test_the_reward_of_an_own_loop_is_that_of_all_processes(call, story):
    """The process of the step knows no trajectory of its children, which name the step; one that failed has no share in it."""
    loop, child = story.process("process"), story.process("process", 1)
    for number in (0, 1):
        begin = 10 * number
        stories.step(loop, number, begin, begin + 5, verl__step__lineage="submitted")
        loop.scalar("verl.training.step", begin + 5, number)
        for index, score in enumerate((0.0, 1.0, 0.5)):
            facts = {"error__type": "ValueError", "verl__outcome": "failure"} if index == 2 else {}
            stories.trajectory(
                child, begin + 1, begin + 2, index=index, step=number, verl__reward__score=score + number, **facts
            )
    folder = story.write()
    assert "  0: 0.5  1: 1.5\n" in call("report", folder).out


def test_what_was_sampled_out_is_missing(call, story):
    """It is not known what these trajectories did, and `check` finds nothing."""
    trainer, agent = story.process(), story.process("agent_loop")
    for number, last in enumerate((3, 3, 3, 3, 9, 3), 1):
        at = 20 * number
        members = [
            stories.trajectory(
                agent, at, at + last if index == 3 else at + 3, index=index, step=number, whole=index < 2
            )
            for index in range(4)
        ]
        stories.step(trainer, number, at, at + last, [("gen", at, at + last)], members)
    folder = story.write()
    sentence = "  trajectories: of 12 of 24 only the root span was kept, so that what they did is not known"
    assert sentence in call("report", folder).out
    text = call("explain", folder).out
    assert sentence in text
    assert "u/3 delayed it: unknown: only the root span of the trajectory was kept" in " ".join(text.split())
    assert "not kept: keep more trajectories whole" in text
    assert "run verl-otel check" not in text


def test_the_dead_come_first_and_open_work_is_listed(call, story):
    """A process that died with open trajectories is named in the first lines, its work and the waiting phase below."""
    trainer, agent = story.process(), story.process("agent_loop", pid=77)
    step = trainer.still_open("verl.step", 0, 100, verl__step__number=3, last_child="verl.phase.gen")
    trainer.still_open("verl.phase.gen", 1, 100, step)
    for index in range(10):
        facts = {"verl__sample__uid": "u", "verl__rollout__index": index}
        agent.still_open("verl.trajectory", 2 + index, 40, state=stories.TRAJECTORY, last_child="chat m", **facts)
    result = call("report", story.write())
    lines = result.out.splitlines()
    assert result.code == 0
    assert (
        lines[3]
        == "DEAD: agent_loop-0 (pid 77 on node-1) stopped writing 1 m 00 s before the others, with 10 open trajectories."
    )
    assert "No step has ended." in result.out
    work = block(result.out, "Unfinished work")
    assert work[0] == "  agent_loop-0 (pid 77 on node-1): silent for 1 m 00 s: dead"
    assert work[1] == "    verl.trajectory u 0: open for 38.00 s, last child chat m"
    assert work[9] == "    and 2 more"
    assert work[10].endswith("open at its last sign of life")
    assert work[11] == "    verl.step 3: open for 1 m 40 s, last child verl.phase.gen"
    assert work[12] == "    verl.phase.gen: open for 1 m 39 s"


def test_the_newest_run_may_have_no_record(call, runs):
    """A run of the user's own training, which has no run.json, is the newest one if it was written last."""
    with_record = stories.training(runs / "with").write()
    os.utime(with_record, (1_000_000, 1_000_000))
    without = stories.training(runs / "without", "without").write()
    (without / "run.json").unlink()
    assert call("report").out.startswith("Run without ")


def test_exit_codes(call, runs, story, tmp_path):
    """0: a report; 1: a run that has nothing to say; 2: no run, or not to be read."""
    assert call("report").code == 2
    (tmp_path / "nothing").mkdir()
    result = call("report", tmp_path / "nothing")
    assert (result.code, result.err) == (
        2,
        f"verl-otel: {tmp_path / 'nothing'} holds no run: expected traces-*.jsonl\n",
    )
    story.manifest()
    assert call("report", story.folder).code == 1
    assert call("report", stories.training(runs / "r1").write()).code == 0
    assert call("report", "--steps", "many").code == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.0312, "31 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (59.99, "59.99 s"),
        (75, "1 m 15 s"),
        (3599.6, "1 h 00 m"),
        (7325, "2 h 02 m"),
    ],
)
def test_durations_are_short(value, text):
    """Durations are written with the unit that fits them."""
    assert seconds(value) == text


@pytest.mark.full
def test_a_reader_that_has_enough_is_no_error(runs):
    """``verl-otel report | head`` ends without a message on standard error, whatever head leaves unread."""
    folder = stories.training(runs / "r1").write()
    reader, writer = os.pipe()
    os.close(reader)
    command = [Path(sys.executable).with_name("verl-otel"), "report", folder]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environ, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_a_terminal_without_utf_8_gets_other_characters(runs, monkeypatch, encoding):
    """What the encoding of a terminal lacks, as with ``LC_ALL=C`` in a container, is replaced: a traceback would end with the code of a finding."""
    folder = stories.training(runs / "r1").write()
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert cli.main(["report", str(folder)]) == 0
    first = written.getvalue().decode(encoding).splitlines()[0]
    assert first.replace("\u00b7", "-") == "Run r1 - bed/demo - grpo - verl 0.9.1 - finished"


def test_traces_of_a_collector_are_read(call, tmp_path):
    """`--otlp` reads a file instead of a run, names it, and leaves no temporary files; errors are one line."""
    folder = stories.training(tmp_path / "r1").write()
    traces = tmp_path / "collector.jsonl"
    traces.write_text("".join(path.read_text() for path in sorted(folder.glob("traces-*.jsonl"))))
    result = call("report", "--otlp", traces)
    assert (result.code, result.err) == (0, "")
    assert "Step 2 (15.00 s)" in result.out
    assert result.out.splitlines()[-2:] == [f"Files: {traces}", f"Next: verl-otel explain --otlp {traces}"]
    explained = call("explain", "r1", "--otlp", traces).out
    assert "Step 2 took 15.00 s" in explained
    assert "how the run learned and how it ended: of such files only the traces are read" in explained
    for arguments, text in (
        (["r2", "--otlp", traces], "r2 is not in the files, which have the runs: r1"),
        (
            ["--otlp", tmp_path / "none"],
            f"--otlp: {tmp_path / 'none'} cannot be read or written (No such file or directory)",
        ),
        (["a", "b", "--otlp", traces], "give the id of one run with --otlp"),
    ):
        refused = call("report", *arguments)
        assert (refused.code, refused.err) == (2, f"verl-otel: {text}\n")


def test_traces_alone_say_of_no_run_that_it_is_running(call, tmp_path, monkeypatch):
    """Also where the last span has just ended: no span says that more will follow."""
    folder = stories.training(tmp_path / "r1").write()
    monkeypatch.setattr("verl_otel.analysis.io.run_status.RUNNING_SECONDS", math.inf)
    for command in ("report", "explain"):
        result = call(command, "--otlp", next(folder.glob("traces-*.jsonl")))
        assert result.out.splitlines()[0].endswith(" · no end seen")


@pytest.fixture
def report(call):
    """The report of a folder as data; only strict JSON is accepted."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    def read(folder):
        return json.loads(call("report", "--json", folder).out, parse_constant=refuse)

    return read


def test_the_whole_report_as_data(report, runs):
    """Steps, trajectories, reward, verdicts and folders are there, with seconds and hexadecimal ids."""
    folder = stories.training(runs / "r1").write()
    data = report(folder)
    assert (data["run_id"], data["facts"]["verl.project"], data["orphans"]) == ("r1", "bed", 0)
    assert (data["folders"], data["missing"], data["unfinished"]) == ([str(folder)], [], [])
    first, second = data["steps"]
    assert (first["number"], first["seconds"], first["failed"]) == (1, 10.0, False)
    assert first["phases"] == {"gen": 3.0, "update_actor": 5.0}
    assert first["no_phase"] == pytest.approx(2.0)
    assert data["reward"] == {"1": 0.25, "2": 0.75}
    (verdict,) = data["waits"]
    assert (verdict["step"], verdict["lead"]) == (2, 7.0)
    assert verdict["part"] == {"kind": "tool", "name": "calculator", "seconds": 7.0, "calls": 1, "turn": 1}
    assert verdict["trajectory"] in second["trajectories"]


def test_trajectories_as_data(report, runs):
    """A trajectory has its identity, length, score and parts; its id is the one by which steps name it."""
    data = report(stories.training(runs / "r1").write())
    by_id = {each["trace_id"]: each for each in data["trajectories"]}
    slow = by_id[data["waits"][0]["trajectory"]]
    assert len(slow["trace_id"]) == 32
    assert {each for step in data["steps"] for each in step["trajectories"]} == by_id.keys()
    assert {key: slow[key] for key in ("uid", "index", "step", "validate", "seconds", "score", "failed")} == {
        "uid": "bbbbbbbb-0000-0000-0000-000000000000",
        "index": 0,
        "step": 2,
        "validate": False,
        "seconds": 9.0,
        "score": None,
        "failed": False,
    }
    assert [part["kind"] for part in slow["parts"]] == ["tool", "llm", "reward", "wait"]


def test_a_missing_number_is_json_too(report, story):
    """A reward or a score of NaN does not make the output unreadable."""
    trainer, agent = story.process(), story.process("agent_loop")
    stories.step(trainer, 1, 0, 1)
    stories.trajectory(agent, 0, 1, verl__reward__score=float("nan"))
    trainer.scalar("verl.training.step", 1, 1)
    trainer.scalar("verl.average_reward", 1, float("nan"))
    data = report(story.write())
    assert data["trajectories"][0]["score"] is None
    assert data["reward"]["1"] is None


def test_a_folder_with_the_name_of_a_run_does_not_hide_it(call, runs, tmp_path, monkeypatch):
    """An experiment may keep its checkpoints in a folder of its own name beside the user. One that holds a run itself is meant."""
    stories.training(runs / "gsm8k", "gsm8k").write()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").mkdir(exist_ok=True)
    assert "Run gsm8k" in call("report", "gsm8k").out
    stories.training(tmp_path / "gsm8k", "other").write()
    assert "Run other" in call("report", "gsm8k").out
