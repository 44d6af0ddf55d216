# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: conditions, callbacks of users, and the best value of a scalar."""

import pytest

import verl_otel
from verl_otel.guards import engine
from verl_otel.guards.engine import BestMetric, make_guards

OFF = {"nan": 0, "kl": 0, "reward_fall": 0, "plateau": 0, "best_checkpoint": ""}


@pytest.fixture(autouse=True)
def no_callbacks():
    """Forget the callbacks of a test."""
    yield
    engine._callbacks.clear()


def test_nothing_is_on_by_default():
    guards = make_guards(**OFF)
    assert not guards.active
    assert guards.observe(1, {"actor/ppo_kl": float("nan")}) == engine.Decision()


def test_a_callback_sees_each_record_and_asks_for_a_stop_or_a_checkpoint():
    seen = []

    @verl_otel.on_record
    def watch(record):
        seen.append((record.step, record.values["a"]))
        if record.step == 2:
            record.checkpoint()
            record.stop("good enough")

    guards = make_guards(**OFF)
    assert guards.active
    assert guards.observe(1, {"a": 1.0}) == engine.Decision()
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
    ("text", "values", "best"),
    [
        ("acc", [0.1, 0.5, 0.4, float("nan"), 0.5, 0.6], [0.1, 0.5, None, None, None, 0.6]),
        ("max:acc", [-3.0, -2.0, -5.0], [-3.0, -2.0, None]),
        ("min:acc", [3.0, 4.0, 2.0, float("-inf")], [3.0, None, 2.0, None]),
    ],
)
def test_the_best_value(text, values, best):
    metric = BestMetric(text)
    assert [metric.observe({"acc": value}) for value in values] == best
    assert metric.observe({"other": 99.0}) is None


def test_a_key_may_have_a_colon():
    assert BestMetric("val-core/a:b/acc").key == "val-core/a:b/acc"
