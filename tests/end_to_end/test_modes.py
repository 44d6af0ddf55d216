# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every way in which verl trains gives a whole picture, counted against the bed's and Ray's own records."""

from collections import Counter

import pytest

from tests.builders.training_logs import find_unexpected
from tests.end_to_end import counts, modes, modes_page
from tests.recount.product import Product
from verl_otel.analysis import reader

pytestmark = pytest.mark.verl

MARKS = {"sync": (pytest.mark.smoke,), "separate_async": (), "tools": ()}
"""Modes that ``make test`` or ``make test-full`` runs; ``make matrix`` runs all."""
SHARED = {"sync": "full", "tools": "tool_run"}
"""Modes whose training other tests read, too."""
LOGGED = {
    ("rollout", "response_length_mean"): "response_length/mean",
    ("ppo", "policy_loss"): "actor/pg_loss",
    ("ppo", "grad_norm"): "actor/grad_norm",
    ("training", "step_seconds"): "timing_s/step",
}
"""Scope and field of the run log, and the key of verl whose value it is. Rewards are those of all local steps of a step, which verl logs in part
(`tests/recount` counts them)."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name, (pytest.mark.matrix,))) for name in modes.MODES],
)
def run(request, outs):
    """Name of a mode, the mode, its training and its spans."""
    name = request.param
    if request.config.getoption("matrix"):
        modes_page.forget(name)
    if name in SHARED:
        training = request.getfixturevalue(SHARED[name])
    else:
        training = modes.share(name, lambda: modes.train(name, outs / name))
    assert training.returncode == 0, training.log[-3000:]
    spans = training.spans()
    return name, modes.MODES[name], training, spans


def test_telemetry_says_nothing_unexpected(run):
    """No line of ours stands in the log of a training that goes well."""
    _, _, training, _ = run
    assert find_unexpected(training.log) == []


def test_every_step_is_there(run):
    """There is one step for each that verl made, numbered without a gap, with its phases."""
    _, mode, _, spans = run
    steps = [span for span in spans if span.name == "verl.step"]
    assert sorted(span.attributes["verl.step.number"] for span in steps) == list(range(1, mode.steps + 1))
    phases = Counter(span.name for span in spans if span.name.startswith("verl.phase."))
    assert phases["verl.phase.gen"] == phases["verl.phase.update_actor"] == mode.steps * mode.updates


def test_nothing_is_an_orphan(run):
    """Every parent and every link target is in the files, no id twice."""
    *_, spans = run
    assert not counts.find_orphans(spans)


def test_spans_equal_the_beds_own_log(run):
    """There are as many trajectories, LLM calls on both sides, tool calls and rewards as the bed counted."""
    _, _, training, spans = run
    assert not counts.compare_counts(training, spans)


def test_worker_spans_equal_rays_own_timeline(run):
    """Every method of a worker ran as often as Ray's timeline says."""
    _, _, training, spans = run
    assert not counts.compare_workers(training, spans)


def test_every_trajectory_is_a_tree(run):
    """Below every trajectory lie its LLM calls with their server side, and its reward."""
    *_, spans = run
    assert not counts.find_broken_trees(spans)


def test_every_trajectory_was_submitted_by_somebody(run):
    """Each trajectory is linked to the step, validation or warm-up that submitted it."""
    name, mode, _, spans = run
    if not mode.submitted:
        pytest.skip(f"{name}: its rollouts run on their own, no step submits them")
    assert not counts.find_unsubmitted(spans)


def test_each_consumed_sample_is_linked_once(run):
    """Each step is linked to the trajectories that it trained on, each of them once, none of validation."""
    _, mode, _, spans = run
    consumed = counts.read_consumed(spans)
    validated = {span.trace for span in spans if span.attributes.get("verl.validate")}
    assert Counter(number for number, _ in consumed) == dict.fromkeys(range(1, mode.steps + 1), mode.samples)
    assert len({trace for _, trace in consumed}) == len(consumed)
    assert not validated & {trace for _, trace in consumed}


def test_the_critical_path_is_the_whole_step(run):
    """What each step waited for is an unbroken chain from its start to its end, as long as the step by the spans themselves."""
    _, _, training, spans = run
    explained = {step.trace_id: step for step in reader.read([training.folder])[0].steps}
    for span in (each for each in spans if each.name == "verl.step"):
        step = explained.pop(int(span.trace, 16))
        edges = [step.start_ns, *(segment.end_ns for segment in step.path)]
        assert [segment.start_ns for segment in step.path] == edges[:-1]
        assert abs(sum(segment.end_ns - segment.start_ns for segment in step.path) / 1e9 - span.seconds) < 0.001
    assert not explained


def test_gpu_time_adds_up(run):
    """Every nanosecond of every GPU has one cause, from the first span of the run to the last, in each step's window, too."""
    _, mode, training, spans = run
    explained = reader.read([training.folder])[0]
    assert len(explained.devices) == mode.devices
    assert explained.start_ns <= min(span.start for span in spans)
    assert explained.end_ns >= max(span.end for span in spans)
    assert {sum(device.nanoseconds.values()) for device in explained.devices} == {explained.end_ns - explained.start_ns}
    windows = [step.start_ns for step in explained.steps[1:]]
    for step, end in zip(explained.steps, windows, strict=False):
        assert {sum(device.nanoseconds.values()) for device in step.devices} == {end - step.start_ns}


@pytest.mark.full
def test_only_what_was_planted_gets_a_verdict(run):
    """A planted cause gets a verdict; a healthy step gets none, unless verl's own timers saw the same delay."""
    _, mode, training, _ = run
    steps = reader.read([training.folder])[0].steps
    assert set(mode.held) <= {step.number for step in steps if step.verdicts}
    assert not counts.find_unconfirmed(training, steps, mode.held)


@pytest.mark.full
def test_the_run_log_has_verls_own_numbers(run):
    """Each step that verl logged has one record of each scope, with the values of verl's own file logger."""
    _, _, training, _ = run
    product = Product(training.folder)
    for (scope, field), key in LOGGED.items():
        logged = {step: data[key] for step, data in training.scalars().items() if key in data}
        assert product.logged(scope, field) == logged, key


@pytest.mark.full
def test_tensorboard_has_verls_own_numbers(run):
    """Each of verl's keys is a tag with the same steps and values, read by TensorBoard itself."""
    _, _, training, _ = run
    shown = Product(training.folder).tensorboard
    scalars = training.scalars()
    for key in {key for data in scalars.values() for key in data}:
        expected = [(step, pytest.approx(data[key], rel=1e-6)) for step, data in scalars.items() if key in data]
        assert shown[key] == expected, key


@pytest.mark.full
def test_what_was_counted_goes_to_the_page(run, request, passed):
    """The last test of a mode: its numbers are kept for docs/reference/modes.md where every other test has found them right."""
    name, _, training, spans = run
    tests = {each for each in vars(request.module) if each.startswith("test_")} - {request.function.__name__}
    lacking = tests - passed[name]
    if lacking:
        pytest.skip(f"{name}: not kept, these have not passed: {sorted(lacking)}")
    modes_page.keep(name, training, spans)
