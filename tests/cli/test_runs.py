# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel runs``: the list of runs, from little data, and what is deleted of it."""

import gzip
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.builders import stories
from tests.builders.run_ages import DAY, report_of, set_age
from verl_otel._internal import safe_files
from verl_otel.cli import run_overview
from verl_otel.cli.runs import delete
from verl_otel.session import run_manifest
from verl_otel.system import procfs

RECORDED = Path(__file__).resolve().parents[1] / "dashboards" / "recorded" / "20261121-232607-86d8"


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
    assert first.split()[:6] == ["new", "finished", "-", "2", "(15.00", "s)"]
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
        "state": "finished",
        "steps": None,
        "last_step": 2,
        "last_step_seconds": 15.0,
        "started": stories.T0,
        "seconds": 25.0,
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "written": folder.stat().st_mtime,
        "folder": str(folder),
    }


def test_a_real_run_has_its_number_of_steps(runs, listing):
    """The metrics files of a real training have the number of its steps at their end."""
    folder = runs / "real"
    folder.mkdir(parents=True)
    for path in RECORDED.glob("metrics-*.gz"):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    (folder / "run.json").write_text("{}")
    row = listing()["real"]
    assert (row["state"], row["steps"], row["last_step"]) == ("finished", 16, 16)


def test_attempts_are_added_up(runs, listing):
    """The steps of a resumed run are those of all attempts, the last step is the last one's."""
    point = {"timeUnixNano": "2", "startTimeUnixNano": "1", "sum": 1.0}
    for pid, count in ((1, 3), (2, 4)):
        metric = {"name": "verl.step.duration", "histogram": {"dataPoints": [{**point, "count": str(count)}]}}
        folder = stories.training(runs / "r1").write()
        line = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]})
        (folder / f"metrics-trainer-node-1-{pid}.jsonl").write_text(f"{line}\n")
    assert listing()["r1"]["steps"] == 7


def histogram_line(count, *, failed=False, start=1):
    """A line with the histogram of steps, as the exporter writes it: only of the series that changed."""
    labels = [{"key": "error.type", "value": {"stringValue": "ValueError"}}] if failed else []
    point = {"timeUnixNano": "2", "startTimeUnixNano": str(start), "count": str(count), "attributes": labels}
    metric = {"name": "verl.step.duration", "histogram": {"dataPoints": [point]}}
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}) + "\n"


@pytest.mark.parametrize("between", [0, 2 << 20], ids=["at once", "after a long step"])
def test_a_run_that_failed_has_its_whole_steps_too(runs, listing, between):
    """The failed step is alone in the last line; a resumed run in a container has both attempts in one file."""
    folder = stories.training(runs / "r1").write()
    lines = [histogram_line(3), histogram_line(7, start=9), "{}" + " " * between + "\n", histogram_line(1, failed=True)]
    (folder / "metrics-trainer-node-1-1.jsonl").write_text("".join(lines))
    (folder / "metrics-trainer-node-1-2.jsonl").write_text(histogram_line(1000))
    assert listing()["r1"]["steps"] == 3 + 7 + 1 + 1000


def test_steps_before_a_rotation_are_unknown(runs, listing):
    """Where the file that follows has only the failed step, nothing is said."""
    folder = stories.training(runs / "r1").write()
    (folder / "metrics-trainer-node-1-1.1.jsonl").write_text(histogram_line(500))
    (folder / "metrics-trainer-node-1-1.jsonl").write_text(histogram_line(1, failed=True))
    assert listing()["r1"]["steps"] is None


def test_twenty_attempts_are_added_up(runs, listing):
    """Each has a file of its own."""
    folder = stories.training(runs / "r1").write()
    for pid in range(20):
        (folder / f"metrics-trainer-node-1-{pid}.jsonl").write_text(histogram_line(2))
    assert listing()["r1"]["steps"] == 40


def test_a_main_program_of_any_role_has_its_steps(runs, listing, story):
    """It is an actor without a known role, beside any number of workers that wrote later."""
    main = story.process("actor", 17)
    stories.step(main, 4, 0, 2)
    for number in range(2 * run_overview.MAX_FILES):
        story.process("agent_loop", number).span("verl.trajectory", 1, 2)
        story.process("agent_loop", number).scalar("verl.trajectory.duration", 2, 1)
    folder = story.write()
    (folder / "metrics-actor-node-1-17.jsonl").write_text(histogram_line(4))
    for path in folder.glob("*-actor-*"):
        set_age(path, 60)
    row = listing()["r1"]
    assert (row["steps"], row["last_step"], row["last_step_seconds"]) == (4, 4, 2.0)


def test_a_logged_step_is_the_last_one_while_its_span_is_open(listing, story):
    """A step is logged before its span ends; its duration is not known then."""
    trainer = story.process()
    stories.step(trainer, 7, 0, 10)
    trainer.scalar("verl.training.step", 9.5, 7)
    story.write()
    assert (listing()["r1"]["last_step"], listing()["r1"]["last_step_seconds"]) == (7, 10.0)
    trainer.scalar("verl.training.step", 19.5, 8)
    story.write()
    assert (listing()["r1"]["last_step"], listing()["r1"]["last_step_seconds"]) == (8, None)


def test_an_own_loop_in_the_driver_beside_many_workers(listing, story):
    """The steps of an own loop under Ray are those of the driver, whichever of its many workers has written last."""
    stories.step(story.process("driver"), 3, 0, 2)
    for number in range(2 * run_overview.MAX_FILES):
        worker = story.process("actor", number)
        worker.span("verl.trajectory", 1, 2)
        worker.scalar("verl.trajectory.duration", 2, 1)
    folder = story.write()
    for path in folder.glob("*-driver-*"):
        set_age(path, 60)
    row = listing()["r1"]
    assert (row["last_step"], row["last_step_seconds"]) == (3, 2.0)


@pytest.mark.parametrize(("value", "state"), [(2, "finished"), (3, "failed")])
def test_the_state_that_the_trainer_recorded(listing, story, value, state):
    """The last value of the run's state counts, whatever the manifest says."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 10)
    trainer.scalar("verl.run.state", 0, 1)
    trainer.scalar("verl.run.state", 10, value)
    story.manifest(attempts=[{"started": stories.T0, "ended": stories.T0 + 11}])
    story.write()
    assert listing()["r1"]["state"] == state


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


def test_the_newest_run_is_the_one_that_was_started_last(call, runs):
    """Whenever its files were written, as copies are; a resumed run counts from its newest attempt."""
    for name, starts, age in (("a", [30], 5), ("b", [10, 40], 9), ("c", [20], 1)):
        story = stories.training(runs / name, name)
        story.manifest(attempts=[{"started": stories.T0 + start} for start in starts])
        set_age(story.write(), age)
    assert [line.split()[0] for line in call("runs").out.splitlines()[1:4]] == ["b", "a", "c"]
    assert call("report").out.startswith("Run b ")


def test_a_run_begins_with_its_first_span(listing, story):
    """A manifest that was written after the first span has begun does not shorten the run."""
    stories.step(story.process(), 1, 0, 10)
    story.manifest(attempts=[{"started": stories.T0 + 3, "ended": stories.T0 + 12}])
    story.write()
    row = listing()["r1"]
    assert (row["started"], row["seconds"]) == (stories.T0, 12.0)


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


def test_a_large_run_is_not_read(runs, listing, make_run, monkeypatch):
    """Of files of many gigabytes only the ends are read."""
    folder = make_run("r1")
    for path in folder.glob("*-*.jsonl"):
        data = path.read_bytes()
        with path.open("wb") as file:
            file.truncate(64 << 30)  # sparse
            file.seek(0, os.SEEK_END)
            file.write(b"\n" + data)
    sizes = []
    read_tail = safe_files.read_tail
    monkeypatch.setattr(safe_files, "read_tail", lambda path, limit: sizes.append(limit) or read_tail(path, limit))
    row = listing()["r1"]
    assert (row["state"], row["last_step"], row["last_step_seconds"]) == ("finished", 2, 15.0)
    assert row["steps"] is None  # a histogram may be in the part that was not read
    assert 0 < sum(sizes) <= 2 * run_overview.MAX_FILES * run_overview.TAIL_BYTES


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 5000, b'{"attempts": 3}', b'{"attempts": [{"started": 1e999}]}', HUGE]
)
def test_a_damaged_run_is_listed(listing, make_run, content):
    """What cannot be read is unknown; the run has a size all the same."""
    folder = make_run("r1", DAY)
    for path in folder.glob("*-*.jsonl"):
        path.write_bytes(content + b'"verl.step" "verl.run.state" "verl.training.step" "verl.step.duration"')
    (folder / "run.json").write_bytes(content)
    row = listing()["r1"]
    assert (row["last_step"], row["started"], row["seconds"]) == (None, None, None)
    assert row["bytes"] > 100_000


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
    assert (result.code, json.loads(result.out)) == (1, {"runs": [], "next": ["verl-otel check"]})
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
    for path in running.glob("metrics-trainer-*"):
        path.unlink()  # otherwise it has ended
    report_of(running, procfs.find_process(os.getpid()))
    set_age(running, 9 * DAY)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert result.code == 0
    assert "kept: written 5" in result.out
    assert "kept: running" in result.out
    assert names(runs) == ["recent", "running"]


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
