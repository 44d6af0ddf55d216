# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Span processors that record a span only if they have seen the begin of its trace, as MLflow's do on the global provider."""

import json

import pytest

PROGRAM = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
import verl_otel

class Tracker(SpanProcessor):
    '''Knows a trace from its root on; a span of another trace is lost, and a trace is complete when its root ends.'''
    def __init__(self):
        self.open, self.complete, self.lost = {{}}, [], []
    def on_start(self, span, parent_context=None):
        if span.parent is None:
            self.open[span.context.trace_id] = []
        if span.context.trace_id not in self.open:
            self.lost.append(span.name)
        else:
            span.set_attribute("tracker.id", "t1")
    def on_end(self, span):
        names = self.open.get(span.context.trace_id)
        if names is not None and (span.attributes or {{}}).get("tracker.id") == "t1":
            names.append(span.name)
            if span.parent is None:
                self.complete.append(names)

tracker = Tracker()
{begin}
with verl_otel.step(1):
    with verl_otel.trajectory("prompt", 1) as trajectory, verl_otel.span("turn"):
        tracer = trace.get_tracer("user")
        with tracer.start_as_current_span("child"):
            with tracer.start_as_current_span("grandchild"):
                pass
        trajectory.set_attribute("late", 1)
    with verl_otel.trajectory("prompt", 2):
        pass
verl_otel.shutdown()
print(json.dumps([tracker.complete, tracker.lost, len(sdk_spans.BEGUN)]))
"""

OURS = """
verl_otel.init()
from verl_otel.exporting import sdk_spans
trace.get_tracer_provider().add_span_processor(tracker)
"""
THEIRS = """
provider = TracerProvider()
provider.add_span_processor(tracker)
trace.set_tracer_provider(provider)
verl_otel.init()
from verl_otel.exporting import sdk_spans
"""
SDK = THEIRS.replace("init()", "init(exporters='file,sdk')")


@pytest.mark.smoke
@pytest.mark.parametrize("begin", [OURS, THEIRS, SDK], ids=["our provider", "their provider", "exporter sdk"])
def test_a_processor_sees_our_spans_above_those_of_the_user_begin(begin, run, files, tmp_path):
    """Its trace has the trajectory, and is complete when that ends. What has no span of the user's below it is not announced."""
    result = run(PROGRAM.format(begin=begin))
    assert result.code == 0, result.err
    complete, lost, begun = json.loads(result.out)
    assert complete == [["grandchild", "child", "turn", "verl.trajectory"]]
    assert (lost, begun) == ([], 0)
    found = files(tmp_path / "runs" / "r1")
    assert sorted(found.names()) == ["child", "grandchild", "turn", "verl.step", "verl.trajectory", "verl.trajectory"]
