# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The synthetic step: two backends tell the same of it, as many spans of each kind as there were, in the right trees."""

from collections import Counter

import pytest

from benchmarks.agents import __main__ as command
from benchmarks.agents.ours import OurAgents
from benchmarks.agents.step import SPANS, TASKS, TURNS, Agents, Step
from benchmarks.cases import agent_loop
from benchmarks.sink import Sink

TRAJECTORIES = 16
EDGES = {
    ("verl.trajectory", ""): 1,
    ("verl.turn", "verl.trajectory"): TURNS,
    ("chat qwen3-8b", "verl.turn"): TURNS,
    ("execute_tool python", "verl.turn"): TURNS,
    ("verl.reward", "verl.trajectory"): 1,
}


def edges(spans):
    """Counts of (name, name of its parent), of spans as (id, parent's id, name)."""
    names = {span: name for span, _, name in spans}
    return Counter((name, names.get(parent, "")) for _, parent, name in spans)


@pytest.fixture
def ours(tmp_path, monkeypatch, read_run):
    """Spans and the attributes by name, read from the files that a step leaves."""
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path))
    agents = OurAgents("file")
    Step(agents, TRAJECTORIES).run()
    agents.deliver()
    agents.close()
    (folder,) = {path.parent for path in tmp_path.rglob("traces-*.jsonl")}
    spans = read_run(folder).spans
    keys = {span.name: set(span.attributes) for span in spans}
    return [(span.span_id, span.parent_id, span.name) for span in spans], keys


def theirs():
    """The same of the SDK."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from benchmarks.agents.opentelemetry_sdk import SdkAgents

    kept = InMemorySpanExporter()
    with Sink() as sink:
        agents = SdkAgents(sink.url, kept)
        Step(agents, TRAJECTORIES).run()
        agents.deliver()
        agents.close()
    spans = kept.get_finished_spans()
    keys = {span.name: set(span.attributes) for span in spans}
    return [(each.context.span_id, each.parent and each.parent.span_id, each.name) for each in spans], keys


def test_every_span_of_a_step_is_told(ours):
    """Trees of a trajectory with its turns, calls of the model and the tool, and the reward; none is missing."""
    spans, _ = ours
    assert len(spans) == SPANS * TRAJECTORIES
    assert edges(spans) == {edge: number * TRAJECTORIES for edge, number in EDGES.items()}


def test_the_sdk_is_requested_no_more_than_ours(ours):
    """The same names in the same trees, and no attribute that ours does not have: else the comparison would be unfair to it."""
    (spans, keys), (their_spans, their_keys) = ours, theirs()
    assert edges(their_spans) == edges(spans)
    for name, found in their_keys.items():
        assert found <= keys[name], name


def test_the_event_loop_is_watched_until_the_last_trajectory():
    """A thousand at a time, however many there are; a pass is looked at as long as somebody works."""
    open_now, most = [0], [0]

    class Counting(Agents):
        def trajectory(self, uid, index):
            open_now[0] += 1
            most[0] = max(most)
            most.append(open_now[0])
            return super().trajectory(uid, index)

        def finish(self, span, output):
            open_now[0] -= 1

    step = Step(Counting(), TASKS + 8)
    step.run()
    assert max(most) == TASKS
    assert open_now == [0]
    assert len(step.delays) > TURNS
    assert all(delay > 0 for delay in step.delays)


@pytest.mark.parametrize("kind", ["none", "ours-otlp"])
def test_a_step_is_measured_in_a_process_of_its_own(kind):
    """CPU, bytes that have arrived, memory and delay, each by the name that the table has for it; the whole process's work is counted."""
    operation = agent_loop.step(kind, 16, 16)
    cpu = operation.run(16)
    found = operation.figures()
    assert 0 < cpu < 60
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(agent_loop.FIGURES, 1)
    assert (found["sent or written"][0] > 0) == (kind != "none")
    assert found["CPU of a span"][0] == pytest.approx(cpu / (16 * SPANS) * 1e6)


def test_spans_that_did_not_arrive_are_no_cheap_ones(monkeypatch):
    """Where a telemetry brings less than the spans weigh at least, the measurement is refused."""
    monkeypatch.setitem(command.KINDS, "ours-otlp", lambda _: Agents())
    with pytest.raises(RuntimeError, match="the measurement is invalid"):
        command.measure("ours-otlp", 8)
