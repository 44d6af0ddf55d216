# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``run.json``: attempts are counted, facts added, secrets kept out, damage survived."""

import json
import os
import subprocess
import sys
import time

import pytest

import verl_otel
from verl_otel import session
from verl_otel.session import manifest


def test_attempts_are_counted(tmp_path):
    """Each start with the same id is one more attempt, with its time, process and command."""
    folder = tmp_path / "r1"
    begin = time.time()
    assert [manifest.begin_attempt(folder) for _ in range(3)] == [1, 2, 3]
    record = json.loads((folder / "run.json").read_text())
    assert record["run_id"] == "r1"
    assert record["verl_otel"] == verl_otel.__version__
    assert [each["attempt"] for each in record["attempts"]] == [1, 2, 3]
    assert all(begin <= each["started"] <= time.time() and each["pid"] == os.getpid() for each in record["attempts"])
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_facts_are_added_and_replaced(tmp_path):
    """What becomes known later is added; what is said again replaces; attempts stay."""
    manifest.begin_attempt(tmp_path)
    manifest.update(tmp_path, {"verl.project": "p", "verl.experiment": "e"})
    manifest.update(tmp_path, {"verl.experiment": "f", "path": tmp_path})
    record = manifest.read(tmp_path)
    assert (record["verl.project"], record["verl.experiment"], record["path"]) == ("p", "f", str(tmp_path))
    assert len(record["attempts"]) == 1


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"x"', '{"attempts": 3}', '{"run_id": null'])
def test_a_damaged_record_is_begun_anew(tmp_path, text):
    """A record that cannot be read counts as none; the next start writes a whole one."""
    (tmp_path / "run.json").write_text(text)
    assert isinstance(manifest.read(tmp_path), dict)
    assert manifest.begin_attempt(tmp_path) == 1
    assert manifest.begin_attempt(tmp_path) == 2


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path, caplog):
    """Where the record cannot be written one line is logged and the run goes on."""
    (tmp_path / "file").write_text("")
    assert manifest.begin_attempt(tmp_path / "file" / "r1") == 1
    manifest.update(tmp_path / "file" / "r1", {"a": "b"})
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("verl-otel: cannot write ")


@pytest.mark.parametrize(
    "argument",
    [
        "WANDB_API_KEY=s3cret",
        "--api-key=s3cret",
        "+trainer.hub_token=s3cret",
        "trainer.logger.PASSWORD=s3cret",
        "my.client_secret=s3cret=more\ns3cret",
        "aws-credentials=s3cret",
        "a=1,api_key=s3cret",
    ],
)
def test_secrets_are_masked(argument):
    """The value of what is named like a secret does not stand in the record."""
    (shown,) = manifest.shown_command([argument])
    assert "s3cret" not in shown
    assert shown.endswith("=***")


@pytest.mark.parametrize("arguments", [["python", "-m", "verl.trainer.main_ppo", "data.train_files=a=b", "+x.y=[1,2]"]])
def test_what_is_no_secret_is_shown(arguments):
    """Every other argument stands in the record as it was given."""
    assert manifest.shown_command(arguments) == arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "s3cret"],
        ["--token", "s3cret", "x"],
        ["+env={WANDB_API_KEY:s3cret}"],
        ['+env={"HF_TOKEN": "s3cret"}'],
        ["data=https://user:s3cret@host/path"],
        ["data=https://user:s3cret@s3cret@host/path"],
        ["data=https://s3cret@host/path"],
        ["-H", "Authorization: Bearer s3cret"],
        ["-H", "x: bearer s3cret"],
        ["--authorization", "Bearer", "s3cret"],
        ["OTEL_EXPORTER_OTLP_HEADERS=x-team=s3cret"],
        ["bash", "-c", "export HF_TOKEN=s3cret && python train.py"],
        ["AWS_SECRET_ACCESS_KEY=s3cret"],
        ["--ssh-private-key", "s3cret"],
    ],
)
def test_secrets_in_other_forms_are_masked(arguments):
    """The value of a secret is masked also where it stands in the next argument, in a dictionary or in an address."""
    assert not any("s3cret" in each for each in manifest.shown_command(arguments))


@pytest.mark.parametrize(
    "argument",
    [
        "data.max_tokens=5",
        "rollout.max_num_batched_tokens=8192",
        "data.prompt_key=prompt",
        "data.tokenizer=/a/b",
        "a.token_file=/a/b",
        "algorithm.token_level=1",
        "http://host:80/a",
    ],
)
def test_ordinary_settings_of_verl_are_shown(argument):
    """Numbers of tokens, names of columns and tokenizers are no secrets."""
    assert manifest.shown_command([argument]) == [argument]


RESUMED = """
import sys
from verl_otel import session
import verl_otel
session.start_lazily()
session.current().begin_run()
session.current().begin_run()
with verl_otel.step(1):
    pass
print(session.current().config.run_attempt)
"""


def test_a_resumed_run_says_which_attempt_it_is(run, files, tmp_path):
    """A run that is started again with its id counts its attempts, in its record and in its resource."""
    assert [run(RESUMED).out for _ in range(2)] == ["1\n", "2\n"]
    folder = tmp_path / "runs" / "r1"
    record = json.loads((folder / "run.json").read_text())
    assert len(record["attempts"]) == 2
    assert record["attempts"][0]["command"][0] == sys.executable
    assert sorted(span.resource["verl.run.attempt"] for span in files(folder).spans()) == [1, 2]


def test_a_run_without_files_makes_no_record(run, tmp_path):
    """Where no files are wanted the start of a run and its facts leave no folder."""
    code = f"{RESUMED}\nsession.record_run({{'a': 'b'}})"
    assert run(code, VERL_OTEL_EXPORTERS="none").out == "1\n"
    assert not (tmp_path / "runs").exists()


def test_facts_reach_the_record_of_a_running_session(start):
    """What an integration says of the run stands in run.json beside the files."""
    files = start()
    session.record_run({"verl.project": "p"})
    assert json.loads((files.folder / "run.json").read_text())["verl.project"] == "p"


def test_two_writers_leave_a_whole_record(tmp_path):
    """Two processes that write the record at the same time leave one that can be read."""
    code = f"""
from pathlib import Path
from verl_otel.session import manifest
for number in range(100):
    manifest.update(Path({str(tmp_path)!r}), {{"number": number}})
"""
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        path = tmp_path / "run.json"
        assert not path.exists() or "number" in json.loads(path.read_text())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert manifest.read(tmp_path)["number"] == 99
