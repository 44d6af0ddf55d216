# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel runs``: the list of runs, from little data."""

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.builders import stories
from tests.builders.run_ages import DAY, report_of, set_age
from verl_otel._internal import safe_files
from verl_otel.cli import run_overview
from verl_otel.session import run_manifest
from verl_otel.system import procfs

RECORDED = Path(__file__).resolve().parents[1] / "dashboards" / "recorded" / "20261121-232607-86d8"


@pytest.fixture
def listing(call, runs):
    """List runs; returns the rows by name."""

    def read(*arguments):
        result = call("runs", "--json", *arguments)
        assert result.code == 0, result.err
        return {row["run"]: row for row in json.loads(result.out)}

    return read


def test_the_list_has_the_facts_of_each_run(call, runs, make_run):
    """One row for each run, the newest first, with a header and a sum."""
    make_run("old", 2 * DAY)
    new = make_run("new", DAY)
    (runs / "targets").mkdir()  # the targets of Prometheus are no run
    result = call("runs")
    head, first, second, empty, last = result.out.splitlines()
    assert result.code == 0
    assert head.split() == ["run", "state", "steps", "last", "step", "started", "duration", "size", "folder"]
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


@pytest.mark.parametrize("content", [b"", b"\x00" * 5000, b'{"attempts": 3}', b'{"attempts": [{"started": 1e999}]}'])
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
    """Exit code 1; scripts get an empty list."""
    runs.mkdir()
    result = call("runs", "--json")
    assert (result.code, json.loads(result.out)) == (1, [])
    assert result.err.startswith(f"verl-otel: no run in {runs}. ")
