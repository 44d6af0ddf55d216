# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Guards in a trainer: what they change there, and what they record."""

import json
import threading
from types import SimpleNamespace

import pytest

import verl_otel
from verl_otel.guards import decisions
from verl_otel.integrations.verl import guards, tracking, training
from verl_otel.recording import run_log
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.semconv import logs


@pytest.fixture
def run(recorded, monkeypatch, tmp_path):
    """The guards of a run with these settings, and a trainer that has ten steps."""
    facts = {}
    monkeypatch.setattr(guards, "record_run", facts.update)

    def begin(**settings):
        config = {
            "stop_on_nan": 0,
            "stop_on_kl": 0,
            "stop_on_reward_fall": 0,
            "stop_on_plateau": 0,
            "best_checkpoint": "",
            "health_profile": "default",
            "run_path": tmp_path,
        }
        session = SimpleNamespace(config=SimpleNamespace(**{**config, **settings}))
        monkeypatch.setattr(guards, "current_session", lambda: session)
        guards.begin_run()
        assert facts.pop("health_profile")
        assert facts.pop("health_thresholds")
        trainer = SimpleNamespace(total_training_steps=10, saved=[], config=None)
        trainer._save_checkpoint = lambda: trainer.saved.append(1)
        guards.watch(trainer)
        return trainer, facts

    yield begin
    decisions._callbacks.clear()
    training.begin()
    guards.watch(None)


def read_events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_stop_makes_the_next_step_the_last(recorded, run, caplog):
    trainer, facts = run(stop_on_nan=2)
    for step in (1, 2, 3):
        guards.observe({"actor/grad_norm": float("nan"), "text": "x"}, step)
    assert trainer.total_training_steps == 3
    assert guards.is_stopped()
    assert facts == {"stopped_by": "nan", "stopped_at_step": "2", "stop_reason": "actor/grad_norm is nan, for 2 steps"}
    assert caplog.text.count("guard nan stops the training after step 3") == 1


def test_a_stop_is_an_event_of_the_run_and_a_span_that_is_linked_to_the_step(recorded, run, tmp_path):
    """The span of the step has ended when verl logs its scalars."""
    run(stop_on_nan=1)
    with Span(CallSite("step", hook=True), {"verl.step.number": 4}) as step:
        run_log.begin_step(step)
    guards.observe({"actor/grad_norm": float("nan")}, 4)
    (event,) = read_events(tmp_path)
    assert (event["kind"], event["text"]) == ("stopped", "guard nan after step 4: actor/grad_norm is nan")
    assert event["detail"] == {"guard": "nan", "step": 4, "last_step": 5}
    (stop,) = (span for span in recorded.spans if span.name == "verl.guard.stop")
    assert dict(stop.attributes) == {
        "verl.guard.name": "nan", "verl.guard.text": "actor/grad_norm is nan", "verl.step.number": 4
    }  # fmt: skip
    assert stop.status == 2
    (ended,) = (span for span in recorded.spans if span.name == "verl.step")
    assert [(link.span_id, link.attributes["verl.link.type"]) for link in stop.links] == [(ended.span_id, "stopped")]


def test_events_that_cannot_be_written_prevent_no_stop(run, tmp_path, caplog):
    trainer, _ = run(stop_on_nan=1)
    (tmp_path / "events.jsonl").mkdir()
    guards.observe({"actor/grad_norm": float("nan")}, 4)
    assert trainer.total_training_steps == 5
    assert "an event cannot be written" in caplog.text


def test_an_alert_is_a_line_a_record_and_an_event(run, tmp_path, caplog):
    trainer, facts = run()
    run_log.configure(logs.INFO, 0)
    try:
        verl_otel.on_record(lambda record: record.alert("answers are short") if record.step == 2 else None)
        for step in (1, 2, 3):
            guards.observe({"a": 1.0}, step)
        (record,) = run_log.take()
    finally:
        run_log.configure(logs.OFF, 0)
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        "verl-otel: alert at step 2: answers are short"
    ]
    assert (record.scope, record.step, record.fields) == ("alert", 2, {"text": "answers are short"})
    assert record.level == logs.WARNING
    (event,) = read_events(tmp_path)
    assert (event["kind"], event["text"], event["detail"]) == ("alert", "step 2: answers are short", {"step": 2})
    assert (trainer.total_training_steps, facts) == (10, {})


def test_guards_have_the_thresholds_of_the_profile(run, tmp_path):
    """A KL of 0.3 stops a run, unless the profile allows it."""
    path = tmp_path / "own.toml"
    path.write_text("policy_kl_stop = 0.4\n")
    for profile, total in (("default", 4), (str(path), 10)):
        trainer, _ = run(stop_on_kl=1, health_profile=profile)
        guards.observe({"actor/ppo_kl": 0.3}, 3)
        assert trainer.total_training_steps == total


@pytest.mark.parametrize("text", [None, "policy_kl_stop = high", b"\xff\xfe".decode("latin-1")])
def test_a_profile_that_cannot_be_used_is_said_and_the_defaults_apply(run, tmp_path, caplog, text):
    path = tmp_path / f"own-{text and len(text)}.toml"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    trainer, _ = run(stop_on_kl=1, health_profile=str(path))
    guards.observe({"actor/ppo_kl": 0.3}, 3)
    assert trainer.total_training_steps == 4
    assert str(path) in caplog.text


def test_a_stop_never_lengthens_a_training(run):
    trainer, _ = run(stop_on_nan=1)
    guards.observe({"actor/grad_norm": float("nan")}, 10)
    assert trainer.total_training_steps == 10


def test_off_changes_nothing(run):
    trainer, facts = run()
    guards.observe({"actor/grad_norm": float("nan")}, 1)
    assert (trainer.total_training_steps, facts, guards.is_stopped()) == (10, {}, False)


def test_the_validation_before_training_is_not_seen(run):
    run(stop_on_nan=1)
    guards.observe({"actor/grad_norm": float("nan")}, 0)
    assert not guards.is_stopped()


def test_a_trainer_without_a_number_of_steps_is_told_of(run, caplog):
    trainer, _ = run(stop_on_nan=1)
    del trainer.total_training_steps
    guards.observe({"actor/grad_norm": float("nan")}, 4)
    assert "this trainer cannot be stopped" in caplog.text
    assert not guards.is_stopped()


def test_a_callback_gets_its_checkpoint(run):
    trainer, _ = run()
    verl_otel.on_record(lambda record: record.checkpoint() if record.step == 2 else None)
    for step in (1, 2, 3):
        guards.observe({"a": 1.0}, step)
    assert trainer.saved == [1]


def test_a_checkpoint_that_fails_does_not_prevent_the_stop(run, swallow):
    """The guard reports what it has found once: the stop must not depend on what else is done in that step."""
    trainer, _ = run(stop_on_nan=1)
    trainer._save_checkpoint = lambda: 1 / 0
    verl_otel.on_record(lambda record: record.checkpoint())
    guards.observe({"actor/grad_norm": float("nan")}, 4)
    assert trainer.total_training_steps == 5


# -- the exit code of the driver --


@pytest.fixture
def program(recorded, monkeypatch):
    """A program of Hydra's, decorated after the hook was installed; returns it and the store of the cluster."""
    store = {}
    monkeypatch.setattr(guards.cluster_store, "is_connected", lambda: True)
    monkeypatch.setattr(guards.cluster_store, "read", store.get)
    monkeypatch.setattr(guards.cluster_store, "delete", lambda key: store.pop(key, None))
    monkeypatch.setattr(guards, "_key", lambda: b"key")

    def main(config_path=None, config_name=None):
        """Hydra's decorator."""
        return lambda task: lambda: task(config_name)

    decorated = guards._wrap_main(main)(config_name="ppo_trainer")(lambda name: f"trained {name}")
    return decorated, store


def test_a_program_that_was_stopped_exits_with_3(program, caplog):
    decorated, store = program
    store[b"key"] = b"nan: actor/grad_norm is nan"
    with pytest.raises(SystemExit) as ended:
        decorated()
    assert ended.value.code == 3
    assert "stopped by guard nan: actor/grad_norm is nan" in caplog.text
    assert store == {}, "the next training of this driver is not stopped"


def test_a_store_that_does_not_answer_does_not_hold_the_exit(program, monkeypatch):
    """The driver waits for a bounded time, and ends as without us. A late answer asks nothing of Ray, which may have been shut down."""
    decorated, _ = program
    answered, asking = threading.Event(), []
    monkeypatch.setattr(guards, "STORE_SECONDS", 0.1)
    monkeypatch.setattr(guards.cluster_store, "read", lambda key: answered.wait(60) and None)
    monkeypatch.setattr(guards, "_key", lambda: asking.append(threading.current_thread()) or b"key")
    try:
        assert decorated() == "trained ppo_trainer"
        assert not answered.is_set()
    finally:
        answered.set()
    assert asking == [threading.current_thread()]


def test_the_end_of_a_run_reports_a_best_checkpoint_that_was_never_chosen(run, monkeypatch, caplog):
    run(best_checkpoint="val-core/math/acc/mean@1")
    guards.observe({"actor/ppo_kl": 0.1}, 1)
    monkeypatch.setattr(training.current, "state", tracking.RunState.RUNNING)
    tracking.end_run(failed=False)
    assert caplog.text.count("no step had the scalar val-core/math/acc/mean@1") == 1
