# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What hangs in a real training is named while it hangs: a tool, a frozen rank."""

import json
import os
import signal
import time

import pytest

from tests.end_to_end import bed_run, planted

pytestmark = pytest.mark.verl

SECONDS = 15
"""Within so many seconds of passing its peers a culprit has to be named."""
LONGEST = 3
"""Seconds by which the longest peer of a call of the bed, and the time until the next call, are surely over."""
HANG = 45


def read_events(training):
    """Return What the watchdog has written so far."""
    return [
        json.loads(line)
        for path in (training.out / "runs").glob("*/events.jsonl")
        for line in path.read_text("utf-8").rpartition("\n")[0].splitlines()  # the last may be half written
    ]


def find_event(training, kind, **culprit):
    """Return a function that returns the first event of a kind with such a culprit, or None."""

    def find():
        for event in read_events(training):
            known = event["detail"].get("culprit", {})
            if event["kind"] == kind and all(known.get(key) == value for key, value in culprit.items()):
                return event
        return None

    return find


def count_steps(training):
    """Return how many steps verl has logged."""
    path = training.out / "scalars.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def hung(outs, wait_for):
    """A training whose tool hangs in step 4, and one of whose ranks stands still in a step after that; both go on, and so does verl."""
    out = outs / "hung"
    options = {
        "tool": True, "steps": 9, "overrides": ["trainer.test_freq=-1"], "VERL_OTEL_ENABLED": 1,
        "VERL_OTEL_RUN_DIR": out / "runs", "CPU_BED_PLANT": f"tool:{HANG}:{3 * planted.GROUP + 4}",
    }  # fmt: skip
    with bed_run.start(out, **options) as (training, process):
        wait_for(find_event(training, "stall", span="execute_tool add"), 400, 0.5)
        training.steps_at_tool = count_steps(training)
        wait_for(lambda: count_steps(training) >= 5, HANG + 60, 0.2)
        (path,) = (training.out / "runs").glob("*/traces-actor_rollout_ref-*.jsonl")
        training.rank = int(path.stem.rpartition("-")[2])
        training.stopped_at = time.time()
        os.kill(training.rank, signal.SIGSTOP)
        try:
            wait_for(find_event(training, "stall", pid=training.rank), 90, 0.5)
        finally:
            os.kill(training.rank, signal.SIGCONT)
        process.wait(bed_run.DEADLINE)
    return training


def test_a_hanging_tool_is_named_while_it_hangs(hung):
    """Tool, trajectory and who waits, in the log and as an event, long before the tool gives up."""
    event = find_event(hung, "stall", span="execute_tool add")()
    begun = next(each["start"] for each in hung.bed("tool") if each["seconds"] > HANG)
    assert event["time_ns"] / 1e9 - begun < SECONDS + LONGEST
    assert hung.steps_at_tool == 3, "the step was over when the tool was named"
    assert event["detail"]["culprit"]["instance"].startswith("agent_loop-")
    waiting = {each["span"] for each in event["detail"]["waiting"]}
    assert {"verl.trajectory", "verl.phase.gen"} <= waiting
    (line,) = [line for line in hung.log.splitlines() if "verl-otel: STALL" in line and "execute_tool add" in line]
    assert "agent_loop-" in line


def test_a_frozen_rank_is_named_while_it_is_frozen(hung):
    """A rank that was stopped: who, since when, and that the trainer waits for it."""
    event = find_event(hung, "stall", pid=hung.rank)()
    assert 0 < event["time_ns"] / 1e9 - hung.stopped_at < SECONDS + LONGEST
    assert event["detail"]["culprit"]["instance"] == "actor_rollout_ref-0"
    assert any(each["instance"] == "trainer-0" for each in event["detail"]["waiting"])
    assert any(str(hung.rank) in line for line in hung.log.splitlines() if "verl-otel: STALL" in line)


def test_training_goes_on_afterwards(hung):
    """Nothing was killed: all steps are there, what hung is said to go on, nothing else was accused."""
    assert hung.returncode == 0, hung.log[-3000:]
    assert count_steps(hung) == 9
    events = read_events(hung)
    assert [each["kind"] for each in events].count("stall") == [each["kind"] for each in events].count("resolved") == 2
    assert not [each for each in events if each["kind"] == "crash"]


def test_stacks_of_both_sides_were_written(hung):
    """Where the process that was waited for stood, and where the one that waited."""
    event = find_event(hung, "stall", span="execute_tool add")()
    stacks = event["detail"]["stacks"]
    assert len(stacks) >= 2
    texts = [(hung.folder / path).read_text("utf-8", "replace") for path in stacks.values()]
    assert any("cpu_tools.py" in text or "add" in text for text in texts)
