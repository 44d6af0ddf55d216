# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a run of an own loop ended: by itself, by an exception, or by Ctrl-C, inside of a step and between two."""

import asyncio
import contextlib
import signal
import sys
import time

import pytest

import verl_otel
from tests.builders import texts
from verl_otel.analysis import reader
from verl_otel.cli import run_overview
from verl_otel.session import run_manifest

LOOP = """
import asyncio, os, signal, sys, time, verl_otel

def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

@verl_otel.tool("search")
async def search(seconds):
    await asyncio.sleep(seconds)

async def roll_out(number, index):
    with verl_otel.trajectory(f"p{number}", index):
        await search(0.5 if number == 4 and index == 1 else 0.01)

async def main():
    for number in range(1, 5):
        with verl_otel.step(number), verl_otel.phase("gen"):
            tasks = asyncio.gather(*(roll_out(number, index) for index in range(2)))
            if number == 4:
                asyncio.get_running_loop().call_later(0.2, press_ctrl_c)
            await tasks
"""
SYNCHRONOUS = """
import os, signal, verl_otel
for number in range(1, 5):
    with verl_otel.step(number):
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)
"""
BETWEEN = """
import verl_otel
for number in range(1, 5):
    with verl_otel.step(number):
        pass
raise {error}
"""


@pytest.mark.full
@pytest.mark.parametrize("code", [LOOP + "asyncio.run(main())\n", SYNCHRONOUS])
def test_ctrl_c_inside_of_a_step_interrupts_the_run(run, tmp_path, code):
    """The run is interrupted, its last step did not come to its end, and no cause is named for how long it took."""
    assert run(code).code == -signal.SIGINT
    found = reader.read([tmp_path / "runs" / "r1"])[0]
    assert found.state == run_overview.read(tmp_path / "runs" / "r1").state == "interrupted"
    last = found.steps[-1]
    assert (last.number, last.failed, last.interrupted, last.verdicts) == (4, True, True, ())
    assert not [step for step in found.steps[:-1] if step.failed]
    text = texts.explain(found)
    assert "INTERRUPTED: step 4 after" in text
    assert "tool search took" not in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("error", "state"), [("KeyboardInterrupt", "interrupted"), ("ValueError", "failed"), ("SystemExit", "finished")]
)
def test_what_ends_the_program_between_two_steps_ends_the_run(run, tmp_path, error, state):
    """An exception outside of every step counts as one inside of a step, and is named with its line."""
    run(BETWEEN.format(error=error))
    found = reader.read([tmp_path / "runs" / "r1"])[0]
    assert found.state == state
    assert ("FAILED after step 4: ValueError in <module> (" in texts.explain(found)) == (state == "failed")


def fail(error):
    raise error


@pytest.mark.parametrize(("error", "state"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_what_ends_the_program_before_the_first_step_ends_the_run(tmp_path, monkeypatch, error, state):
    """It has recorded nothing else, and the list of runs and a report know how it ended."""
    verl_otel.init(run_dir=tmp_path, run_id="r1", exporters="file", stalls=False)
    with pytest.raises(error) as raised:
        fail(error)
    # as the interpreter does before the functions of `atexit`
    monkeypatch.setattr("sys.last_value", raised.value, raising=False)
    verl_otel.shutdown()
    found, row = reader.read([tmp_path / "r1"])[0], run_overview.read(tmp_path / "r1")
    assert (found.state, row.state, row.steps) == (state, state, 0)
    text = "FAILED before the first step: ValueError in fail (test_ends_of_runs.py:"
    assert (text in texts.explain(found)) == (state == "failed")


@pytest.mark.parametrize("caught", [ValueError, asyncio.CancelledError])
def test_the_exception_that_ends_the_program_is_named_beside_steps_that_it_did_not_end(tmp_path, monkeypatch, caught):
    """A loop tries a failed step again, or a time-out cancels a step: another exception ends the program."""
    verl_otel.init(run_dir=tmp_path, run_id="r1", exporters="file", stalls=False)
    with contextlib.suppress(caught), verl_otel.step(1):
        raise caught
    if caught is ValueError:
        with verl_otel.step(1):
            pass
    monkeypatch.setattr("sys.last_value", TimeoutError(), raising=False)
    verl_otel.shutdown()
    text = texts.explain(reader.read([tmp_path / "r1"])[0])
    assert "FAILED after step 1: TimeoutError; " in text
    assert ("INTERRUPTED: step 1 after" in text) == (caught is not ValueError)


def test_a_driver_does_not_speak_for_a_training_of_another_process(tmp_path, monkeypatch):
    """The driver of verl gets the exception of its trainer, which has written how the training ended."""
    verl_otel.init(run_dir=tmp_path, run_id="r1", exporters="file", stalls=False)
    record = {"process": "trainer-node-2", "began": time.time(), "state": "finished", "time": time.time(), "steps": 4}
    run_manifest.record_training(tmp_path / "r1", record)
    monkeypatch.setattr("sys.last_value", ValueError(), raising=False)
    verl_otel.shutdown()
    assert run_overview.read(tmp_path / "r1").state == "finished"


@pytest.mark.parametrize(("code", "state"), [(0, "interrupted"), (None, "interrupted"), ("loss is NaN", "failed")])
def test_a_program_that_exits_inside_of_a_step_has_not_failed_unless_it_says_so(tmp_path, code, state):
    """A handler of SIGTERM calls ``sys.exit(0)`` wherever the program is."""
    verl_otel.init(run_dir=tmp_path, run_id="r1", exporters="file", stalls=False)
    with pytest.raises(SystemExit), verl_otel.step(1):
        sys.exit(code)
    verl_otel.shutdown()
    assert run_overview.read(tmp_path / "r1").state == reader.read([tmp_path / "r1"])[0].state == state


async def leave_by_cancellation(number):
    with verl_otel.step(number):
        task = asyncio.current_task()
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.sleep(60)


@pytest.mark.parametrize(("goes_on", "state"), [(False, "interrupted"), (True, "finished")])
def test_a_cancelled_step_interrupts_the_run_if_it_is_the_last(tmp_path, goes_on, state):
    """A loop that catches the cancellation and makes another step has not ended with it."""
    verl_otel.init(run_dir=tmp_path, run_id="r1", exporters="file", stalls=False)
    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(leave_by_cancellation(1))
        if goes_on:
            with verl_otel.step(2):
                pass
    finally:
        verl_otel.shutdown()
    found = reader.read([tmp_path / "r1"])[0]
    assert (found.state, found.steps[0].error) == (state, "cancelled")
