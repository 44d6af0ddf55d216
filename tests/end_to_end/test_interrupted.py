# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings that end before their time leave files that can be read, and a report that says what was going on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import bed_run
import counts
import pytest

pytestmark = [pytest.mark.verl, pytest.mark.matrix]


def report(folder):
    """What ``verl-otel report`` prints; it must succeed."""
    command = [Path(sys.executable).with_name("verl-otel"), "report", folder]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def start(out, **variables):
    options = {"VERL_OTEL_ENABLED": 1, "VERL_OTEL_RUN_DIR": out / "runs", "steps": 50, **variables}
    return bed_run.start(out, overrides=["trainer.test_freq=-1"], **options)


def has_steps(training, process, number):
    """Return a condition: so many steps are in verl's own log."""

    def condition():
        assert process.poll() is None, training.log[-3000:]
        path = training.out / "scalars.jsonl"
        return path.exists() and len(path.read_text().splitlines()) >= number

    return condition


def test_a_crash_of_the_trainer_is_told(outs):
    """An exception in the second step: everything before it is whole, the step and the run are marked as failed."""
    with start(outs / "crashed", CPU_BED_CRASH="2") as (training, process):
        assert process.wait(bed_run.DEADLINE) != 0
    spans = training.spans()
    assert not counts.find_orphans(spans)
    steps = {span.attributes["verl.step.number"]: span for span in spans if span.name == "verl.step"}
    assert steps[1].status != 2
    assert (steps[2].status, steps[2].attributes["error.type"]) == (2, "RuntimeError")
    text = report(training.folder)
    assert "FAILED" in text.splitlines()[0]
    assert "2 FAILED" in text


def test_a_killed_rank_is_named_with_what_it_did(outs, wait_for):
    """SIGKILL of a training worker: verl ends; its last second may be missing, and the report says whose it is."""
    with start(outs / "killed-rank") as (training, process):
        wait_for(has_steps(training, process, 2), 300, 0.2)
        (path,) = (outs / "killed-rank" / "runs").glob("*/metrics-actor_rollout_ref-*.jsonl")
        os.kill(int(path.stem.rpartition("-")[2]), signal.SIGKILL)
        assert process.wait(120) != 0
    assert len([span for span in training.spans() if span.name == "verl.step"]) >= 2
    text = report(training.folder)
    assert "FAILED" in text.splitlines()[0]


def test_ctrl_c_leaves_readable_files(outs, wait_for):
    """Ctrl-C in the middle of a step: the steps before it are whole."""
    with start(outs / "interrupted") as (training, process):
        wait_for(has_steps(training, process, 2), 300, 0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) != 0
    logged = len((training.out / "scalars.jsonl").read_text().splitlines())
    steps = [span for span in training.spans() if span.name == "verl.step"]
    assert len(steps) >= logged - 1
    assert "verl-otel:" not in training.log
    assert report(training.folder).startswith("Run ")
