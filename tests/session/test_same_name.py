# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs under one name: a run is continued, or another job gets a run of its own; two jobs are never mixed without a word."""

import json
import os

import pytest

from verl_otel import config
from verl_otel._internal.machine import identify_process
from verl_otel.session import run_manifest, same_name
from verl_otel.watchdog import process_reports

TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
OLD, NEW = "launcher 1", "launcher 2"


@pytest.fixture
def leave(tmp_path, dead_pid):
    """Leave a run ``r1`` that another process has begun, and that has ended in a way."""

    def begin(end, job=""):
        settings = config.load_config({}, run_dir=tmp_path, run_id="r1")
        run_manifest.begin_attempt(settings.run_path, job=job)
        (settings.run_path / process_reports.FOLDER).mkdir()
        record = run_manifest.read(settings.run_path)
        (attempt,) = record["attempts"]
        attempt |= {"pid": dead_pid, "process": "dead"}
        if end == "running":
            attempt |= {"pid": os.getppid(), "process": identify_process(os.getppid())}
        elif end == "running elsewhere":
            attempt["machine"] = "another"
            (settings.run_path / process_reports.FOLDER / "beat-x").touch()
        elif end != "killed":
            attempt["ended"] = attempt["started"] + 1
            process_reports.mark_run(settings, end)
        (settings.run_path / run_manifest.NAME).write_text(json.dumps(record))
        return settings.run_path

    return begin


ENDS = [
    ("finished", "has finished"),
    ("running", "goes on"),
    ("running elsewhere", "goes on"),
    ("killed", ""),
    (process_reports.FAILED, ""),
    (process_reports.INTERRUPTED, ""),
]


@pytest.mark.parametrize(("end", "why"), ENDS)
def test_a_name_that_a_launcher_uses_again_is_another_run_unless_the_first_is_continued(leave, caplog, end, why):
    """As ``--rdzv-id=100`` in a script: each launch that follows a run that finished, or goes on, is a run of its own, and says so."""
    folder = leave(end, job=same_name.name_job(OLD, TORCHRUN))
    job = same_name.name_job(NEW, TORCHRUN)
    assert same_name.keep_apart(folder.parent, "r1", job) == (f"r1-{job}" if why else "r1")
    assert (why in caplog.text) if why else not caplog.text


@pytest.mark.parametrize(("end", "why"), ENDS)
def test_a_name_that_the_user_gives_is_one_run_and_a_word_says_what_is_mixed(leave, caplog, end, why):
    """``VERL_OTEL_RUN_ID`` continues a run; that of another job, which finished or goes on, may be a mistake."""
    same_name.warn_of_other(leave(end))
    assert (f"run r1 {why}" in caplog.text) if why else not caplog.text


def test_ranks_and_restarts_of_one_launch_are_one_run(leave):
    """All of one launcher, or of one job of Slurm, whatever state the run is in."""
    job = same_name.name_job(OLD, TORCHRUN)
    folder = leave("running", job=job)
    assert same_name.keep_apart(folder.parent, "r1", job) == "r1"
    of_slurm = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "SLURM_JOB_ID": "7"}
    assert same_name.name_job(OLD, of_slurm) == same_name.name_job(NEW, of_slurm) != ""


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, {}])
def test_what_ranks_do_not_have_in_common_keeps_nothing_apart(leave, environ):
    """Launchers of several nodes differ: their ranks stay one run."""
    folder = leave("finished")
    assert same_name.keep_apart(folder.parent, "r1", same_name.name_job(NEW, environ)) == "r1"


def test_a_first_run_and_a_second_session_of_one_program_are_no_other_job(tmp_path, caplog):
    """Nothing is there; or this process has begun what is there."""
    job = same_name.name_job(NEW, TORCHRUN)
    assert same_name.keep_apart(tmp_path, "r1", job) == "r1"
    run_manifest.begin_attempt(tmp_path / "r1")
    run_manifest.end_attempt(tmp_path / "r1")
    same_name.warn_of_other(tmp_path / "r1")
    assert same_name.keep_apart(tmp_path, "r1", job) == "r1"
    assert not caplog.text
