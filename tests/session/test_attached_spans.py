# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans of a tracer provider that the user set before us. A global provider can be set once, so each test is a process."""

import pytest

from tests.fakes.otlp_sink import Sink

pytestmark = pytest.mark.full

PROVIDER = """
import os, sys
import verl_otel
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from verl_otel import session
memory = InMemorySpanExporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("mine")
def work(name):
    with tracer.start_as_current_span(name):
        pass
def count_processors():
    return len(provider._active_span_processor._span_processors)
"""


def test_spans_reach_our_files_while_a_session_runs(run_script):
    """The user's exporter gets all spans of the user and none of ours; our files have those of each session, once."""
    files = run_script(
        PROVIDER
        + """
work("before")
for number in (1, 2):
    verl_otel.init()
    session.current_session().open_now()
    with verl_otel.step(number):
        work(f"session {number}")
    verl_otel.shutdown()
    work(f"after {number}")
from verl_otel.exporting import own_opentelemetry
own_opentelemetry._record = None  # nothing is converted without a session
work("end")
assert count_processors() == 2
assert [span.name for span in memory.get_finished_spans()] == ["before", "session 1", "after 1", "session 2", "after 2", "end"]
"""
    )
    steps = {span.id for span in files.spans() if span.name == "verl.step"}
    own = [span for span in files.spans() if span.scope == "mine"]
    assert sorted(span.name for span in own) == ["session 1", "session 2"]
    assert {span.parent for span in own} == steps


def test_spans_of_a_forked_child_are_in_its_files(run_script):
    """A child's spans have the resource of the child."""
    files = run_script(
        PROVIDER
        + """
verl_otel.init()
session.current_session().open_now()
child = os.fork()
if not child:
    with verl_otel.step(1):
        work("child")
    verl_otel.shutdown()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    step, own = sorted(files.spans(), key=lambda span: span.name, reverse=True)
    assert (own.name, own.parent) == ("child", step.id)
    assert own.resource["process.pid"] == step.resource["process.pid"]


def test_an_error_of_ours_is_not_raised_where_a_span_ends(run_script):
    """What fails while a span is passed on is counted; the user's code goes on."""
    run_script(
        PROVIDER
        + """
from verl_otel.exporting import own_opentelemetry
verl_otel.init()
session.current_session().open_now()
def fail(span):
    raise ValueError
own_opentelemetry._record = fail
work("one")
assert [span.name for span in memory.get_finished_spans()] == ["one"]
""",
        VERL_OTEL_RAISE_INTERNAL_ERRORS="",
    )


@pytest.mark.parametrize("processor", ["BatchSpanProcessor", "SimpleSpanProcessor"])
def test_spans_that_the_provider_sends_by_otlp_are_not_sent_twice(run, processor):
    """A provider that has OpenTelemetry's own OTLP exporter is left alone where we send by OTLP, too."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    code = f"""
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider.add_span_processor({processor}(OTLPSpanExporter()))
verl_otel.init(exporters="otlp", exit_timeout=30)
session.current_session().open_now()
with verl_otel.step(1):
    work("own")
verl_otel.shutdown()
provider.force_flush()
"""
    with Sink() as sink:
        result = run(PROVIDER + code, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint, VERL_OTEL_STALLS="0")
    assert result.code == 0, result.err
    assert sorted(span.name for span in sink.spans()) == ["own", "verl.step"]
