# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The example of a tool and a reward function: what a user finds in the files and in the report."""

import json
from collections import Counter

import pytest

from tests.builders.processes import OF_BUSY_MACHINES

STEPS, SAMPLES, TASKS = 3, 2, 4
TRAJECTORIES = STEPS * SAMPLES * TASKS
REJECTED = STEPS * SAMPLES
"""One of the tasks has a number that the tool rejects."""


@pytest.fixture(scope="module")
def done(example):
    ran = example("own_tool_and_reward")
    ran.printed = ran.run_all()
    return ran


@pytest.fixture(scope="module")
def spans(done):
    return done.spans()


@pytest.mark.full
def test_the_program_prints_what_it_did(done):
    """Six of eight answers of a step are right, two are a text."""
    assert done.printed["python rollout.py"].splitlines() == [
        f"step {step}: 8 trajectories, mean score 0.750" for step in range(1, STEPS + 1)
    ]


def test_every_call_is_a_span(spans):
    """The number of spans of each kind is that of the loop."""
    assert Counter(span.name for span in spans if span.name not in OF_BUSY_MACHINES) == {
        "verl.step": STEPS,
        "verl.phase.gen": STEPS,
        "verl.phase.update_actor": STEPS,
        "verl.trajectory": TRAJECTORIES,
        "verl.turn": 2 * TRAJECTORIES,
        "chat stub": 2 * TRAJECTORIES,
        "execute_tool add": TRAJECTORIES,
        "verl.reward": TRAJECTORIES,
    }


def test_attributes_and_errors_are_on_the_spans(spans):
    """What the functions `read_digits` and `read_score` return is on the spans; a rejected call has its error."""
    tools = [span.attributes for span in spans if span.name == "execute_tool add"]
    assert Counter(span.get("error.type") for span in tools) == {"ValueError": REJECTED, None: TRAJECTORIES - REJECTED}
    assert {span["calculator.digits"] for span in tools if "error.type" not in span} == {2, 3}
    rewards = [span.attributes for span in spans if span.name == "verl.reward"]
    assert Counter(span["verl.reward.score"] for span in rewards) == {1.0: TRAJECTORIES - REJECTED, 0.0: REJECTED}
    assert {span["verl.data.source"] for span in rewards} == {"arithmetic"}
    assert {span["answer.length"] for span in rewards} == {2, 3, len("a number is too large")}


def test_the_counter_counts_what_was_rejected(done):
    """The last point of the counter is the number of rejected calls."""
    ((series, value),) = done.last_values("calculator.rejected").items()
    assert (series[1], value) == ((("reason", "too_large"),), REJECTED)


def test_the_report_names_the_slowest_trajectory(done):
    """Text and JSON agree with the program: counts, scores, and the task that was slow in step 2."""
    assert f"{STEPS} steps" in done.printed["verl-otel report"]
    assert f"{TRAJECTORIES} trajectories" in done.printed["verl-otel report"]
    assert f"{TRAJECTORIES} tool calls" in done.printed["verl-otel report"]
    report = json.loads(done.printed["verl-otel report --json"])
    assert [step["number"] for step in report["steps"]] == [1, 2, 3]
    scores = {(item["uid"] == "rejected", item["score"]) for item in report["trajectories"]}  # the 20 slowest
    assert scores == {(False, 1.0), (True, 0.0)}
    slowest = sorted(report["trajectories"], key=lambda item: item["seconds"])[-SAMPLES:]
    assert {(item["uid"], item["step"]) for item in slowest} == {("slow", 2)}
    assert all(item["parts"][0]["kind"] == "llm" for item in slowest)
