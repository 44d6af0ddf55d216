# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel runs``: the list of runs, from little data, and what is deleted of it."""

import json
import os
import shutil
import time

import pytest

from tests.builders import stories
from tests.builders.run_ages import DAY, report_of, set_age
from verl_otel.cli.runs import delete
from verl_otel.session import run_manifest
from verl_otel.system import procfs

HUGE = b'{"attempts": [{"started": 1%s}]}' % (b"0" * 400)


@pytest.fixture
def listing(call, runs):
    """List runs; returns the rows by name."""

    def read(*arguments):
        result = call("runs", "--json", *arguments)
        assert result.code == 0, result.err
        return {row["run"]: row for row in json.loads(result.out)["runs"]}

    return read


def test_the_list_has_the_facts_of_each_run(call, runs, make_run):
    """One row for each run, the newest first, with a header and a sum."""
    make_run("old", 2 * DAY)
    new = make_run("new", DAY)
    (runs / "targets").mkdir()  # the targets of Prometheus are no run
    result = call("runs")
    head, first, second, empty, last, following = result.out.splitlines()
    assert following == "Next: verl-otel explain new"
    assert result.code == 0
    assert head.split() == ["run", "state", "steps", "last", "step", "started", "(UTC)", "duration", "size", "folder"]
    assert first.split()[:6] == ["new", "finished", "2", "2", "(15.00", "s)"]
    assert first.split()[8:] == ["25.00", "s", *first.split()[10:12], str(new)]
    assert second.startswith("old ")
    assert empty == ""
    assert last.startswith(f"2 runs in {runs}, ")


def test_json_for_scripts(listing, make_run):
    """The same as data, in base units; what is unknown is null."""
    folder = make_run("r1", DAY)
    row = listing()["r1"]
    assert row == {
        "run": "r1",
        "project": "bed",
        "experiment": "demo",
        "state": "finished",
        "steps": 2,
        "planned": None,
        "last_step": 2,
        "last_step_seconds": 15.0,
        "reward": None,
        "verdict": "",
        "started": stories.T0,
        "seconds": 25.0,
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "written": folder.stat().st_mtime,
        "folder": str(folder),
    }


def test_attempts_are_added_up(listing, story):
    """The steps of a resumed run are those of all attempts, the last step is the newest one; of old attempts only the number is kept."""
    first = {"attempt": 1, "state": "failed", "time": stories.T0 + 30, "steps": 3, "step": 3, "step_seconds": 2.0}
    second = {"attempt": 2, "time": stories.T0 + 90, "steps": 4, "step": 7, "step_seconds": 5.0}
    story.manifest(attempts=[{"started": stories.T0}, {"started": stories.T0 + 60}])
    story.status(second, first, earlier_steps=100)
    row = listing()["r1"]
    assert (row["state"], row["steps"], row["last_step"], row["last_step_seconds"]) == ("running", 107, 7, 5.0)


def test_a_resumed_run_has_not_failed_before_its_first_step(listing, story):
    """What an earlier attempt recorded is not the state of the run."""
    story.manifest(attempts=[{"started": stories.T0}, {"started": stories.T0 + 60}])
    story.status({"attempt": 1, "state": "failed", "time": stories.T0 + 30, "steps": 3, "step": 3})
    assert listing()["r1"]["state"] == "running"


@pytest.mark.parametrize("ended", ["finished", "failed", "stopped by guard", "interrupted"])
def test_the_newest_of_two_trainers_tells_the_state(call, listing, story, ended):
    """In the list and in the report, whatever the end of the driver is; the steps of both count."""
    story.manifest(attempts=[{"started": stories.T0, "ended": stories.T0 + 11}])
    other = {"process": "trainer-node-2-7", "time": stories.T0 + 5, "steps": 2, "step": 2}
    story.status({"state": ended, "time": stories.T0 + 10, "steps": 1, "step": 1}, other)
    stories.step(story.process(), 1, 0, 10)
    story.write()
    assert (listing()["r1"]["state"], listing()["r1"]["steps"]) == (ended, 3)
    assert call("report", "r1").out.splitlines()[0].lower().endswith(ended)


def test_a_run_of_an_older_version_has_no_status(call, listing, story):
    """The list knows of its end what the driver recorded, and the report what its files have."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 10)
    trainer.scalar("verl.run.state", 10, 2)
    story.manifest(attempts=[{"started": stories.T0, "ended": stories.T0 + 11}])
    story.write()
    row = listing()["r1"]
    assert (row["state"], row["steps"], row["last_step"], row["seconds"]) == ("ended", None, None, 11.0)
    assert call("report", "r1").out.splitlines()[0].endswith("finished")


def test_the_state_without_one_of_the_trainer(listing, story):
    """New files: running; old ones: no end seen; the end of the driver: ended, with the time from its start."""
    stories.step(story.process(), 1, 0, 10)
    folder = story.write()
    run_manifest.begin_attempt(folder)
    assert listing()["r1"]["state"] == "running"
    set_age(folder, 60)
    assert listing()["r1"]["state"] == "no end seen"
    story.manifest(attempts=[{"started": stories.T0 - 30, "ended": stories.T0 + 20}])
    row = listing()["r1"]
    assert (row["state"], row["started"], row["seconds"]) == ("ended", stories.T0 - 30, 50.0)


def test_a_run_that_was_killed_lasted_until_its_last_record(listing, story):
    """Its last step ended after 10 s, and it wrote spans and metrics for 20 s more; what was added to the folder later is no part of it."""
    story.manifest(attempts=[{"started": stories.T0}])
    story.status({"time": stories.T0 + 10, "steps": 1, "step": 1})
    stories.step(story.process(), 1, 0, 10)
    folder = story.write()
    (folder / "page.html").touch()
    for path in [*folder.iterdir(), folder]:
        moment = stories.T0 + (30 if path.name.startswith("traces-") else 500)
        os.utime(path, (moment, moment))
    row = listing()["r1"]
    assert (row["state"], row["seconds"]) == ("no end seen", 30.0)


def test_a_run_that_was_ended_by_a_death_has_crashed(call, listing, story):
    """The driver has ended and the trainer recorded no result; in the list and in the report. A death in an earlier attempt does not count."""
    stories.step(story.process(), 1, 0, 10)
    crash = {"kind": "crash", "time_ns": stories.at(9), "text": "CRASH agent_loop-0 died", "detail": {}}
    (story.write() / "events.jsonl").write_text(json.dumps(crash) + "\n")
    attempt = {"started": stories.T0, "ended": stories.T0 + 12}
    story.manifest(attempts=[attempt])
    assert listing()["r1"]["state"] == "crashed"
    assert call("report", "r1").out.splitlines()[0].endswith("crashed")
    story.manifest(attempts=[attempt, {"started": stories.T0 + 20, "ended": stories.T0 + 30}])
    assert listing()["r1"]["state"] == "ended"


def test_a_training_whose_rollouts_ended_by_an_exception_has_not_finished(listing, story):
    """Its trainer has: it trained on what was left. Another crash, after which a training may go on, does not count, nor one of an earlier attempt."""
    stories.step(story.process(), 1, 0, 10)
    folder, attempt = story.write(), {"started": stories.T0, "ended": stories.T0 + 12}
    for detail, attempts, state in (
        ({"rollouts_ended_by": "ActorDiedError"}, [attempt], "crashed"),
        ({}, [attempt], "finished"),
        ({"rollouts_ended_by": "ActorDiedError"}, [attempt, {"started": stories.T0 + 20}], "finished"),
    ):
        crash = {"kind": "crash", "time_ns": stories.at(9), "text": "the rollouts ended", "detail": detail}
        (folder / "events.jsonl").write_text(json.dumps(crash) + "\n")
        story.manifest(attempts=attempts)
        end = {"state": "finished", "time": stories.T0 + 12, "steps": 1, "step": 1, "attempt": len(attempts)}
        story.status(end)
        assert listing()["r1"]["state"] == state


def test_the_newest_run_is_the_one_that_was_started_last(call, runs):
    """Whenever its files were written, as copies are; a resumed run counts from its newest attempt."""
    for name, starts, age in (("a", [30], 5), ("b", [10, 40], 9), ("c", [20], 1)):
        story = stories.training(runs / name, name)
        story.manifest(attempts=[{"started": stories.T0 + start} for start in starts])
        set_age(story.write(), age)
    assert [line.split()[0] for line in call("runs").out.splitlines()[1:4]] == ["b", "a", "c"]
    assert call("report").out.startswith("Run b ")


@pytest.mark.full
def test_a_run_with_a_live_process_is_running(listing, story, dead_pid):
    """A process that is stopped writes nothing for hours; the run is running all the same, and not with a dead one."""
    stories.step(story.process(), 1, 0, 10)
    folder = story.write()
    report_of(folder, procfs.find_process(os.getpid()))
    set_age(folder, DAY)
    assert listing()["r1"]["state"] == "running"
    report_of(folder, procfs.Process(dead_pid, 1))
    set_age(folder, DAY)
    assert listing()["r1"]["state"] == "no end seen"


HOSTILE = (
    b"",
    b"\x00" * 5000,
    b'{"attempts": 3, "status": 3}',
    b'{"attempts": [{"started": 1e999}], "status": {"trainings": [{"time": 1e999, "began": -1}]}}',
    HUGE,
    b'{"status": {"earlier_steps": 1e9, "trainings": [{"state": "finished", "time": 1, "began": 1%s, "process": "x"}]}}'
    % (b"0" * 400),
    b'{"status": {"trainings": [[], null, {"process": "x", "began": 1, "time": 1, "state": "perfect"}]}}',
)


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_damaged_run_is_listed(listing, make_run, content):
    """What cannot be read is unknown; the run has a size all the same, and the one beside it all its values."""
    folder = make_run("r1", DAY)
    make_run("r2", DAY)
    for path in folder.glob("*-*.jsonl"):
        path.write_bytes(content)
    (folder / "run.json").write_bytes(content)
    row, other = listing()["r1"], listing()["r2"]
    assert (row["steps"], row["last_step"], row["started"]) == (None, None, None)
    assert row["bytes"] >= 100_000
    assert (other["state"], other["last_step"]) == ("finished", 2)


def test_a_name_cannot_write_to_the_terminal(call, make_run):
    """Escape codes in the name of a folder are written out."""
    make_run("py\x1b[2J")
    out = call("runs").out
    assert "\x1b" not in out
    assert "py\\u001b[2J" in out


def test_another_folder(call, listing, make_run, runs, tmp_path):
    """The folder can be given; a run, a file or what does not exist is a wrong one."""
    folder = make_run("r1")
    assert list(listing(runs)) == ["r1"]
    (tmp_path / "file").write_text("")
    for wrong, text in (
        (folder, f"{folder} is a run: verl-otel report {folder}"),
        (tmp_path / "file", "is a file: give the folder that holds one folder per run"),
        (tmp_path / "no", "does not exist"),
    ):
        result = call("runs", wrong)
        assert (result.code, result.out) == (2, "")
        assert text in result.err


def test_an_empty_folder_is_a_finding(call, runs):
    """Exit code 1; scripts get an empty list, and the command that says why."""
    runs.mkdir()
    result = call("runs", "--json")
    assert result.code == 1
    assert json.loads(result.out) == {"schema_version": 1, "runs": [], "next": ["verl-otel check"]}
    assert result.err.startswith(f"verl-otel: no run in {runs}. ")


def names(runs):
    return sorted(path.name for path in runs.iterdir())


def test_nothing_is_deleted_without_yes(call, make_run, runs):
    """A dry run says what would be deleted, why and how much."""
    make_run("old", 40 * DAY)
    make_run("new", 2 * DAY)
    result = call("runs", "--prune", "--older-than", "30d")
    first, last = result.out.splitlines()
    assert result.code == 0
    assert first.startswith("old  ")
    assert first.endswith("40 d old  would be deleted: older than 30 d")
    assert last.startswith("1 run, ")
    assert last.endswith("KiB would be deleted; --yes deletes them")
    assert names(runs) == ["new", "old"]
    assert call("runs", "--prune", "--older-than", "30d", "--yes").out.splitlines()[-1].endswith("KiB deleted")
    assert names(runs) == ["new"]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (("--keep", "2"), ["a", "b"]),
        (("--keep", "9"), ["a", "b", "c", "d", "e"]),
        (("--older-than", "60h"), ["a", "b"]),
        (("--older-than", "2w"), ["a", "b", "c", "d", "e"]),
        (("--older-than", "1d", "--keep", "3"), ["a", "b", "c"]),
        (("--max-size", "300KiB"), ["a", "b"]),
        (("--max-size", "1GB"), ["a", "b", "c", "d", "e"]),
        (("--max-size", "0", "--keep", "1"), ["a"]),
        (("--max-size", "300KiB", "--older-than", "36h"), ["a"]),
        (("--max-size", "300KiB", "--older-than", "100h"), ["a", "b"]),
    ],
)
def test_what_the_limits_keep(call, make_run, runs, options, kept):
    """The newest, the young ones, or as much as fits; --keep protects from the other two."""
    for days, name in enumerate("abcde", 1):
        make_run(name, days * DAY)
    assert call("runs", "--prune", "--yes", *options).code == 0
    assert names(runs) == kept


def test_a_running_or_recent_run_is_never_deleted(call, make_run, runs, story):
    """They are named with the reason; a run that is older than an hour is deleted."""
    make_run("recent", 3000)
    make_run("past", 4000)
    running = make_run("running", 9 * DAY)
    (running / "run.json").write_text("{}")  # otherwise it has ended
    report_of(running, procfs.find_process(os.getpid()))
    set_age(running, 9 * DAY)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert result.code == 0
    assert "kept: written 5" in result.out
    assert "kept: running" in result.out
    assert names(runs) == ["recent", "running"]


@pytest.mark.parametrize("content", ['{"experiment": {}, "status": "COMPLETED"}', "[]"])
def test_a_folder_of_another_program_is_no_run(call, make_run, runs, content):
    """Sacred writes a ``run.json`` for each of its runs, and these may be in one folder with ours: none of them is deleted."""
    make_run("ours", 9 * DAY)
    other = runs / "1"
    other.mkdir()
    (other / "run.json").write_text(content)
    (other / "model.pt").touch()
    set_age(other, 9 * DAY)
    assert "1 run in" in call("runs").out
    assert call("runs", "--prune", "--keep", "0", "--yes").code == 0
    assert names(runs) == ["1"]
    assert "holds no run" in call("explain", str(other)).err


def test_a_file_of_any_depth_makes_a_run_recent(call, make_run, runs):
    """A heartbeat, two folders below, is a sign of life."""
    folder = make_run("r1", DAY)
    (folder / "black-box" / "x").mkdir(parents=True)
    (folder / "black-box" / "x" / "beat").write_text("")
    moment = time.time() - DAY
    for path in (folder, folder / "black-box", folder / "black-box" / "x"):
        os.utime(path, (moment, moment))
    assert "kept: written" in call("runs", "--prune", "--keep", "0", "--yes").out
    assert names(runs) == ["r1"]


def test_what_is_no_run_stays(call, make_run, runs):
    """Folders without run.json and traces, and files, are not looked at."""
    make_run("r1", DAY)
    (runs / "targets").mkdir()
    (runs / "targets" / "r1.json").write_text("[]")
    (runs / "data").mkdir()
    (runs / "data" / "metrics-x-y-1.jsonl").write_text("{}\n")
    (runs / "notes.txt").write_text("")
    for path in runs.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    call("runs", "--prune", "--keep", "0", "--yes")
    assert names(runs) == ["data", "notes.txt", "targets"]


def test_links_are_not_followed(call, make_run, runs, tmp_path):
    """A link to a run elsewhere stays, and so does what a run links to."""
    elsewhere = stories.training(tmp_path / "elsewhere").write()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "model.bin").write_text("x")
    set_age(elsewhere, 9 * DAY)
    folder = make_run("r1", 9 * DAY)
    (folder / "checkpoints").symlink_to(precious)
    (folder / "model").symlink_to(precious / "model.bin")
    set_age(folder, 9 * DAY)
    for link in (folder / "checkpoints", folder / "model"):
        os.utime(link, (1_000_000, 1_000_000), follow_symlinks=False)
    (runs / "linked").symlink_to(elsewhere)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert "linked" in result.out
    assert "kept: a symbolic link" in result.out
    assert names(runs) == ["linked"]
    assert (elsewhere / "run.json").exists()
    assert (precious / "model.bin").read_text() == "x"


def test_a_run_that_is_continued_meanwhile_stays(make_run):
    """Between the list and its deletion a run may be resumed: it is looked at again."""
    folder = make_run("r1", DAY)
    run_manifest.begin_attempt(folder)
    assert delete(folder).startswith("written ")
    shutil.rmtree(folder)
    assert delete(folder) == "not a run any more"


def test_a_run_that_cannot_be_deleted(call, make_run, runs, monkeypatch):
    """Exit code 1 and the reason; the others are deleted, and the rest of this one is still a run."""
    make_run("a", DAY)
    bad = make_run("b", DAY)
    (bad / "hardware").mkdir()
    set_age(bad, DAY)

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert result.code == 1
    assert f"kept: {bad / 'hardware'}: Permission denied" in result.out
    assert names(runs) == ["b"]
    assert (bad / "run.json").exists()


def test_json_of_a_prune(call, make_run):
    """For scripts: what is deleted and why, what is kept and why."""
    make_run("old", 40 * DAY)
    make_run("new")
    dry, done = (
        json.loads(call("runs", "--prune", "--keep", "0", "--json", *more).out)["runs"] for more in ((), ("--yes",))
    )
    assert [(row["run"], row["deleted"]) for row in dry] == [("new", False), ("old", False)]
    assert [(row["run"], row["deleted"]) for row in done] == [("new", False), ("old", True)]
    assert done[0]["kept"].startswith("written ")
    assert (done[1]["kept"], done[1]["reason"]) == (None, "not one of the newest 0")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--prune",), "give --older-than, --keep or --max-size"),
        (("--prune", "--yes"), "give --older-than, --keep or --max-size"),
        (("--yes",), "belong to --prune"),
        (("--older-than", "3d"), "belong to --prune"),
        (("--prune", "--older-than", "month"), "is no duration: give a number with s, m, h, d or w, e.g. 30d"),
        (("--prune", "--older-than", "30"), "is no duration"),
        (("--prune", "--max-size", "ten"), "is no size: give a number with KiB, MiB, GiB or TiB, e.g. 10GiB"),
        (("--prune", "--keep", "-1"), "give an integer of 0 or more"),
    ],
)
def test_wrong_usage(call, make_run, runs, options, text):
    """Exit code 2, what is allowed, and nothing is deleted."""
    make_run("r1", DAY)
    result = call("runs", *options)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert names(runs) == ["r1"]


def test_times_are_those_of_the_other_commands(call, runs, monkeypatch):
    """UTC, as the records of `logs` and the names of runs, wherever the user is; both commands say so."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        story = stories.Story(runs / "new")
        story.process("trainer")
        story.manifest(attempts=[{"started": stories.T0, "ended": stories.T0 + 1}])
        story.write()
        out = call("runs", runs).out
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "started (UTC)" in out.splitlines()[0]
    assert time.strftime("%Y-%m-%d %H:%M", time.gmtime(stories.T0)) in out
