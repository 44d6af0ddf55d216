# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``run.json``: attempts are counted, facts added, secrets kept out, damage survived."""

import json
import os
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

import verl_otel
from verl_otel.session import run_manifest


def test_attempts_are_counted(tmp_path):
    """Each start with the same id is one more attempt, with its time, process and command."""
    folder = tmp_path / "r1"
    begin = time.time()
    assert [run_manifest.begin_attempt(folder) for _ in range(3)] == [1, 2, 3]
    record = json.loads((folder / "run.json").read_text())
    assert record["run_id"] == "r1"
    assert record["verl_otel"] == verl_otel.__version__
    assert [attempt["attempt"] for attempt in record["attempts"]] == [1, 2, 3]
    assert all(
        begin <= attempt["started"] <= time.time() and attempt["pid"] == os.getpid() for attempt in record["attempts"]
    )
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_an_attempt_is_ended_by_the_process_that_began_it(tmp_path):
    """Another attempt that has begun meanwhile goes on, also one of a container with the same process id."""
    run_manifest.begin_attempt(tmp_path)
    record = run_manifest.read(tmp_path)
    other = {**record["attempts"][0], "attempt": 2, "process": "another"}
    (tmp_path / "run.json").write_text(json.dumps({**record, "attempts": [*record["attempts"], other]}))
    run_manifest.end_attempt(tmp_path)
    assert ["ended" in attempt for attempt in run_manifest.read(tmp_path)["attempts"]] == [True, False]


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_only_the_first_rank_begins_an_attempt_of_a_named_run(monkeypatch, name):
    """Processes that a launcher has started have the name of the run in common."""
    monkeypatch.setenv("VERL_OTEL_RUN_ID", "r1")
    assert run_manifest.may_resume()
    monkeypatch.setenv(name, "0")
    assert run_manifest.may_resume()
    monkeypatch.setenv(name, "3")
    assert not run_manifest.may_resume()


def test_facts_are_added_and_replaced(tmp_path):
    """What becomes known later is added; what is said again replaces; attempts stay."""
    run_manifest.begin_attempt(tmp_path)
    run_manifest.update(tmp_path, {"verl.project": "p", "verl.experiment": "e"})
    run_manifest.update(tmp_path, {"verl.experiment": "f", "path": tmp_path})
    record = run_manifest.read(tmp_path)
    assert (record["verl.project"], record["verl.experiment"], record["path"]) == ("p", "f", str(tmp_path))
    assert len(record["attempts"]) == 1


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"x"', '{"attempts": 3}', '{"run_id": null'])
def test_a_damaged_record_is_begun_anew(tmp_path, text):
    """A record that cannot be read counts as none; the next start writes a whole one."""
    (tmp_path / "run.json").write_text(text)
    assert isinstance(run_manifest.read(tmp_path), dict)
    assert run_manifest.begin_attempt(tmp_path) == 1
    assert run_manifest.begin_attempt(tmp_path) == 2


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path, caplog):
    """Where the record cannot be written one line is logged and the run goes on."""
    (tmp_path / "file").write_text("")
    assert run_manifest.begin_attempt(tmp_path / "file" / "r1") == 1
    run_manifest.update(tmp_path / "file" / "r1", {"a": "b"})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("verl-otel: cannot write ")


@pytest.mark.parametrize(
    ("spec", "script", "shown"),
    [
        ("verl.trainer.main_ppo", "/site/verl/trainer/main_ppo.py", ["-m", "verl.trainer.main_ppo"]),
        ("trainer.__main__", "/site/trainer/__main__.py", ["-m", "trainer"]),
        (None, "train_ppo.py", ["train_ppo.py"]),
        (None, "/jobs/hf_S3CRET12345/train.py", ["/jobs/***/train.py"]),
        (None, "-c", []),
        (None, "", []),
    ],
)
def test_of_the_command_line_program_and_module_or_script_are_kept(tmp_path, monkeypatch, spec, script, shown):
    """No argument stands in the record: it may be a secret."""
    monkeypatch.setattr(sys, "argv", [script, "data.seed=1", "--token", "s3cret"])
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(spec, None) if spec else None
    monkeypatch.setitem(sys.modules, "__main__", main)
    run_manifest.begin_attempt(tmp_path)
    (attempt,) = json.loads((tmp_path / "run.json").read_text())["attempts"]
    assert attempt["command"] == [sys.executable, *shown]


LOOP = """
import sys
import verl_otel
verl_otel.init(run_id=None)
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    with verl_otel.step(number):
        verl_otel.session.flush()
"""


@pytest.mark.smoke
def test_an_own_loop_with_a_name_counts_its_attempts(run, files, tmp_path):
    """The process that runs the steps begins each attempt of the run that its environment names; a program beside it does not."""
    for script in (LOOP, "import verl_otel\nwith verl_otel.span('server'): pass", LOOP):
        assert run(script, VERL_OTEL_RUN_ID="r1", VERL_OTEL_ENABLED="1").code == 0
    folder = tmp_path / "runs" / "r1"
    first, second = json.loads((folder / "run.json").read_text())["attempts"]
    assert first["started"] <= first["ended"] <= second["started"] <= second["ended"]
    steps = [span for span in files(folder).spans() if span.name == "verl.step"]
    assert sorted(span.resource["verl.run.attempt"] for span in steps) == [1, 2]


@pytest.mark.full
def test_a_run_without_files_leaves_where_it_went(tmp_path):
    """With OTLP alone there is no ``run.json``, but a note with exporters and endpoint; with files there is none."""
    code = "import verl_otel; verl_otel.init(exporters={!r}, run_dir={!r}); verl_otel.counter('n').add(1)"
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "VERL_OTEL_EXIT_TIMEOUT": "0.2"}
    for exporters, name in (("otlp", run_manifest.DESTINATION), ("file,otlp", "run.json")):
        base = tmp_path / exporters
        subprocess.run([sys.executable, "-c", code.format(exporters, str(base))], env=environ, check=True, timeout=60)
        (folder,) = (path for path in base.iterdir() if path.name != "targets")
        assert {path.name for path in folder.glob("*.json")} == {name}
    (folder,) = (tmp_path / "otlp").iterdir()
    assert run_manifest.read_destination(folder) == (("otlp",), "http://127.0.0.1:9")
