# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Scrapes of an instrumented web server are no traces; everything else that a user traces is."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from verl_otel.exporting.providers import NoScrapes

SAMPLERS = {"default": None, "no parents": ALWAYS_ON}


@pytest.fixture(params=SAMPLERS)
def seen(request):
    """A tracer whose provider drops scrapes, and what it has exported; also with a sampler that does not look at parents."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=SAMPLERS[request.param], shutdown_on_exit=False)
    provider.sampler = NoScrapes(provider.sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("web"), lambda: [span.name for span in exporter.get_finished_spans()]
    provider.shutdown()


@pytest.mark.parametrize("key", ["url.path", "http.target"])
def test_a_scrape_and_all_below_it_is_dropped(seen, key):
    """The server's span of a scrape and the framework's spans in it are not exported."""
    tracer, names = seen
    scrape = {"kind": trace.SpanKind.SERVER, "attributes": {key: "/metrics"}}
    span = tracer.start_as_current_span
    with span("GET /metrics", **scrape), span("endpoint"), span("deeper"):
        pass
    assert names() == []


@pytest.mark.parametrize("attributes", [{"url.path": "/generate"}, {"url.path": "/metrics/mine"}, {}, None])
def test_other_requests_are_kept(seen, attributes):
    """Any other span is kept, whatever it is called."""
    tracer, names = seen
    with tracer.start_as_current_span("GET /metrics", attributes=attributes):
        pass
    assert names() == ["GET /metrics"]


def test_a_request_within_a_trace_is_kept(seen):
    """A request that belongs to a trace is no scrape."""
    tracer, names = seen
    with tracer.start_as_current_span("test"), tracer.start_as_current_span("get", attributes={"url.path": "/metrics"}):
        pass
    assert names() == ["get", "test"]


def test_the_users_sampler_still_decides():
    """What a sampler of the user drops stays dropped, and the description names it."""
    sampler = NoScrapes(ALWAYS_OFF)
    assert not sampler.should_sample(None, 1, "any").decision.is_sampled()
    assert "AlwaysOff" in sampler.get_description()


def test_a_sampler_that_does_not_look_at_parents_still_does_not():
    """A span below one that is not sampled, of another process or of the user's own, is his sampler's to decide."""
    parent = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0))
    around = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    assert NoScrapes(ALWAYS_ON).should_sample(around, 1, "any").decision.is_sampled()
