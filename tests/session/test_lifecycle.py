# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The life of a session: when it begins, what appears when, what is complete at the end."""

import json
import os
import threading
import time
import urllib.request

import pytest

import verl_otel
from verl_otel import session
from verl_otel._internal import error_boundary
from verl_otel.recording import collection
from verl_otel.recording.state import RECORDER
from verl_otel.session.lifecycle import Current


def record(number=1):
    """One step with a phase: two spans, five series."""
    with verl_otel.step(number), verl_otel.phase("gen"):
        pass


def test_files_are_complete_after_shutdown(start):
    """After shutdown every span and every count is in the files, and nothing is left open."""
    files = start(drain_interval=60)
    for number in range(1, 101):
        record(number)
    verl_otel.shutdown()
    assert sorted(files.names()) == ["verl.phase.gen"] * 100 + ["verl.step"] * 100
    assert [span.attributes["verl.step.number"] for span in files.spans() if span.name == "verl.step"] == [
        *range(1, 101)
    ]
    assert files.last("verl.training.steps") == files.last("verl.step.duration") == 100
    assert not files.paths("open")


def test_a_folder_that_cannot_be_made_is_named_once_with_what_is_lost(start, tmp_path, caplog):
    """One line on stalls and hardware, which names `check`, one on the files; no command for files that are not there."""
    (tmp_path / "file").touch()
    start(run_dir=tmp_path / "file" / "runs")
    record()
    verl_otel.shutdown()
    watched, lost = [line for line in caplog.messages if line.startswith("verl-otel: ")]
    assert watched.endswith("/file/runs/r1: Not a directory. See verl-otel check")
    assert "telemetry is being dropped" in lost
    assert not RECORDER.writes_files


def test_the_first_init_holds_and_shutdown_may_be_called_twice(start, tmp_path):
    """A second init is ignored until shutdown; a second shutdown does nothing."""
    files = start()
    verl_otel.init(exporters="file", run_dir=tmp_path / "elsewhere", run_id="r2")
    record()
    verl_otel.shutdown()
    verl_otel.shutdown()
    assert files.names() == ["verl.phase.gen", "verl.step"]
    assert not (tmp_path / "elsewhere").exists()


def test_init_after_shutdown_records_again_into_the_new_place(start, tmp_path):
    """Telemetry can be stopped and started again; what is recorded in between is not kept, and totals begin at zero."""
    first = start()
    record(1)
    verl_otel.shutdown()
    record(2)
    second = start(run_dir=tmp_path / "again")
    record(3)
    verl_otel.shutdown()
    assert [span.attributes.get("verl.step.number") for span in first.spans() if span.name == "verl.step"] == [1]
    assert [span.attributes.get("verl.step.number") for span in second.spans() if span.name == "verl.step"] == [3]
    assert second.last("verl.training.steps") == 1


def test_a_variable_that_is_no_setting_is_named_once(start, monkeypatch, caplog):
    """A mistyped setting has no effect; the log of the training says so, and which one is meant."""
    monkeypatch.setenv("VERL_OTEL_EXPORTER", "prometheus")
    start()
    record()
    verl_otel.shutdown()
    lines = [line for line in caplog.messages if "no such setting" in line]
    assert len(lines) == 1
    assert "VERL_OTEL_EXPORTER (did you mean VERL_OTEL_EXPORTERS?)" in lines[0]


def test_files_that_are_not_in_the_home_folder_are_named(start, monkeypatch, tmp_path, caplog):
    """Where the home folder cannot be written, the log says where the files are and which setting changes it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"verl-otel-{os.getuid()}" / "runs"
    start(run_dir=folder)
    record()
    verl_otel.shutdown()
    (line,) = [line for line in caplog.messages if "VERL_OTEL_RUN_DIR" in line]
    assert str(folder) in line


def test_a_session_begins_without_the_spans_of_the_one_before(start):
    """A step that is open while telemetry stops ends without error, is not written, and not smuggled into the next run."""
    first = start()
    with verl_otel.step(1):
        verl_otel.shutdown()
    assert not first.names()
    files = start(run_id="r2")
    record(2)
    verl_otel.shutdown()
    assert [span.attributes["verl.step.number"] for span in files.spans() if span.name == "verl.step"] == [2]


@pytest.mark.parametrize("why", ["keyword", "sdk"])
def test_init_can_be_told_to_do_nothing(start, monkeypatch, why):
    """``enabled=False`` and OTEL_SDK_DISABLED=true leave everything off."""
    if why == "sdk":
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    files = start(enabled=why != "keyword")
    record()
    assert not RECORDER.on
    assert session.current_session() is None
    verl_otel.shutdown()
    assert not files.folder.exists()


def test_a_wrong_setting_stops_init_before_anything_is_on(start):
    """ConfigError from init leaves recording off and no session behind."""
    with pytest.raises(verl_otel.ConfigError, match="exporters='kafka'"):
        start(exporters="kafka")
    assert not RECORDER.on
    assert session.current_session() is None


def test_nothing_appears_before_the_first_record(monkeypatch, tmp_path, wait_for):
    """A process that never records makes no folder, no file, no port and no target; the first record makes them all."""
    for name, value in (("ENABLED", "1"), ("RUN_DIR", str(tmp_path)), ("EXPORTERS", "file,prometheus")):
        monkeypatch.setenv(f"VERL_OTEL_{name}", value)
    monkeypatch.setenv("VERL_OTEL_DRAIN_INTERVAL", "0.05")
    session.start_lazily()
    try:
        session.wake()
        session.flush(1)
        assert not list(tmp_path.iterdir())
        assert not session.current_session().outputs.exporters
        record()
        (target,) = wait_for(lambda: list((tmp_path / "targets").glob("*.json")))
        address = json.loads(target.read_text())[0]["targets"][0]
        session.flush()
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            assert b"verl_training_steps_total" in answer.read()
        wait_for(lambda: sorted(path.name[:6] for path in tmp_path.glob("*/*-*.jsonl")) == ["metric", "traces"])
    finally:
        verl_otel.shutdown()
    assert not target.exists()


class SlowLock:
    """A lock that another thread has for half a second."""

    def __init__(self):
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, *arguments, **keywords):
        time.sleep(0.5)
        return self._lock.acquire(*arguments, **keywords)


@pytest.mark.full
def test_a_flush_waits_no_longer_than_asked(start, monkeypatch):
    """What a flush has waited for another thread that hands over, it does not wait again for one that folds."""
    start(drain_interval=60)
    waits, drain = [], collection.collect
    monkeypatch.setattr(collection, "collect", lambda **keywords: waits.append(keywords["wait"]) or drain(**keywords))
    monkeypatch.setattr(session.current_session(), "_collect_lock", SlowLock())
    session.flush(30)
    assert 0 <= waits[0] <= 29.9


def test_a_failing_drain_reaches_nobody(start, swallow, monkeypatch):
    """Where recording cannot be drained, flush and shutdown raise nothing, and what was drained before is complete."""
    files = start(drain_interval=60)
    record()
    session.flush()

    def fail(**_):
        raise RuntimeError("planted")

    with monkeypatch.context() as broken:
        broken.setattr(collection, "collect", fail)
        session.flush()
        verl_otel.shutdown()
    assert error_boundary.counts()["drain"] >= 2
    assert files.names() == ["verl.phase.gen", "verl.step"]
    assert files.last("verl.training.steps") == 1


def test_functions_of_the_session_do_nothing_without_one():
    """Flush, wake, shutdown and the record of the run are safe while telemetry is off."""
    session.flush()
    session.wake()
    session.record_run({"a": "b"})
    verl_otel.shutdown()
    assert session.current_session() is None


@pytest.mark.full
@pytest.mark.parametrize(
    "ending", ["", "raise SystemExit(3)", "1 / 0", "import threading\nthreading.Timer(0.2, step).start()"]
)
def test_a_process_that_ends_by_itself_loses_nothing(run, files, tmp_path, ending):
    """At a normal end, an exit, an exception and with a thread that works on, everything is written without shutdown."""
    code = (
        "import verl_otel\nverl_otel.init(drain_interval=60)\ndef step():\n    with verl_otel.step(1):\n        pass\n"
    )
    result = run(f"{code}step()\n{ending}\n")
    assert result.code == (3 if "SystemExit" in ending else 1 if "/ 0" in ending else 0)
    expected = 2 if "Timer" in ending else 1
    run_files = files(tmp_path / "runs" / "r1")
    assert run_files.names() == ["verl.step"] * expected
    assert run_files.last("verl.training.steps") == expected


def test_files_stay_in_their_folder_when_the_process_changes_its_own(start, files, tmp_path, monkeypatch):
    """A relative run folder means the folder in which telemetry was started, wherever the process goes later."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    start(run_dir="runs", drain_interval=60)
    monkeypatch.chdir(tmp_path / "there")
    record()
    verl_otel.shutdown()
    assert files(tmp_path / "here" / "runs" / "r1").names() == ["verl.phase.gen", "verl.step"]


def test_a_run_has_one_folder(monkeypatch, tmp_path):
    """Where nobody has given the run an id, the record of the run and the files share the one that is made."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path))
    session.start_lazily()
    try:
        session.record_run({"verl.project": "p"})
        record()
    finally:
        verl_otel.shutdown()
    (folder,) = tmp_path.iterdir()
    assert {path.name.partition("-")[0] for path in folder.iterdir() if path.is_file()} == {
        "run.json",
        "traces",
        "metrics",
        "verl_logs.jsonl",
        ".verl_logs.lock",
    }


@pytest.mark.full
def test_environment_settings_reach_the_session(run, files, tmp_path):
    """Settings of the environment hold for a session that a plug-in started: here the sampler."""
    code = """
from verl_otel import session
import verl_otel
session.start_lazily()
for index in range(20):
    with verl_otel.trajectory("u", index), verl_otel.turn():
        pass
"""
    assert run(code, OTEL_TRACES_SAMPLER="always_off").code == 0
    run_files = files(tmp_path / "runs" / "r1")
    assert run_files.names() == ["verl.trajectory"] * 20, "of a trajectory that is not sampled the files keep the root"
    assert run_files.last("verl.rollout.turn.duration") == 20
    assert os.environ.get("OTEL_TRACES_SAMPLER") is None


def fail(*_, **__):
    raise RuntimeError("planted")


@pytest.mark.parametrize("part", ["lifecycle.estimate_recording", "lifecycle.OverheadMeter.update"])
def test_a_failure_does_not_end_the_drain_thread(start, swallow, monkeypatch, wait_for, part):
    """Whatever fails beside the drain itself, what is recorded is drained from then on, too."""
    with monkeypatch.context() as broken:
        broken.setattr(f"verl_otel.session.{part}", fail)
        files = start()
        record(1)
        wait_for(lambda: error_boundary.counts() and files.names())
        record(2)
        wait_for(lambda: len(files.names()) == 4)
    verl_otel.shutdown()


def test_the_watchdog_counts_from_the_start_of_telemetry_not_from_the_first_record(monkeypatch, tmp_path):
    """A process that died between the two is of this attempt, and its death is reported."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path))
    session.start_lazily()
    before_the_first_record = time.time()
    try:
        with verl_otel.span("work"):
            pass
        session.flush()
        assert Current.session.outputs._watchdog[0]._started_at <= before_the_first_record
    finally:
        verl_otel.shutdown()
