# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What guards decide: conditions, callbacks of users, and the best value of a scalar."""

import pytest

import verl_otel
from verl_otel.guards import decisions
from verl_otel.guards.decisions import BestMetric, make_guards

OFF = {"nan": 0, "kl": 0, "reward_fall": 0, "plateau": 0, "best_checkpoint": ""}


@pytest.fixture(autouse=True)
def no_callbacks():
    """Forget the callbacks of a test."""
    yield
    decisions._callbacks.clear()


def test_nothing_stops_by_default():
    guards = make_guards(**OFF)
    assert guards.observe(1, {"actor/ppo_kl": float("nan")}) == decisions.Decision()


def test_a_callback_sees_each_record_and_asks_for_a_stop_or_a_checkpoint():
    seen = []

    @verl_otel.on_record
    def watch(record):
        seen.append((record.step, record.values["a"]))
        if record.step == 2:
            record.checkpoint()
            record.stop("good enough")

    guards = make_guards(**OFF)
    assert guards.observe(1, {"a": 1.0}) == decisions.Decision()
    decision = guards.observe(2, {"a": 2.0})
    assert seen == [(1, 1.0), (2, 2.0)]
    assert decision.checkpoint
    assert decision.stop == ("callback", 2, "good enough")


def test_a_callback_that_fails_is_logged_once_and_changes_nothing(caplog):
    @verl_otel.on_record
    def broken(record):
        raise ZeroDivisionError("mine")

    guards = make_guards(**{**OFF, "nan": 1})
    for step in (1, 2):
        assert guards.observe(step, {"actor/grad_norm": float("nan")}).stop is not None or step == 2
    assert caplog.text.count("ZeroDivisionError('mine')") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_of_the_user_passes(error):
    @verl_otel.on_record
    def leave(record):
        raise error

    with pytest.raises(error):
        make_guards(**OFF).observe(1, {})


@pytest.mark.parametrize(
    ("text", "values", "read"),
    [
        ("acc", {"acc": 0.5, "other": 1.0}, 0.5),
        ("min:acc", {"acc": -3.0}, -3.0),
        ("acc", {"other": 99.0}, None),
        ("acc", {"acc": float("nan")}, None),
        ("acc", {"acc": float("inf")}, None),
        ("min:acc", {"acc": float("-inf")}, None),
    ],
)
def test_each_step_has_its_value_of_the_best_checkpoint(text, values, read):
    """Also one that is worse than a step before: whether that was saved is not known yet."""
    guards = make_guards(**{**OFF, "best_checkpoint": text})
    guards.observe(1, {"acc": 0.9})
    assert guards.observe(2, values).value == read


@pytest.mark.parametrize(("text", "best"), [("acc", 3), ("max:acc", 3), ("min:acc", 1)])
def test_the_best_of_some_steps_is_the_first_one_of_equals(text, best):
    metric = BestMetric(text)
    assert metric.choose({4: 0.5, 3: 0.5, 2: -0.1, 1: -0.1}) == best
    assert metric.choose({}) is None


def test_names_of_the_run_log_mean_the_scalars_of_verl():
    """Guides for monitoring verl write ``rollout/reward_mean``; what an earlier attempt kept by verl's key is compared with."""
    scalars = {"critic/rewards/mean": 0.25, "actor/ppo_kl": 0.02, "actor/entropy_loss": 1.5}
    for name, key in (("rollout/reward_mean", "critic/rewards/mean"), ("ppo/kl_div", "actor/ppo_kl")):
        assert make_guards(**{**OFF, "best_checkpoint": name}).observe(1, scalars).value == scalars[key]
        assert BestMetric(f"min:{name}").name == BestMetric(f"min:{key}").name
    assert BestMetric("ppo/entropy").read(scalars) == 1.5, "an older release of verl has another key"
    assert BestMetric("rollout/reward_mean").read({**scalars, "rollout/reward_mean": 9.0}) == 9.0, (
        "a trainer's own scalar"
    )


def test_a_callback_sees_the_names_of_the_run_log_as_well():
    seen = {}

    @verl_otel.on_record
    def watch(record):
        seen.update(record.values)

    make_guards(**OFF).observe(1, {"critic/rewards/mean": 0.25, "actor/ppo_kl": 0.3, "mine": 1.0})
    assert seen["rollout/reward_mean"] == seen["critic/rewards/mean"] == 0.25
    assert seen["ppo/kl_div"] == 0.3
    assert "ppo/policy_loss" not in seen, "verl did not log it"


def test_a_scalar_of_the_best_checkpoint_that_is_not_there_is_reported_once(caplog):
    guards = make_guards(**{**OFF, "best_checkpoint": "rollout/reward_maen"})
    for step in (1, 2, 3):
        guards.observe(step, {"critic/rewards/mean": 1.0, "actor/ppo_kl": 0.0})
    guards.end()
    (line,) = caplog.messages
    assert "step 1 has no scalar rollout/reward_maen" in line
    assert "did you mean rollout/reward_mean" in line


def test_a_validation_score_is_expected_where_verl_validates(caplog):
    guards = make_guards(**{**OFF, "best_checkpoint": "val-core/math/acc/mean@1"})
    guards.observe(1, {"actor/ppo_kl": 0.0})
    assert not caplog.messages
    guards.observe(2, {"actor/ppo_kl": 0.0, "val-core/math/acc/mean@8": 0.5})
    (line,) = caplog.messages
    assert "step 2 has no scalar val-core/math/acc/mean@1" in line
    assert "did you mean val-core/math/acc/mean@8" in line


def test_a_scalar_that_is_there_is_not_reported(caplog):
    guards = make_guards(**{**OFF, "best_checkpoint": "min:ppo/kl_div"})
    guards.observe(1, {"actor/ppo_kl": float("nan")})
    guards.observe(2, {})
    guards.end()
    assert not caplog.messages


def test_alerts_of_a_callback_stop_nothing():
    @verl_otel.on_record
    def watch(record):
        for number in range(100):
            record.alert(f"seen {number}")

    decision = make_guards(**OFF).observe(1, {})
    assert decision.stop is None
    assert decision.alerts[:2] == ("seen 0", "seen 1")
    assert len(decision.alerts) == decisions.MAX_ALERTS


def test_a_silent_fault_is_reported_and_stops_nothing():
    """Without any guard: from one step on the engine serves other weights than the trainer has."""
    guards, key = make_guards(**OFF), "training/rollout_probs_diff_mean"
    found = [guards.observe(step, {key: 0.004 if step < 20 else 0.05}) for step in range(1, 25)]
    (reported,) = (step for step, decision in enumerate(found, 1) if decision != decisions.Decision())
    assert (reported, found[19].stop) == (20, None)
    (text,) = found[19].alerts
    assert (
        text
        == "the engine's probabilities differ from the trainer's by 0.05 in the mean, after 0.004 in the steps before"
    )


def test_a_key_may_have_a_colon():
    assert BestMetric("val-core/a:b/acc").key == "val-core/a:b/acc"
