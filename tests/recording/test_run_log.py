# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The queue of the run log: records of steps, fields of users, levels, limits."""

import time

import pytest

import verl_otel
from verl_otel.recording import run_log
from verl_otel.semconv import logs


@pytest.fixture
def queue(recorded):
    """Keep records of level INFO, in a process that does not train."""
    run_log.configure(logs.INFO, 0)
    yield run_log
    run_log._reset()


def lines():
    """Return what was queued: scope, step, fields."""
    return [(record.scope, record.step, record.fields) for record in run_log.take()]


def test_a_call_is_a_record_with_its_trace(queue):
    """Outside of a training process each call is a record, with the ids of the current span and the number of its step."""
    with verl_otel.step(7) as step:
        verl_otel.log("reward", tps=2.5, note="x")
        ids = step.resolve()
    (record,) = run_log.take()
    assert (record.scope, record.step, dict(record.fields)) == ("reward", 7, {"tps": 2.5, "note": "x"})
    assert (record.trace_id, record.span_id, record.level) == (ids.trace_id, ids.span_id, logs.INFO)


def test_components_of_an_own_loop_are_a_record_of_their_step(queue, recorded):
    """As those of verl's trainers: mean, minimum and maximum of what the reward function returns beside the score."""

    @verl_otel.reward
    def score(right):
        return {"score": 0.5, "acc": right}

    with verl_otel.step(7):
        for index in range(4):
            with verl_otel.trajectory("p", index):
                score(float(index == 0))
    recorded.refresh()
    (record,) = run_log.take()
    assert (record.scope, record.step) == ("reward", 7)
    assert dict(record.fields) == {"acc_mean": 0.25, "acc_min": 0.0, "acc_max": 1.0}


def test_fields_are_merged_into_the_record_of_their_step(queue):
    """In the process that trains, fields wait for the record of their step; the last value counts, and other scopes get a record of their own."""
    run_log.begin_run()
    verl_otel.log("rollout", tps=1.0)
    verl_otel.log("system", gpu=3)
    verl_otel.log("rollout", tps=2.0, extra=True)
    assert lines() == []
    run_log.add_step("rollout", 4, {"reward_mean": 0.5})
    run_log.end_step(4)
    run_log.add_step("rollout", 5, {"reward_mean": 0.6})
    assert lines() == [
        ("rollout", 4, {"reward_mean": 0.5, "tps": 2.0, "extra": True}),
        ("system", 4, {"gpu": 3}),
        ("rollout", 5, {"reward_mean": 0.6}),
    ]


def test_fields_of_another_step_have_its_number(queue):
    run_log.begin_run()
    verl_otel.log("rollout", step=7, late=1)
    verl_otel.log("rollout", step=8, now=1)
    verl_otel.log("rollout", always=1)
    run_log.add_step("rollout", 8, {"reward_mean": 0.5})
    run_log.end_step(8)
    run_log.end_step(9)
    assert [(record.step, record.fields) for record in run_log.take()] == [
        (8, {"reward_mean": 0.5, "now": 1, "always": 1}),
        (7, {"late": 1}),
    ]


def test_levels(queue):
    """A record below the level is not kept; an unknown level counts as INFO; a step of its own is used."""
    for level in ("debug", "INFO", "error", "loud"):
        verl_otel.log("a", level=level, step=3)
    assert [record.level for record in run_log.take()] == [logs.INFO, logs.ERROR, logs.INFO]
    verl_otel.log("a", step=3, level="info", scope="x", timestamp=1)
    assert lines() == [("a", 3, {"scope_": "x", "timestamp_": 1})]


def test_debug_ends_after_its_time(queue, monkeypatch):
    """Records of level DEBUG end after the configured time, the others do not."""
    run_log.configure(logs.DEBUG, 100)
    verl_otel.log("a", level="debug")
    now = time.monotonic()
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now + 101)
    verl_otel.log("a", level="debug")
    verl_otel.log("b")
    assert [scope for scope, _, _ in lines()] == ["a", "b"]


def test_a_full_queue_drops_and_counts(queue, monkeypatch):
    """Nothing waits without a limit."""
    monkeypatch.setattr(run_log, "MAX_RECORDS", 2)
    for _ in range(5):
        verl_otel.log("a")
    assert (len(run_log.take()), run_log.count_dropped()) == (2, 3)


def test_values_that_cannot_be_read(queue):
    """Any object may be given; none is kept as itself."""
    verl_otel.log("a", thing=object(), items=[1, 2], none=None)
    ((_, _, fields),) = lines()
    assert fields["items"] == (1, 2)
    assert "object" in fields["thing"]


def test_the_bytes_of_waiting_records_are_bounded(queue, monkeypatch):
    """Long texts are dropped and counted beyond a share of the memory limit, as records and as fields that wait for their step."""
    monkeypatch.setattr(run_log, "find_limit", lambda: 100_000)
    for number in range(100):
        verl_otel.log("samples", answer="x" * 4000, number=number)
    taken = run_log.take()
    assert 10 < len(taken) < 25
    assert run_log.count_dropped() == 100 - len(taken)
    verl_otel.log("samples", answer="x" * 4000)
    assert len(run_log.take()) == 1, "what was taken takes no room"
    run_log.begin_run()
    for _ in range(100):
        verl_otel.log("samples", answer="x" * 4000)
    assert sum(map(len, (fields["answer"] for *_, fields in run_log._Log.pending))) < 100_000
    run_log.end_step(1)
    run_log.take()
    verl_otel.log("samples", answer="y" * 4000)
    assert len(run_log._Log.pending) == 1
