# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer that derives from verl's and overrides ``fit`` and ``_validate``, with several rounds of generation in a step, trains for real."""

from collections import Counter

import pytest

from tests.builders.training_logs import find_unexpected
from tests.end_to_end import counts, modes
from verl_otel.analysis import reader

pytestmark = pytest.mark.verl
STEPS, ROUNDS = 3, 2
SAMPLES = 4 * 2
"""Samples that a round generates, and that a step trains on."""


@pytest.fixture(scope="module", params=["derived", "copied"])
def training(request, outs):
    """The training of ``dynamic_sampling.py``, whose trainer derives from verl's or is a copy."""
    name = "own_fit" if request.param == "derived" else "own_fit-copied"
    run = modes.share(name, lambda: modes.train_own_fit(outs / name, copied=request.param == "copied"))
    assert run.returncode == 0, run.log[-3000:]
    return run


def test_telemetry_says_nothing_unexpected(training):
    """No line of ours stands in the log."""
    assert find_unexpected(training.log) == []


def test_a_step_is_one_update_with_its_rounds(training):
    """Steps have the numbers of the trainer; each has the phases of all of its rounds."""
    spans = training.spans()
    steps = {span.trace: span.attributes["verl.step.number"] for span in spans if span.name == "verl.step"}
    assert sorted(steps.values()) == list(range(1, STEPS + 1))
    phases = Counter((steps[span.trace], span.name) for span in spans if span.name.startswith("verl.phase."))
    for number in range(1, STEPS + 1):
        assert phases[number, "verl.phase.gen"] == phases[number, "verl.phase.reward"] == ROUNDS
        assert phases[number, "verl.phase.update_actor"] == 1
    assert not counts.find_orphans(spans)


def test_half_of_the_trajectories_are_dropped(training):
    """The report counts those that a step trained on, and the tokens of the others as waste."""
    run = reader.read([training.folder])[0]
    assert [step.members for step in run.steps] == [SAMPLES] * STEPS
    assert run.counts.trained == SAMPLES * STEPS
    assert all(step.cost.wasted_tokens["dropped"] for step in run.steps)
    assert f"({SAMPLES * STEPS} trained on)" in training.report()


def test_verls_own_records_agree(training):
    """Everything that ran is there, also in the last step: worker calls as in Ray's timeline, trajectories, validations."""
    spans = training.spans()
    assert not counts.compare_workers(training, spans)
    assert not counts.compare_counts(training, spans)
    validations = [span.attributes["verl.step.number"] for span in spans if span.name == "verl.validation"]
    assert sorted(validations) == list(range(STEPS + 1))


def test_the_critical_path_leads_through_every_round(training):
    """Also through a trajectory that was filtered, if the round waited for that."""
    spans = training.spans()
    rounds = {span.trace: [] for span in spans if span.name == "verl.step"}
    for span in spans:
        if span.name == "verl.phase.gen":
            rounds[span.trace].append(span)
    for step in reader.read([training.folder])[0].steps:
        for phase in rounds[f"{step.trace_id:032x}"]:
            inside = [part for part in step.path if phase.start <= part.start_ns < phase.end]
            assert any(part.trace_id for part in inside)
