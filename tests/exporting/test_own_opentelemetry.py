# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's ordinary OpenTelemetry beside ours. A global provider can be set once, so each test is a process."""

import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from tests.builders.exporting_records import RESOURCE, SCOPE, make_batch, make_span, plain, plain_mapping, spans, steady
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.otlp import protobuf
from verl_otel.exporting.own_opentelemetry import NoScrapes, OwnOpenTelemetry, UserMetricsThread
from verl_otel.exporting.sdk_spans import make_readable
from verl_otel.model import NONE_DROPPED, Batch, Scope

HEAD = """
import json, random
from opentelemetry import metrics, trace
from verl_otel.exporting import own_opentelemetry; from verl_otel.exporting.otlp import protobuf
from verl_otel.model import Resource, Scope
from verl_otel.recording import context
RESOURCE = Resource({"service.name": "verl", "verl.rank": 3})
spans, messages = [], []
def install(*readers):
    return own_opentelemetry.install(RESOURCE, context, spans.append, messages.append, readers)
def say(**facts):
    print("FACTS " + json.dumps(facts))
"""


def run(script):
    """Run a script and return the facts that it says at its end."""
    command = [sys.executable, "-W", "error", "-c", HEAD + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    return json.loads(line.removeprefix("FACTS "))


@pytest.mark.full
def test_a_record_says_what_the_span_says():
    """What reaches us of a span with everything in it encodes to what the SDK's own exporter sends of it."""
    facts = run("""
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
made = install()
memory = InMemorySpanExporter()
made.tracer.add_span_processor(SimpleSpanProcessor(memory))
tracer = trace.get_tracer("user.lib", "1.5")
state = TraceState([("vendor", "x")])
remote = SpanContext(5, 6, True, TraceFlags(1), state)
parent = trace.set_span_in_context(trace.NonRecordingSpan(remote))
for kind in SpanKind:
    attributes = {"text": "t", "int": 1, "float": 0.5, "flag": True, "list": ["a", "b"], "numbers": [1, 2]}
    span = tracer.start_span(f"kind {kind}", parent, kind, attributes, [Link(remote, {"why": "test"}), Link(remote)])
    span.add_event("happened", {"n": 1})
    span.set_status(Status(StatusCode.ERROR, "no"))
    try:
        raise ValueError("told")
    except ValueError as error:
        span.record_exception(error)
    span.end()
with tracer.start_as_current_span("plain root"):
    pass
ours = ExportTraceServiceRequest.FromString(protobuf.encode_traces(RESOURCE, Scope("verl_otel"), spans))
theirs = encode_spans(memory.get_finished_spans())
for span in theirs.resource_spans[0].scope_spans[0].spans:
    if not span.status.ByteSize():
        span.ClearField("status")
    for link in span.links:
        link.trace_state = "vendor=x"
say(same=str(ours) == str(theirs), spans=len(spans), remote=[bool(span.flags & 0x200) for span in spans])
""")
    assert facts == {"same": True, "spans": 6, "remote": [True] * 5 + [False]}


@pytest.mark.full
def test_what_was_too_much_for_a_span_is_counted():
    """Attributes, events and links that a user's limits dropped are counted in our record as the SDK counts them."""
    facts = run("""
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.trace import Link, SpanContext, TraceFlags
limits = SpanLimits(max_attributes=1, max_events=1, max_links=1, max_event_attributes=1, max_link_attributes=1)
tracer = TracerProvider(span_limits=limits, shutdown_on_exit=False).get_tracer("user.lib")
context = SpanContext(1, 2, False, TraceFlags(1))
links = [Link(context), Link(context, {"a": 1, "b": 2, "c": 3})]
span = tracer.start_span("full", attributes={"a": 1, "b": 2, "c": 3}, links=links)
for number in range(4):
    span.add_event("happened", {"a": 1, "b": number})
span.end()
record = own_opentelemetry._record(span)
ours = ExportTraceServiceRequest.FromString(protobuf.encode_traces(RESOURCE, Scope("verl_otel"), [record]))
theirs = encode_spans([span]).resource_spans[0].scope_spans[0].spans[0]
theirs.ClearField("status")
say(same=str(ours.resource_spans[0].scope_spans[0].spans[0]) == str(theirs), dropped=record.dropped, event=record.events[0].dropped)
""")
    assert facts == {"same": True, "dropped": [2, 3, 1], "event": 1}


@pytest.mark.full
def test_a_provider_of_another_make_is_named():
    """A provider that is no SDK's is named, too, and one of the two signals may be the user's and the other ours."""
    facts = run("""
class Mine(trace.TracerProvider):
    def get_tracer(self, *args, **kwargs):
        return trace.NoOpTracer()
trace.set_tracer_provider(Mine())
made = install()
say(foreign=own_opentelemetry.foreign_provider(), tracer=made.tracer is None, meter=made.meter is metrics.get_meter_provider())
""")
    assert facts == {"foreign": "__main__.Mine", "tracer": True, "meter": True}


@pytest.mark.full
def test_without_any_provider_none_is_foreign():
    """Before anybody has set a provider, none is foreign, and asking sets none."""
    facts = run("""
before = own_opentelemetry.foreign_provider()
install()
say(before=before, after=own_opentelemetry.foreign_provider(), ours=type(trace.get_tracer_provider()).__module__)
""")
    assert facts == {"before": "", "after": "", "ours": "opentelemetry.sdk.trace"}


@pytest.mark.full
def test_differences_are_collected_beside_the_whole():
    """A reader of differences gives what has been counted since the last collection; the other one gives the whole."""
    facts = run("""
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
found = []
made = install(own_opentelemetry.OtlpReader("delta", found.append))
counter, gauge = metrics.get_meter("user").create_counter("hits"), metrics.get_meter("user").create_up_down_counter("open")
for amount in (3, 4):
    counter.add(amount)
    gauge.add(amount)
    for reader in made.pull_readers:
        reader.collect()
def values(bodies):
    groups = [ExportMetricsServiceRequest.FromString(body).resource_metrics[0] for body in bodies]
    assert {pair.key for group in groups for pair in group.resource.attributes} == {"service.name", "verl.rank"}
    each = [{metric.name: metric.sum for metric in group.scope_metrics[0].metrics} for group in groups]
    return {name: [[one[name].aggregation_temporality, one[name].data_points[0].as_int] for one in each] for name in each[0]}
say(differences=values(found), whole=values(messages))
""")
    assert facts["differences"] == {"hits": [[1, 3], [1, 4]], "open": [[2, 3], [2, 7]]}
    assert facts["whole"] == {"hits": [[2, 3], [2, 7]], "open": [[2, 3], [2, 7]]}


@pytest.mark.full
def test_what_a_user_says_at_length_is_bounded():
    """Labels that Prometheus would reject are cut."""
    found = run(
        """
from opentelemetry.sdk.metrics import MeterProvider
made = install()
metrics.get_meter("user").create_counter("long").add(1, {"reason": "x" * 5000, "short": "y", "number": 7})
made.reader.collect()
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as Request
(point,) = Request.FromString(messages[0]).resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
values = {pair.key: pair.value.string_value or pair.value.int_value for pair in point.attributes}
say(values=values)
"""
    )
    assert found["values"] == {"reason": "x" * 256, "short": "y", "number": 7}


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


# -- spans of verl-otel for the processors of the user --

SDK_RESOURCE = SdkResource(dict(RESOURCE.attributes))


class Taker:
    """A user's span processor."""

    def __init__(self, broken=False):
        self.names, self.broken, self.begun = [], broken, 0
        self.gate = threading.Event()
        self.gate.set()

    def on_end(self, span):
        self.begun += 1
        self.gate.wait()
        if self.broken:
            raise RuntimeError("planted")
        self.names.append(span.name)


@pytest.mark.full
@steady
@given(spans())
def test_the_sdks_exporter_sends_the_same(span):
    """Any span that we may record is encoded by the SDK's own encoder as it is by ours, when it is handed on."""
    values = {"name": plain(span.name), "message": plain(span.message), "attributes": plain_mapping(span.attributes)}
    span = span._replace(scope=None, dropped=NONE_DROPPED, links=(), events=(), **values)
    theirs = encode_spans([make_readable(span, SDK_RESOURCE, SCOPE)])
    theirs.resource_spans[0].scope_spans[0].schema_url = SCOPE.schema_url
    found = theirs.resource_spans[0].scope_spans[0].spans[0]
    if not found.status.ByteSize():
        found.ClearField("status")
    assert str(ExportTraceServiceRequest.FromString(protobuf.encode_traces(RESOURCE, SCOPE, [span]))) == str(theirs)


@pytest.fixture
def user():
    """Have made-up processors of a user served; what they have is complete after a flush."""
    made, gates = [], []

    def serve(*processors, **keywords):
        providers = SimpleNamespace(
            user_processors=processors, receivers=processors, resource=SDK_RESOURCE, tracer=object()
        )
        providers.flush = providers.detach = lambda seconds: None
        exporter = OwnOpenTelemetry(providers, UserMetricsThread(), **keywords)
        exporter.open(RESOURCE, SCOPE, MetricState())
        made.append(exporter)
        gates.extend(each.gate for each in processors)
        return exporter

    yield serve
    for gate in gates:
        gate.set()
    for exporter in made:
        exporter.close(soon())


def soon():
    return time.monotonic() + 60


def test_only_ours_that_are_kept_are_handed_on(user):
    """The user's own spans are not handed to him twice, and the root of a trajectory that is not kept stays here."""
    taker = Taker()
    exporter = user(taker)
    exporter.consume(Batch(0, (make_span(1), make_span(2, scope=Scope("his")), make_span(3, flags=0))))
    exporter.flush(soon())
    assert taker.names == ["span 1"]


def test_a_processor_that_fails_costs_itself_only(user, swallow):
    """What a user's processor raises is swallowed, and the next one has every span."""
    taker = Taker()
    exporter = user(Taker(broken=True), taker)
    exporter.consume(make_batch(1, 2))
    exporter.flush(soon())
    assert taker.names == ["span 1", "span 2"]


def test_a_span_that_cannot_be_made_costs_itself_only(user):
    """A status that OpenTelemetry does not have loses this span, which is counted; the rest of the batch arrives."""
    taker = Taker()
    exporter = user(taker)
    exporter.consume(Batch(0, (make_span(1), make_span(2, status=7), make_span(3))))
    exporter.flush(soon())
    assert taker.names == ["span 1", "span 3"]
    assert exporter.dropped("spans") == {"cannot be encoded": 1}


@pytest.mark.full
def test_a_slow_processor_is_waited_for_by_nobody(user, wait_for):
    """Spans are taken while it works; the oldest make room and are counted; what it has got is complete and in order."""
    taker = Taker()
    taker.gate.clear()
    exporter = user(taker, capacity=3)
    exporter.consume(make_batch(1))
    wait_for(lambda: taker.begun)
    for number in range(2, 9):
        exporter.consume(make_batch(number))
    assert exporter.dropped("spans") == {"queue full": 4}
    exporter.flush(time.monotonic() + 0.05)  # returns although it has not been done
    taker.gate.set()
    exporter.flush(soon())
    assert taker.names == ["span 1", "span 6", "span 7", "span 8"]


@pytest.mark.full
def test_what_waits_at_the_end_is_counted(user):
    """A processor that does not come back holds the end up until its deadline; what it was not given is dropped."""
    taker = Taker()
    taker.gate.clear()
    exporter = user(taker)
    exporter.consume(make_batch(1, 2, 3))
    exporter.close(time.monotonic() + 0.2)
    assert sum(exporter.dropped("spans").values()) >= 2
    before = time.monotonic()
    exporter.flush(before + 20)
    assert time.monotonic() < before + 10  # it does not wait for the thread that has ended


def test_a_parent_without_a_context_is_no_parent():
    """A span class of another library may return none: the sampler, which runs in the user's call, decides as for a root."""
    odd = type("Odd", (trace.NonRecordingSpan,), {"get_span_context": lambda self: None})(None)
    context = trace.set_span_in_context(odd)
    assert NoScrapes(ALWAYS_ON).should_sample(context, 1, "work").decision.is_sampled()
