# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel demo``: each recorded run gets the verdict that its name promises, and holds nothing of the machine that recorded it."""

import getpass
import json
import re
from pathlib import Path

import pytest

from verl_otel._internal import rotated_files
from verl_otel.cli.demo.command import RECORDED, RECORDINGS, VERL

MOST_BYTES = 1_000_000
HOST = "node-1"


@pytest.fixture
def explain(call):
    """Return what the demo says of a run, as JSON."""

    def run(name):
        result = call("demo", name, "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    return run


@pytest.mark.parametrize(
    ("name", "kind", "cause", "cause_name", "instance", "seconds"),
    [
        ("slow-tool", "trajectory", "tool", "add", "agent_loop-0", 2.5),
        ("blocked-event-loop", "loop", "blocked", "tool add", "agent_loop-0", 2.5),
        ("late-rank", "rank", "worker", "update_actor", "actor_rollout_ref-1", 2.0),
        ("stall", "trajectory", "tool", "add", "agent_loop-0", 45.0),
    ],
)
def test_what_was_planted_is_named(explain, name, kind, cause, cause_name, instance, seconds):
    """The step with the largest delay is step 4, and its first verdict has cause, place and size."""
    step = explain(name)["steps"][0]
    verdict = step["verdicts"][0]
    assert step["number"] == 4
    assert (verdict["kind"], verdict["cause"], verdict["cause_name"]) == (kind, cause, cause_name)
    assert verdict["instance"] == instance
    assert verdict["seconds"] == pytest.approx(seconds, rel=0.15)


def test_the_line_that_blocked_an_event_loop_is_named(call, explain):
    """In the text, in the brief text, and in the JSON."""
    line = "cpu_actions.py:25 in sleep"
    assert explain("blocked-event-loop")["steps"][0]["verdicts"][0]["line"] == line
    for brief in ([], ["--brief"]):
        text = " ".join(call("explain", *brief, RECORDED / "blocked-event-loop").out.split())
        assert f"Tool add blocked the event loop of agent_loop-0 for 2.50 s, at {line}; 7 other" in text


def test_the_healthy_run_has_no_verdict(explain):
    """No step, no stall, no crash."""
    document = explain("healthy")
    assert not [verdict for step in document["steps"] for verdict in step["verdicts"]]
    assert document["events"] == []


def test_a_first_step_is_longer_by_its_start_up(call):
    """It says so, and not that nothing delayed it; the run and the time before its first step begin with the program."""
    first = call("explain", RECORDED / "slow-tool", "--step", "1").out
    assert re.search(r"^Step 1 took .* It includes the start-up", first, re.MULTILINE)
    assert "Nothing delayed it" not in first
    whole = call("explain", RECORDED / "healthy").out
    assert "50.98 s from the start to the last record" in whole
    assert "Before step 1: 36.72 s from the start of the program" in whole


def test_the_difference_of_the_stand_in_is_not_called_precision(call):
    """The first screen says what is behind the large difference between engine and trainer."""
    out = call("demo").out
    assert "The engine is a stand-in: it reports the same probability for every token" in out
    assert "precision and kernels do not explain that much" in out


def test_the_crash_says_who_died(call):
    """First, with what it was doing. The trajectories that died with it in their first second are in no file, but the trainer waits for them."""
    result = call("demo", "crash")
    assert result.code == 0
    assert (
        "none open" not in result.out.partition("\nThe whole run\n")[2]
    )  # in step 3, which had ended before, it is true
    assert re.search(r"^CRASH after .+agent_loop-0 .*(died|killed|gone)", result.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("critic/reward/mean", "did you mean critic/rewards/mean"),
        ("min:nope", "the run has no scalar 'nope'; there are actor/entropy, "),
    ],
)
def test_a_scalar_that_is_not_there_is_refused(call, given, text):
    """With the names of those that are, which the command accepts."""
    result = call("guards", RECORDED / "slow-tool", "--best", given)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert call("guards", RECORDED / "slow-tool", "--best", "actor/entropy").code == 0


def test_a_lever_that_helps_in_one_step_only_stands_apart(call):
    """With what it would have saved there: what happened once is no advice for all steps."""
    out = call("levers", RECORDED / "slow-tool").out
    first, rest = out.split("In one step only; verl-otel explain names its cause\n")
    assert "weights are sent in the background" in first
    assert "tool add" not in first
    assert [" ".join(line.split()) for line in rest.split("\n\n")[0].splitlines()] == [
        "2.31 s in step 4: the slowest 1% of the trajectories take no longer than the others",
        "1.25 s in step 4: tool add takes half of its time",
    ]
    assert "tool add takes half" not in call("explain", RECORDED / "slow-tool").out
    found = json.loads(call("levers", RECORDED / "slow-tool", "--json").out)["levers"]
    assert {lever["kind"]: lever["only_step"] for lever in found if lever["share"] > 0.05} == {
        "tail": 4,
        "asynchrony": None,
        "tool": 4,
        "weight_sync": None,
    }


def find_stack(run):
    """Return the file with the stacks of the agent loop."""
    (path,) = run.glob("black-box/stacks-agent_loop-*.txt")
    return path


def test_a_stall_comes_with_its_stack(call, runs):
    """The file, the calls down to the tool that hangs, and the command that shows all stacks: in each form of `explain`."""
    call("demo", "stall", "--keep", runs)
    command, frames = "verl-otel explain stall --events", ["cpu_plant.py:110 in reach_async", "cpu_tools.py:33 in add"]
    text, brief, whole = (call("explain", "stall", *form).out for form in ([], ["--brief"], ["--events"]))
    for shown in (text, brief, whole):
        assert f"black-box/{find_stack(runs / 'stall').name}" in shown
        assert all(frame in shown for frame in frames)
    assert text.endswith(f"\nNext: {command}\n")
    assert re.search(rf"^do \(stall\): .*{command}", brief, re.MULTILINE)
    assert "_settle_session_tasks" in whole
    assert "_settle_session_tasks" not in text
    document = json.loads(call("explain", "stall", "--json").out)
    assert document["events"][0]["stack"][1:3] == frames
    assert command in document["events"][0]["next"]
    assert document["next"][:2] == [command, "verl-otel explain stall --step 4"]


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ('Thread 0x1 (most recent call first):\n  File "/x/site-packages/a/b.py", line 7 in f\n', ["a/b.py:7 in f"]),
        ('Thread 0x1 (most recent call first):\n  File "/home/me/job/b.py", line 7 in f\n', ["job/b.py:7 in f"]),
        ("=== 9999-99-99 99:99:99 UTC\n\x00", []),
        ("", []),
        (None, []),
    ],
)
def test_stacks_may_be_those_of_a_frozen_process_or_damaged(call, runs, text, stack):
    """A process that is frozen writes them at a signal, without a head. What cannot be read is left out."""
    call("demo", "stall", "--keep", runs)
    path = find_stack(runs / "stall")
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert call("explain", "stall").code == 0
    assert json.loads(call("explain", "stall", "--json").out)["events"][0]["stack"] == stack


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "a\x00b"])
def test_an_event_names_files_of_its_run_only(call, runs, path):
    """Whatever a damaged or forged event holds."""
    call("demo", "stall", "--keep", runs)
    events = runs / "stall" / "events.jsonl"
    event = json.loads(events.read_text().splitlines()[0])
    event["detail"] |= {
        "stacks": {str(event["detail"]["culprit"]["pid"]): path},
        "rss": [[1], "x", [1, None]],
        "log_tail": 7,
    }
    events.write_text(json.dumps(event) + "\n")
    assert call("explain", "stall", "--events").code == 0
    assert json.loads(call("explain", "stall", "--json").out)["events"][0]["stack"] == []


def test_a_crash_comes_with_the_end_of_its_log(call, runs):
    """And with its memory: a few lines of the log with the event, all of them with ``--events``."""
    call("demo", "crash", "--keep", runs)
    events = runs / "crash" / "events.jsonl"
    event = json.loads(events.read_text().splitlines()[0])
    event["detail"]["log_tail"] = ["the first line", *(f"line {number}" for number in range(18)), "the last line"]
    events.write_text(json.dumps(event) + "\n")
    command, last = "verl-otel explain crash --events", "the last line"
    text, brief, whole = (call("explain", "crash", *form).out for form in ([], ["--brief"], ["--events"]))
    for shown in (text, brief, whole):
        assert last in shown
        assert re.search("memory: 941.8 MiB", shown)
    assert "the first line" in whole
    assert "the first line" not in text
    assert text.endswith(f"\nNext: {command}\n")
    assert re.search(rf"^do \(crash\): .*{command}", brief, re.MULTILINE)
    assert json.loads(call("explain", "crash", "--json").out)["next"][0] == command


def test_a_healthy_run_has_no_events(call):
    """``--events`` says so, and leads on."""
    out = call("explain", "--events", RECORDED / "healthy").out
    assert "No stall and no crash was reported." in out
    assert out.splitlines()[-1].startswith("Next: verl-otel ")


def test_slower_tools_are_compared(call):
    """With the healthy run: steps are slower, and the latency of the tool explains most of it."""
    result = call("demo", "slower-tools")
    assert result.code == 0
    assert "$ verl-otel compare healthy slower-tools" in result.out
    causes = [line for line in result.out.splitlines() if re.match(r" +\+[\d.]+ percentage points: ", line)]
    assert "tool latency (tool add" in causes[0]
    rows = {row["name"]: row for row in json.loads(call("demo", "slower-tools", "--json").out)["rows"]}
    assert rows["step"]["significant"]


def test_it_begins_with_what_it_is_and_ends_with_what_to_do(call):
    """Without a name: the slow tool, and what `explain` prints of it."""
    result = call("demo")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"A recorded run of verl {VERL}")
    assert "$ verl-otel explain slow-tool\n" in result.out
    explained = call("explain", RECORDED / "slow-tool").out.replace(str(RECORDED), "runs")
    assert explained.rpartition("\nNext: ")[0] in result.out
    assert result.out.endswith("$ verl-otel explain\n")
    assert result.out == call("demo", "slow-tool").out


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_first_line_is_true(call, name):
    """Version and number of steps are those of the recording."""
    document = json.loads(call("report", "--json", RECORDED / name).out)
    assert document["run_id"] == name
    assert len(document["steps"]) == RECORDINGS[name].steps
    assert json.loads((RECORDED / name / "run.json").read_text())["verl.version"] == VERL
    assert f"{RECORDINGS[name].steps} steps" in call("demo", name).out.splitlines()[0]


def test_the_list_has_every_recorded_run(call):
    """Those of the command are those of the package."""
    assert {path.name for path in RECORDED.iterdir()} == set(RECORDINGS)
    result = call("demo", "--list")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[:-2]] == [*RECORDINGS]
    listed = json.loads(call("demo", "--list", "--json").out)
    assert {row["name"]: (row["steps"], row["planted"]) for row in listed["runs"]} == {
        name: (recording.steps, recording.planted) for name, recording in RECORDINGS.items()
    }
    assert listed["next"] == ["verl-otel demo slow-tool"]


@pytest.mark.parametrize("name", ["slow-tool", "slower-tools"])
def test_the_next_commands_work(call, tmp_path, monkeypatch, name):
    """Text and JSON name copies of the runs, and how they are made; not the folder of the package."""
    monkeypatch.chdir(tmp_path)
    text = call("demo", name).out
    commands = json.loads(call("demo", name, "--json").out)["next"]
    assert str(RECORDED) not in text + "".join(commands)
    assert commands[0] == "verl-otel demo --keep runs"
    assert f"$ {commands[0]}\n  $ {commands[1]}\n" in text  # in the order in which they can run
    assert "Next:" not in text
    for command in commands:
        assert call(*command.split()[1:]).code == 0


def test_the_page_of_a_run_is_written(call, tmp_path):
    """The one that `report --html` writes."""
    result = call("demo", "late-rank", "--html", tmp_path / "demo.html")
    assert result.code == 0
    call("report", RECORDED / "late-rank", "--html", tmp_path / "report.html")
    assert (tmp_path / "demo.html").read_text() == (tmp_path / "report.html").read_text()


def test_runs_are_kept_for_other_commands(call, runs):
    """By the lines that are printed; what is there already is not replaced."""
    result = call("demo", "--keep", runs)
    assert result.code == 0
    assert f"export VERL_OTEL_RUN_DIR={runs}" in result.out
    assert "$ verl-otel report slow-tool" in result.out
    listed = {line.split()[0]: line.split()[1:3] for line in call("runs").out.splitlines()[1:8]}
    assert listed == {
        name: ["crashed" if name == "crash" else "finished", str(recording.steps)]
        for name, recording in RECORDINGS.items()
    }
    assert "Step 4" in call("report", "slow-tool").out
    assert call("logs", "slow-tool").out
    again = call("demo", "crash", "--keep", runs)
    assert again.code == 2
    assert "crash is there already: remove it, or give another folder" in again.err


def test_the_package_is_not_written_to(call, tmp_path):
    """It may be read-only, or another user's."""

    def look():
        return {path: path.stat().st_mtime_ns for path in [RECORDED, *RECORDED.rglob("*")]}

    before = look()
    call("demo", "crash")
    call("demo", "crash", "--html", tmp_path / "page.html")
    assert look() == before


def test_the_recordings_are_small():
    assert sum(path.stat().st_size for path in RECORDED.rglob("*") if path.is_file()) < MOST_BYTES


def read(path):
    """Return the text of a recorded file."""
    if path.name == "run.json":
        return path.read_text("utf-8")
    with rotated_files.open_lines(path) as file:
        return file.read().decode("utf-8")


def find_strings(value):
    """Yield each key and each text of a JSON value."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from find_strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from find_strings(each)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recordings_hold_nothing_of_the_machine(name):
    """No folder, no user, no host but the one that stands for it, no address but that of this machine itself, no command line."""
    paths = [path for path in (RECORDED / name).rglob("*") if path.is_file()]
    assert {path.name.partition("-")[0].partition(".")[0] for path in paths} <= {
        "traces", "metrics", "open", "events", "verl_logs", "run", "stacks",
    }  # fmt: skip
    text = "\n".join(map(read, paths))
    assert set(re.findall(r'"host\.name","value":\{"stringValue":"([^"]*)"', text)) == {HOST}
    assert all(f"-{HOST}-" in path.name for path in paths if path.name.count("-"))
    texts = set(
        find_strings(
            [
                line if path.suffix == ".txt" else json.loads(line)
                for path in paths
                if path.name != "run.json"
                for line in read(path).splitlines()
            ]
        )
    )
    texts |= set(find_strings(manifest := json.loads(read(RECORDED / name / "run.json"))))
    assert [attempt["command"] for attempt in manifest["attempts"]] == [["python", "-m", "verl.trainer.main_ppo"]]
    assert not [each for each in texts if re.search(r"(?<![\w.])/\w+/|\bhome\b", each)]
    assert not [each for each in texts if re.search(r"\d+\.\d+\.\d+\.\d+", each.replace("127.0.0.1", ""))]
    assert not [each for each in texts if str(Path.home()) in each or each == getpass.getuser()]
    contents = ("exception.message", "gen_ai.input", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion")
    assert not [each for each in texts if each.startswith(contents)]
