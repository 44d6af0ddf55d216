# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The example of a worker class, on real Ray: spans of two ranks, the counter, and the explanation of step 2."""

import json
from collections import Counter

import pytest

from tests.builders.processes import OF_BUSY_MACHINES

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytest.importorskip("verl", reason="verl is not installed in this environment")
pytestmark = pytest.mark.ray

STEPS, RANKS = 3, 2
CLIPPED = (2, 21, 4)
"""Multiples of three among the samples of each step, counted by hand."""
TRAIN = "VERL_OTEL_ENABLED=1 python train.py"


@pytest.fixture(scope="module")
def done(example):
    ran = example("own_worker")
    ran.printed = ran.run_all()
    return ran


@pytest.fixture(scope="module")
def spans(done):
    return [span for span in done.spans() if span.name not in OF_BUSY_MACHINES]


def test_the_program_trains(done):
    """It prints the metrics that the workers returned."""
    lines = done.printed[TRAIN].splitlines()
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("step ")] == list(map(str, CLIPPED))


def test_a_step_is_one_trace_over_three_processes(spans):
    """Driver, call and both ranks are in one trace, and the user's own span is in the worker's."""
    assert Counter(span.name for span in spans) == {
        "verl.step": STEPS,
        "verl.phase.update_actor": STEPS,
        "verl.call update_actor": STEPS,
        "verl.worker PolicyWorker.update_actor": STEPS * RANKS,
        "forward_backward": STEPS * RANKS,
    }
    assert len({span.trace for span in spans}) == STEPS
    assert len({span.resource["process.pid"] for span in spans}) == 1 + RANKS
    by_id = {span.id: span for span in spans}
    parents = {(span.name, by_id[span.parent].name) for span in spans if span.parent}
    assert parents == {
        ("verl.phase.update_actor", "verl.step"),
        ("verl.call update_actor", "verl.phase.update_actor"),
        ("verl.worker PolicyWorker.update_actor", "verl.call update_actor"),
        ("forward_backward", "verl.worker PolicyWorker.update_actor"),
    }


def test_attributes_are_read_from_arguments_and_results(spans):
    """Batch size and loss of each rank; the span of the user has what it was given."""
    updates = [span.attributes for span in spans if span.name.startswith("verl.worker")]
    assert Counter(span["verl.batch.size"] for span in updates) == {3: 5, 60: 1}
    assert sorted(span["verl.loss"] for span in updates) == [2.0, 2.0, 5.0, 6.0, 8.0, 33.5]
    own = [span.attributes for span in spans if span.name == "forward_backward"]
    assert sum(span["clipped"] for span in own) == sum(CLIPPED)
    assert sorted(span["samples"] for span in own) == [3, 3, 3, 3, 3, 60]


def test_the_counter_adds_up_over_the_ranks(done):
    """Each rank has a series; together they are what the program printed."""
    values = done.last_values("policy.samples.clipped")
    assert len(values) == RANKS
    assert sum(values.values()) == sum(CLIPPED)


def test_step_2_is_explained_by_the_rank_with_more_samples(done, spans):
    """Report and explanation name step 2, its phase, and the process that had 60 samples."""
    assert "Step 2" in done.printed["verl-otel report"]
    explained = json.loads(done.printed["verl-otel explain --json"])
    assert explained["counts"]["steps"] == STEPS
    (second,) = (step for step in explained["steps"] if step["number"] == 2)
    assert second["phases"].keys() == {"update_actor"}
    longest = second["path_summed"][0]
    (late,) = (span for span in spans if span.attributes.get("samples") == 60)
    assert (longest["kind"], longest["seconds"]) == ("worker", pytest.approx(late.seconds, abs=0.1))
    instance = late.resource["service.instance.id"].rpartition("/")[2]
    assert f"the workers on {instance}" in done.printed["verl-otel explain --step 2"]
