# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What users report through the functions of ``rl_insight``: metrics, states, spans, sessions and addresses."""

import asyncio
import importlib
import importlib.util
import inspect
import time

import pytest

import verl_otel
from verl_otel import session
from verl_otel.integrations import rl_insight_shim as shim
from verl_otel.session import prometheus_targets as session_targets

REAL = importlib.util.find_spec("rl_insight") is not None
pytestmark = pytest.mark.skipif(REAL, reason="the real rl-insight is installed here")


@pytest.fixture(autouse=True)
def forget():
    """Begin with no metric known."""
    shim._instruments.clear()
    yield
    shim._instruments.clear()


def test_metrics_of_users(recorded, insight):
    """Counters, gauges and histograms come out under their names, with documentation and labels."""
    for _ in range(2):
        insight.metric_count("seen", documentation="How many.", value="a label of any name")
        insight.metric_gauge("size", 2.0, kind=3)
        insight.metric_histogram("took", 0.5)
    assert recorded.value("seen", value="a label of any name") == 2
    assert recorded.value("size", kind="3") == 2.0
    assert recorded.value("took") == 2
    (point,) = [point for point in recorded.points if point.instrument.name == "seen"]
    assert (point.instrument.kind, point.instrument.description) == ("counter", "How many.")


def test_metrics_are_bounded_and_odd_ones_do_no_harm(recorded, insight, caplog):
    """A thousand names are kept, with one line; what is no number, or has another kind's name, is left out."""
    insight.metric_gauge("known", 1)
    insight.metric_gauge("known", "no number")
    insight.metric_count("known")
    for number in range(1100):
        insight.metric_gauge(f"step_{number}", number)
    insight.metric_gauge("known", 2)
    names = {point.instrument.name for point in recorded.points}
    assert len([name for name in names if name.startswith("step_")]) == shim.MAX_METRICS - 2
    assert recorded.value("known") == 2
    assert caplog.text.count("more than 1000 metrics through rl_insight") == 1


@pytest.mark.parametrize(
    ("name", "lane", "kept"),
    [
        ("train_batch", "rank_0", False),
        ("vllm_generate", "replica_3", False),
        ("sglang_generate", "replica_0", False),
        ("train_batch", "mine", True),
        ("train_batch", None, True),
        ("vllm_generate", "rank_0", True),
        ("encode", "rank_0", True),
        ("encode", 7, True),
    ],
)
def test_states(recorded, insight, name, lane, kept):
    """A state is a span in its trace, unless verl itself reports it, which our hooks have recorded."""
    with verl_otel.span("outer"), insight.trace_state(name, state_lane_id=lane, color="red"):
        pass
    assert (len(recorded.spans) == 2) is kept
    if kept:
        expected = {"color": "red"} if lane is None else {"color": "red", "state_lane_id": lane}
        assert recorded.span(name).attributes == expected
        assert recorded.span(name).parent_id == recorded.span("outer").span_id


def report(insight, before, submitted):
    """Report spans that have ended: from now on, from before everything, from before the trajectory, and with an end before its start."""
    now = time.time_ns()
    insight.trace_span(
        name="inside", start_time_ns=now, end_time_ns=now + 5_000_000, attributes={"a": [1, 2], "now": now}
    )
    insight.trace_span(name="before", start_time_ns=before - 10**9, end_time_ns=before, attributes={})
    insight.trace_span(name="submitted", start_time_ns=submitted, end_time_ns=now, attributes={})
    insight.trace_span(name="backwards", start_time_ns=now, end_time_ns=now - 1, attributes={})


@pytest.mark.full
def test_finished_spans_have_the_times_that_are_given(recorded, insight):
    """A finished span is the child of what was open when it began; one from before that is a trace of its own."""
    before = time.time_ns()
    with verl_otel.span("outer"):
        time.sleep(0.002)
        submitted = time.time_ns()
        time.sleep(0.002)
        insight.trace_span(name="sibling", start_time_ns=submitted, end_time_ns=submitted + 1, attributes={})
        with verl_otel.trajectory("u", 0):
            report(insight, before, submitted)
    inside, earlier = recorded.span("inside"), recorded.span("before")
    now = inside.attributes["now"]
    assert recorded.span("sibling").parent_id == recorded.span("outer").span_id
    assert inside.parent_id == recorded.span("verl.trajectory").span_id
    assert (inside.start_ns, inside.end_ns) == (pytest.approx(now, abs=1000), pytest.approx(now + 5_000_000, abs=1000))
    assert inside.attributes["a"] == (1, 2)
    assert (earlier.parent_id, recorded.span("submitted").parent_id) == (0, 0), (
        "what submits a trajectory is not around it"
    )
    assert earlier.trace_id not in (recorded.span("outer").trace_id, inside.trace_id)
    assert recorded.span("backwards").start_ns == recorded.span("backwards").end_ns


def test_operations_sync_and_async(recorded, insight, caplog):
    """A decorated function is a span each call, with static labels and those made from its first argument."""

    class Loop:
        shard = 4

        @insight.trace_op("sync", extra_labels=lambda self: {"shard": self.shard}, kind="a")
        def sync(self, x, *, y=1):
            return x + y

        @insight.trace_op(extra_labels=lambda self: {"shard": self.shard})
        async def wait(self):
            await asyncio.sleep(0)
            raise ValueError("mine")

        @insight.trace_op("fails", extra_labels=lambda self: self.nothing, kind="b")
        def fails(self):
            return 5

    assert Loop().sync(1, y=2) == 3
    assert inspect.iscoroutinefunction(Loop.wait)
    with pytest.raises(ValueError, match="mine"):
        asyncio.run(Loop().wait())
    assert Loop().fails() == 5
    assert recorded.span("sync").attributes == {"kind": "a", "shard": 4}
    (wait,) = [span for span in recorded.spans if span.name.endswith("Loop.wait")]
    assert (wait.attributes["shard"], wait.attributes["error.type"]) == (4, "ValueError")
    assert recorded.span("fails").attributes == {"kind": "b"}
    assert "extra_labels of fails failed" in caplog.text


def test_a_session_inside_a_trajectory_is_no_second_span(recorded, insight):
    """How a session ended stands on the trajectory around it; elsewhere the session is a trajectory with its identity."""
    with verl_otel.trajectory("u", 0):
        insight.agent_loop_session(experiment_name="e", sample=1, session=2).finish(trajectories=[], status="ok")
    assert [span.name for span in recorded.spans] == ["verl.trajectory"]
    assert recorded.spans[0].attributes["status"] == "ok"
    alone = insight.agent_loop_session(experiment_name="e", sample=1, session=2, uid="u", global_steps=3)
    assert alone.identity["state_lane_id"] == "experiment=e/sample=1/session=2/traj=0"
    alone.finish(trajectories=[1], status="failure", reward_source="r", finished=False)
    found = recorded.spans[-1].attributes
    assert recorded.spans[-1].name == "verl.trajectory"
    assert (found["uid"], found["global_steps"], found["status"], found["finished"]) == ("u", 3, "failure", False)
    assert (found["verl.sample.uid"], found["verl.rollout.index"], found["verl.step.number"]) == ("u", 2, 3)


def test_addresses_become_targets_of_the_run(monkeypatch, tmp_path, insight, caplog):
    """An address is added once, under labels that Prometheus takes; those that say which run it is are ours."""
    monkeypatch.setenv("VERL_OTEL_RUN_ID", "r1")
    verl_otel.init(exporters="file", run_dir=tmp_path)
    try:
        insight.update_prometheus_config(
            ["10.0.0.1:80", "[::1]:81"], "mine", labels=[{"1 a-b": 0, "job": "x", "address": 1, "__x": 2}, None]
        )
        insight.update_prometheus_config(["10.0.0.1:80"], "again")
        insight.update_prometheus_config(["10.0.0.2:82"], "transfer_queue", labels=[])
        insight.update_prometheus_config([])
        entries = session_targets.read_targets(session_targets.targets_path(session.current_session().config))
    finally:
        verl_otel.shutdown()
    found = {entry["targets"][0]: entry["labels"] for entry in entries}
    assert list(found) == ["10.0.0.1:80", "[::1]:81", "10.0.0.2:82"]
    first = found["10.0.0.1:80"]
    assert (first["key_1_a_b"], first["address"], "__x" in first) == ("0", "1", False)
    assert (first["job"], first["instance"]) == ("verl", "r1/mine-10.0.0.1:80")
    assert found["10.0.0.2:82"]["verl_role"] == "transfer_queue"
    assert "0 labels for 1 addresses" in caplog.text


def test_off_records_nothing_and_does_no_harm(insight):
    """While recording is off every function is there and does nothing."""
    insight.init()
    insight.metric_count("x")
    insight.metric_histogram("x", 1)
    insight.trace_span(name="x", start_time_ns=1, end_time_ns=2, attributes={})
    insight.update_prometheus_config(["a:1"])
    insight.agent_loop_session(experiment_name="e", sample=1, session=2).finish(trajectories=[], status="ok")
    with insight.trace_state("x"):
        assert insight.trace_op("y")(len)([1]) == 1
    insight.finish()
    assert not shim._instruments
