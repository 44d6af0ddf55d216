# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings that end before their time leave files that can be read, and a report that says what was going on."""

import os
import signal

import pytest

from tests.builders.training_logs import find_unexpected
from tests.end_to_end import bed_run, counts

pytestmark = [pytest.mark.verl, pytest.mark.matrix]


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
    steps = {span.attributes["verl.step.number"]: span for span in spans if span.name == "verl.step"}
    assert not counts.find_orphans([span for span in spans if span.start < steps[2].start])
    assert steps[1].status != 2
    assert (steps[2].status, steps[2].attributes["error.type"]) == (2, "RuntimeError")
    text = training.report()
    assert "FAILED" in text.splitlines()[0]
    assert "2 FAILED" in text
    known = {span.id for span in (*spans, *training.spans("open-*.jsonl"))}
    unknown = [span for span in spans if span.parent and span.parent not in known]
    assert (" spans have a parent in no file" in text) == bool(
        unknown
    )  # Ray kills the rollouts of the step with the trainer


def test_a_killed_rank_is_named_with_what_it_did(outs, wait_for):
    """SIGKILL of a training worker in its update: verl ends, and the report says which process it was and what it was doing."""
    with start(outs / "killed-rank", CPU_BED_PLANT="rank:300:3") as (training, process):

        def updating_rank():
            assert process.poll() is None, training.log[-3000:]
            open_files = list((training.out / "runs").glob("*/open-actor_rollout_ref-*.jsonl"))
            return [path for path in open_files if "update_actor" in path.read_text()]

        (path,) = wait_for(updating_rank, 300, 0.2)
        pid = int(path.stem.rpartition("-")[2])
        os.kill(pid, signal.SIGKILL)
        assert process.wait(120) != 0
    assert len([span for span in training.spans() if span.name == "verl.step"]) >= 2
    text = training.report()
    assert "FAILED" in text.splitlines()[0]
    lines = text[text.index("Unfinished work") :].splitlines()
    (rank,) = (number for number, line in enumerate(lines) if line.startswith(f"  actor_rollout_ref-0 (pid {pid} on "))
    assert lines[rank + 1].startswith("    verl.worker ")
    assert ".update_actor: open for " in lines[rank + 1]


def test_ctrl_c_leaves_readable_files(outs, wait_for):
    """Ctrl-C in the middle of a step: the steps before it are whole."""
    with start(outs / "interrupted") as (training, process):
        wait_for(has_steps(training, process, 2), 300, 0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) != 0
    logged = len((training.out / "scalars.jsonl").read_text().splitlines())
    steps = [span for span in training.spans() if span.name == "verl.step"]
    assert len(steps) >= logged - 1
    assert find_unexpected(training.log) == []
    assert training.report().startswith("Run ")
