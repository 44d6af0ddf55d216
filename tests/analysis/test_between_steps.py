# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The time between two steps: what the trainer did in it, and what of it took too long."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import stories, texts
from verl_otel.analysis import reader
from verl_otel.cli import wording

STEPS = 9


def explain_run(story, slow=(), *, step=2.0, pause=0.3, by=None):
    """Explain a run of steps of two seconds with a log line after each, and a data loader.

    ``slow`` adds (step, name, seconds, attributes), as spans of the trainer or of a process of the role ``by``.
    """
    trainer = story.process()
    other = trainer if by is None else story.process(by)
    worker = story.process("actor_rollout_ref", verl__rank=0)
    now = 0.0
    for number in range(1, STEPS + 1):
        own = stories.step(trainer, number, now, now + step, [("update_actor", now, now + step - 0.1)])
        worker.span("verl.worker W.update_actor", now + 0.1, now + step - 0.2, own, verl__worker__method="update_actor")
        now += step + 0.05
        for when, name, seconds, attributes in slow:
            if when == number:
                other.span(name, now, now + seconds, **attributes)
                now += seconds + 0.01
        trainer.span("verl.logging", now, now + 0.02, verl__tracker="console")
        now += pause
    return reader.read([story.write()])[0]


def test_a_slow_tracker_is_named(story):
    """A tracker that hangs for 2.5 s after one step has a verdict, although no step took longer."""
    run = explain_run(story, [(5, "verl.logging", 2.5, {"verl__tracker": "wandb"})] + [
        (number, "verl.logging", 0.01, {"verl__tracker": "wandb"}) for number in range(1, STEPS + 1) if number != 5
    ])  # fmt: skip
    held = [step for step in run.steps if step.verdicts]
    assert [step.number for step in held] == [5]
    (verdict,) = held[0].verdicts
    assert (verdict.kind, verdict.cause, verdict.cause_name) == ("between", "logging", "wandb")
    assert verdict.seconds == pytest.approx(2.49, abs=0.01)
    assert held[0].between == pytest.approx(2.86, abs=0.02)
    text = texts.explain(run)
    assert "The next step started late: logging (wandb)" in text
    assert "Then 2.86 s until the next step" in text
    assert "logging" in run.steps[4].devices[0].nanoseconds


@pytest.mark.parametrize(
    ("name", "attributes", "cause"),
    [
        ("verl.data_loading", {}, "data_loading"),
        ("verl.validation", {}, "validation"),
        ("verl.checkpoint", {}, "checkpoint"),
        ("verl.phase.save_checkpoint", {}, "phase"),
        ("tidy up", {}, "between"),
    ],
)
def test_what_takes_longer_than_usual_is_named(story, name, attributes, cause):
    """Whatever lies between two steps is compared with the same work after other steps."""
    usual = [(number, name, 0.1, attributes) for number in range(1, STEPS) if number != 6]
    run = explain_run(story, [*usual, (6, name, 2.1, attributes)])
    (verdict,) = run.steps[5].verdicts
    assert (verdict.kind, verdict.cause, verdict.saved) == ("between", cause, pytest.approx(2.0, abs=0.01))
    assert not any(step.verdicts for step in run.steps if step.number != 6)
    if cause in ("phase", "between"):
        assert name.rpartition(".")[2] in wording.describe_verdict(verdict)


@pytest.mark.parametrize(("name", "expected"), [("verl.validation", [2]), ("verl.checkpoint", [])])
def test_a_first_validation_is_compared_with_later_ones(story, name, expected):
    """Rollouts have run before it. A first checkpoint makes its folders, and has no peers."""
    run = explain_run(story, [(2, name, 3.0, {}), *[(number, name, 1.0, {}) for number in (4, 6, 8)]])
    assert [step.number for step in run.steps if step.verdicts] == expected


@pytest.mark.parametrize("by", [None, "rollouter"])
def test_a_validation_as_planned_is_no_cause(story, by):
    """Validations of every third step, by the trainer or a rollouter it waits for, are compared with each other, not with steps that have none."""
    run = explain_run(story, [(number, "verl.validation", 3.0, {}) for number in (3, 6, 9)], by=by)
    assert not any(step.verdicts for step in run.steps)
    assert {kind: length for kind, _, length in run.steps[2].between_groups}["validation"] == 3_000_000_000


def test_what_is_slow_the_first_time_is_no_cause_after_a_restart(story):
    """Each attempt is a process that connects to its tracker again."""
    usual = [(number, "verl.logging", 0.1, {"verl__tracker": "wandb"}) for number in range(1, STEPS) if number != 6]
    story.manifest(attempts=[{"started": stories.T0}, {"started": stories.T0 + 12.2}])
    run = explain_run(story, [*usual, (6, "verl.logging", 2.1, {"verl__tracker": "wandb"})])
    assert [step.attempt for step in run.steps] == [1] * 5 + [2] * 4
    assert not any(step.verdicts for step in run.steps)


def test_own_code_between_steps_is_named(story):
    """Without a span it is the trainer's own time."""
    run = explain_run(story, [(4, "own", 0.0, {})])
    assert {kind for kind, _, _ in run.steps[0].between_groups} == {"between", "logging"}


def test_no_step_follows_the_last_one(story):
    """The time after it ends with the last record."""
    run = explain_run(story)
    first, last = (texts.explain_step(run, [run.steps[index]]) for index in (0, -1))
    assert "until the next step" in first
    assert "until the next step" not in last
    assert "until the last record" in last


def test_spans_around_the_whole_training_are_entered(story):
    """A user's span around the training does not hide what happens in it."""
    trainer = story.process()
    whole = trainer.span("main", 0, 10)
    stories.step(trainer, 1, 0, 2)
    trainer.span("verl.logging", 3, 4, whole, verl__tracker="file")
    stories.step(trainer, 2, 5, 8)
    first = reader.read([story.write()])[0].steps[0]
    assert ("logging", "file", 10**9) in first.between_groups


PERIODS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 50), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=3)),
    min_size=1,
    max_size=6,
)  # fmt: skip
NAMES = ("verl.logging", "verl.data_loading", "verl.validation")


@given(PERIODS, st.integers(0, 20))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_parts_of_all_periods_sum_up_to_the_run(tmp_path_factory, periods, after):
    """Time before the first step, critical paths of steps and paths between them make up the wall time, to the nanosecond."""
    story = stories.Story(tmp_path_factory.mktemp("run"))
    trainer = story.process()
    now = 7
    trainer.span("verl.warmup", 0, 3)
    for number, (length, pause, others) in enumerate(periods, 1):
        stories.step(trainer, number, now, now + length)
        for place, (begin, seconds) in enumerate(others):
            trainer.span(NAMES[place], now + begin, now + begin + seconds)
        now += length + pause
    trainer.span("last", now, now + after)
    run = reader.read([story.write()])[0]
    parts = sum(length for step in run.steps for _, _, length in (*step.groups, *step.between_groups))
    assert parts + run.steps[0].start_ns - run.start_ns == run.end_ns - run.start_ns
    for step in run.steps:
        assert sum(segment.end_ns - segment.start_ns for segment in step.between_path) == step.next_ns - step.end_ns
        assert all(sum(device.nanoseconds.values()) == step.next_ns - step.start_ns for device in step.devices)
