# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The overhead limiter: beyond the budget leaf spans are dropped, with one log line, and nothing else."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel._internal import error_boundary
from verl_otel.recording.state import RECORDER
from verl_otel.session import overhead_limiter as module
from verl_otel.session.overhead_limiter import WINDOW_SECONDS, OverheadLimiter

BUDGET = 0.01


@pytest.fixture(autouse=True)
def policy():
    """Leave the policy as it was."""
    RECORDER.sampling.clear()
    yield
    RECORDER.sampling.clear()


class Cost:
    """Telemetry that takes a share of a core, judged every ten seconds."""

    def __init__(self, budget=BUDGET):
        self.overhead_limiter, self.now, self.seconds = OverheadLimiter(budget), 1000.0, 5.0

    def go_on(self, share, seconds=WINDOW_SECONDS + 10):
        for _ in range(int(seconds / 10)):
            self.overhead_limiter.update(self.now, self.seconds)
            self.now += 10
            self.seconds += 10 * share
        self.overhead_limiter.update(self.now, self.seconds)

    def await_leaves(self):
        """Cost too much, then nothing until leaves are back; return for how long they were away."""
        self.go_on(2 * BUDGET)
        assert not RECORDER.sampling.leaf_spans
        begin = self.now
        while not RECORDER.sampling.leaf_spans:
            self.go_on(0, 10)
        return self.now - begin


def test_within_the_budget_nothing_is_left_out(caplog):
    """Below the budget leaves are kept and nothing is logged, and the share that is used is right."""
    cost = Cost()
    cost.go_on(BUDGET * 0.9, 600)
    assert RECORDER.sampling.leaf_spans
    assert cost.overhead_limiter.used == pytest.approx(0.9)
    assert caplog.records == []


def test_above_the_budget_leaves_are_left_out(caplog):
    """Above the budget leaves are left out after a minute, and one line names cost, limit, setting and what stays."""
    cost = Cost()
    cost.go_on(2 * BUDGET, 600)
    assert not RECORDER.sampling.leaf_spans
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for word in ("2.0 %", "1.0 %", "VERL_OTEL_CPU_BUDGET", "leaf spans", "steps, trajectories and metrics"):
        assert word in record.getMessage()


def test_a_short_burst_is_none():
    """Cost is judged over a minute: a burst of a second that is within the budget then changes nothing."""
    cost = Cost()
    cost.go_on(0, 120)
    cost.seconds += BUDGET * WINDOW_SECONDS * 0.9
    cost.go_on(0, 120)
    assert RECORDER.sampling.leaf_spans


def test_what_was_taken_before_does_not_count():
    """A restart excludes the cost of the imports at the start."""
    cost = Cost()
    cost.go_on(0.5, WINDOW_SECONDS - 10)
    cost.overhead_limiter.restart(cost.now, cost.seconds)
    cost.go_on(BUDGET / 2, 600)
    assert RECORDER.sampling.leaf_spans


def test_leaves_come_back_later_each_time(caplog):
    """Leaves come back when the cost has fallen below half the budget for some time, each time after twice as long; one line is logged."""
    cost = Cost()
    pauses = [cost.await_leaves() for _ in range(3)]
    assert pauses[0] < pauses[1] < pauses[2]
    assert len(caplog.records) == 1


def test_leaves_that_were_kept_for_long_come_back_as_soon_as_at_first():
    """A cost that comes an hour after leaves came back is a new matter: they are away for no longer than the first time."""
    cost, pauses = Cost(), []
    for _ in range(4):
        pauses.append(cost.await_leaves())
        cost.go_on(0.9 * BUDGET, 3600)
    assert pauses == [pauses[0]] * 4


def test_between_half_and_all_of_the_budget_nothing_changes():
    """What costs a little less than the budget without leaves would cost more with them: they stay away."""
    cost = Cost()
    cost.go_on(2 * BUDGET)
    cost.go_on(0.8 * BUDGET, 7200)
    assert not RECORDER.sampling.leaf_spans


def test_no_budget_is_no_limit():
    """With a budget of 0 nothing is ever left out, and no share of it is known."""
    cost = Cost(0)
    cost.go_on(0.9, 600)
    assert RECORDER.sampling.leaf_spans
    assert cost.overhead_limiter.used is None


@pytest.mark.full
@given(st.lists(st.floats(0, 0.005), min_size=1, max_size=40))
def test_a_cost_that_never_exceeds_the_budget_costs_nothing(shares):
    """Whatever the cost does below the budget, leaves are kept."""
    RECORDER.sampling.clear()
    cost = Cost()
    for share in shares:
        cost.go_on(share, 30)
    assert RECORDER.sampling.leaf_spans


def test_only_leaf_spans_are_left_out(recorded):
    """Without leaves a user's own spans are gone where nothing lies below, save those that failed or were asked for their ids."""
    RECORDER.sampling.leaf_spans = False
    with verl_otel.step(1), verl_otel.phase("gen"):
        with verl_otel.span("around"), verl_otel.tool("python"), verl_otel.span("spare"):
            pass
        with verl_otel.span("asked") as asked:
            asked.get_span_context()
        with pytest.raises(ValueError, match="no"), verl_otel.span("failed"):
            raise ValueError("no")
        with verl_otel.trajectory("uid"), verl_otel.turn(0), verl_otel.llm("qwen"), verl_otel.span("inner"):
            pass
    names = {span.name for span in recorded.spans}
    assert {"spare", "inner"} & names == set()
    assert names >= {
        "verl.step", "verl.phase.gen", "around", "execute_tool python", "asked", "failed", "verl.trajectory", "verl.turn",
    }  # fmt: skip
    assert RECORDER.sampling.left_out == 2
    span_ids = {span.span_id for span in recorded.spans}
    assert {span.parent_id for span in recorded.spans} <= {0, *span_ids}


def test_metrics_are_complete_without_leaves(recorded):
    """Every timed call is measured although none of them gets a span."""
    with verl_otel.timed("work", span=True):
        pass
    RECORDER.sampling.leaf_spans = False
    recorded.refresh()  # the calls that follow know
    for _ in range(500):
        with verl_otel.timed("work", span=True):
            pass
    assert recorded.value("work") == 501
    assert len(recorded.spans) == 1


@pytest.mark.full
def test_the_session_updates_the_limiter(start, wait_for, monkeypatch, swallow):
    """A session whose telemetry costs more than its budget leaves leaves out, and both metrics tell."""
    monkeypatch.setattr(module, "WINDOW_SECONDS", 0.1)
    files = start(drain_interval=0.05, metric_interval=50, cpu_budget=1e-6)

    def work():
        for _ in range(50):
            with verl_otel.step(1), verl_otel.span("spare"):
                pass
        return files.last("verl.otel.spans.dropped", reason="over budget")

    assert wait_for(work) > 0
    assert files.last("verl.otel.budget.used") > 1
    assert files.last("verl.otel.overhead", reason="recording") > 0
    assert "budget" in error_boundary._warned
    verl_otel.shutdown()
    assert files.names().count("verl.step") > files.names().count("spare")
