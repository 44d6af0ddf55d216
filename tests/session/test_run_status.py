# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``status`` in ``run.json``: what the process with the training loop writes, and what the list of runs shows of it."""

import json
import threading

import pytest

import verl_otel
from tests.builders.run_ages import set_age
from verl_otel.analysis.io import run_status
from verl_otel.cli import run_overview
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.session import flush, run_manifest

KILLED = """
import os, verl_otel
from verl_otel.session import flush
for number in (4, 5):
    with verl_otel.step(number):
        pass
flush()
os._exit(0)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "r1"


@pytest.fixture
def begin(folder):
    """Begin an attempt of the run in this process."""

    def start():
        verl_otel.init(run_dir=folder.parent, run_id="r1", exporters="file", stalls=False)

    yield start
    verl_otel.shutdown()


def make_steps(*numbers):
    for number in numbers:
        with verl_otel.step(number):
            pass


def read(folder):
    return run_status.read(json.loads((folder / "run.json").read_text()))


def test_a_loop_writes_its_state_and_its_steps(folder, begin):
    """While it runs and at its end; the facts of the run stay. The record has the fields that readers know, and no other."""
    begin()
    make_steps(3, 4)
    flush()
    (training,) = read(folder).trainings
    assert (training.state, training.attempt, training.steps, training.step) == ("running", 1, 2, 4)
    make_steps(5)
    verl_otel.shutdown()
    (record,) = json.loads((folder / "run.json").read_text())["status"]["trainings"]
    assert set(record) == set(run_status.Training.__struct_fields__)
    (training,) = read(folder).trainings
    assert (training.state, training.steps, training.step) == ("finished", 3, 5)
    assert 0 <= training.step_seconds <= training.time - training.began
    assert len(run_manifest.read(folder)["attempts"]) == 1


def test_a_failed_step_counts_and_its_run_has_failed(folder, begin):
    """As in the list of runs: whole and failed steps of all attempts."""
    begin()
    make_steps(1, 2)
    with pytest.raises(ValueError, match="no"), verl_otel.step(3):
        raise ValueError("no")
    verl_otel.shutdown()
    row = run_overview.read(folder)
    assert (row.state, row.steps, row.last_step) == ("failed", 3, 3)
    begin()
    make_steps(3)
    verl_otel.shutdown()
    row = run_overview.read(folder)
    assert (row.state, row.steps, row.last_step) == ("finished", 4, 3)
    assert [training.attempt for training in read(folder).trainings] == [1, 2]


def test_the_last_verdict_is_in_it(folder, begin, monkeypatch):
    """The sentence of the log of the training."""
    now = [1000.0]
    monkeypatch.setattr("verl_otel.recording.span.clock", lambda: now[0])
    begin()
    for number in range(1, 9):
        with verl_otel.step(number), verl_otel.phase("gen"):
            now[0] += 90 if number == 7 else 10
    verl_otel.shutdown()
    (training,) = read(folder).trainings
    assert training.verdict.startswith("step 7 took 90.0 s: phase gen ")


@pytest.mark.parametrize(
    ("saved", "first", "expected"), [(4, 1, ["alert"]), (4, 4, ["alert"]), (4, 5, []), (None, 1, [])]
)
def test_an_attempt_that_begins_behind_the_last_checkpoint_is_reported(folder, begin, caplog, saved, first, expected):
    """It was not found, and verl says nothing of it: what was learned is lost. Where none was saved, there is nothing to find."""
    begin()
    make_steps(3, 4)
    if saved is not None:
        with Span(CallSite("checkpoint"), {"verl.step.number": saved}):
            pass
    make_steps(5)
    verl_otel.shutdown()
    begin()
    make_steps(first, first + 1)
    verl_otel.shutdown()
    path = folder / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert [event["kind"] for event in events] == expected
    text = f"attempt 2 began at step {first}, although a checkpoint of step 4 was saved before"
    assert all(text in event["text"] for event in events)
    assert caplog.text.count(text) == len(expected)


def test_only_the_first_rank_of_a_job_writes(folder, begin, monkeypatch):
    """The other ranks have the same steps."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    begin()
    make_steps(1)
    verl_otel.shutdown()
    assert list(folder.glob("traces-*"))
    assert not (folder / "run.json").exists()


@pytest.mark.full
def test_a_killed_run_has_no_end(run, tmp_path):
    """It recorded no end: while its files are new it may be running, and its steps are known."""
    run(KILLED, VERL_OTEL_STALLS="0")
    folder = tmp_path / "runs" / "r1"
    assert run_overview.read(folder).state == "running"
    set_age(folder, 60)
    row = run_overview.read(folder)
    assert (row.state, row.steps, row.last_step) == ("no end seen", 2, 5)


def test_what_cannot_be_written_costs_nothing_else(folder, begin):
    """A folder is where the file should be."""
    (folder / "run.json").mkdir(parents=True)
    begin()
    make_steps(1)
    verl_otel.shutdown()
    assert any("verl.step" in path.read_text() for path in folder.glob("traces-*"))
    assert not list(folder.glob(".run.json*"))


def test_a_deleted_run_stays_deleted(folder):
    """A training goes on without the folder of its run."""
    assert not run_manifest.record_training(folder, {"process": "p", "began": 1.0})
    assert not folder.exists()


def test_changes_at_once_are_not_lost(folder):
    """The driver, the trainer and their threads change the same file."""
    folder.mkdir()

    def change(number):
        for count in range(1, 11):
            run_manifest.update(folder, {f"fact{number}": count})
            run_manifest.record_training(folder, make_record(number, count))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run_manifest.read(folder)[f"fact{number}"] for number in range(4)] == [10] * 4
    assert sorted(training.steps for training in read(folder).trainings) == [10] * 4


def make_record(number, steps):
    return {"process": f"p{number}", "began": 1.0, "state": "running", "time": 1.0 + number, "steps": steps}


def test_many_attempts_are_kept_as_a_number(folder):
    """The file stays small, and no step is lost."""
    folder.mkdir()
    for number in range(3 * run_manifest.MAX_TRAININGS):
        run_manifest.record_training(folder, make_record(number, 2))
    status = read(folder)
    assert len(status.trainings) == run_manifest.MAX_TRAININGS
    assert status.steps == 6 * run_manifest.MAX_TRAININGS
    assert status.newest.process == f"p{3 * run_manifest.MAX_TRAININGS - 1}"
