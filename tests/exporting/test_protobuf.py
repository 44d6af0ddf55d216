# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP as bytes: equal to what the encoder of the SDK writes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from tests.builders.exporting_records import (
    NOW,
    RESOURCE,
    SCOPE,
    make_histogram,
    make_point,
    make_span,
    metrics,
    plain,
    plain_mapping,
    resources,
    spans,
    steady,
)
from verl_otel.exporting.otlp import protobuf as wire
from verl_otel.exporting.otlp.protobuf import encode_logs
from verl_otel.model import REMOTE, HistogramValue, LogRecord, Scope
from verl_otel.semconv import logs

try:
    from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
except ImportError:  # the oldest SDKs that we support know no exemplars
    SdkExemplar = None


def assert_same(ours, theirs):
    """Compare two messages; NaN equals NaN."""
    assert str(ours) == str(theirs)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def parse_spans(body):
    message = ExportTraceServiceRequest.FromString(body)
    return [
        span for group in message.resource_spans for scope in group.scope_spans for span in scope.spans
    ], message.resource_spans[0]


def parse_points(body):
    metric = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics[0]
    return metric, list(getattr(metric, metric.WhichOneof("data")).data_points)


def context(trace_id, span_id, state="", remote=False):
    pairs = [tuple(pair.split("=")) for pair in state.split(",") if pair]
    return SpanContext(trace_id, span_id, remote, TraceFlags(1), TraceState(pairs))


def sdk_scope(scope):
    return InstrumentationScope(scope.name, scope.version, scope.schema_url)


def bounded(attributes, dropped):
    """Return attributes as the SDK keeps them, of which some were too many."""
    made = BoundedAttributes()
    made._dict, made.dropped = plain_mapping(attributes), dropped  # its constructor would leave out empty keys
    return made


def counted(items, dropped):
    """Return events or links as the SDK keeps them, of which some were too many."""
    made = BoundedList.from_seq(max(1, len(items)), items)
    made.dropped = dropped
    return made


def sdk_span(span, resource):
    """Return the SDK's span that says what ``span`` says."""
    remote = bool(span.flags & REMOTE)
    too_many = dict(zip(("attributes", "events", "links"), span.dropped, strict=True))
    return ReadableSpan(
        plain(span.name),
        context(span.trace_id, span.span_id, span.trace_state),
        context(span.trace_id, span.parent_id, remote=remote) if span.parent_id else None,
        resource,
        bounded(span.attributes, too_many["attributes"]),
        counted(
            [Event(plain(each.name), bounded(each.attributes, each.dropped), each.time_ns) for each in span.events],
            too_many["events"],
        ),
        counted(
            [
                Link(
                    context(each.trace_id, each.span_id, each.trace_state, bool(each.flags)),
                    bounded(each.attributes, each.dropped),
                )
                for each in span.links
            ],
            too_many["links"],
        ),
        SpanKind(span.kind - 1),
        status=Status(StatusCode(span.status), plain(span.message) if span.message else None),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=sdk_scope(span.scope or SCOPE),
    )


@pytest.mark.full
@steady
@given(resources, st.lists(spans(event_names=st.text(max_size=8)), min_size=1, max_size=4))
def test_spans_equal_the_sdks(resource, records):
    """Any spans, of several scopes, parse to the request that the SDK makes of the same spans."""
    ours = ExportTraceServiceRequest.FromString(wire.encode_traces(resource, SCOPE, records))
    made = SdkResource(plain_mapping(resource.attributes))
    theirs = encode_spans([sdk_span(record, made) for record in records])
    by_scope = {}
    for record in records:
        by_scope.setdefault(record.scope or SCOPE, []).append(record)
    for group, (scope, mine) in zip(theirs.resource_spans[0].scope_spans, by_scope.items(), strict=True):
        group.schema_url = scope.schema_url  # old SDKs leave it out
        for span, record in zip(group.spans, mine, strict=True):
            if not span.status.ByteSize():
                span.ClearField("status")  # an empty message and none mean the same
            for link, given_link in zip(span.links, record.links, strict=True):
                link.trace_state = given_link.trace_state  # the SDK leaves it out
    assert_same(ours, theirs)


@pytest.mark.full
@steady
@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from(["", "verl=s", "verl=t"])), max_size=12)
)
def test_families_of_spans_are_not_mixed_up(families):
    """However spans of several traces, parents and trace states are mixed, each is what it is alone."""
    batch = [
        make_span(number + 1, trace_id=trace, parent_id=parent, trace_state=state)
        for number, (trace, parent, state) in enumerate(families)
    ]
    alone = [span for each in batch for span in parse_spans(wire.encode_traces(RESOURCE, SCOPE, [each]))[0]]
    assert (parse_spans(wire.encode_traces(RESOURCE, SCOPE, batch))[0] if batch else []) == alone


def sdk_metric(instrument, points):
    """Return the SDK's metric that says what the points say."""
    made, cumulative = [], sdk.AggregationTemporality.CUMULATIVE
    for point in points:
        labels, value = plain_mapping(dict(point.labels)), point.value
        if isinstance(value, HistogramValue):
            numbers = (value.samples, value.total, list(value.counts), list(value.bounds), value.minimum, value.maximum)
            found = [SdkExemplar({}, each.value, each.time_ns, each.span_id, each.trace_id) for each in point.exemplars]
            extra = [found] if SdkExemplar else []
            made.append(sdk.HistogramDataPoint(labels, point.start_ns, point.time_ns, *numbers, *extra))
        else:
            made.append(sdk.NumberDataPoint(labels, point.start_ns, point.time_ns, value))
    kinds = {
        "gauge": lambda: sdk.Gauge(made),
        "histogram": lambda: sdk.Histogram(made, cumulative),
        "counter": lambda: sdk.Sum(made, cumulative, is_monotonic=True),
        "updown": lambda: sdk.Sum(made, cumulative, is_monotonic=False),
    }
    return sdk.Metric(instrument.name, instrument.description, instrument.unit, kinds[instrument.kind]())


@pytest.mark.full
@steady
@given(resources, metrics())
def test_metrics_equal_the_sdks(resource, points):
    """Histograms with exemplars, counters, gauges and up-down counters parse to what the SDK makes of the same points."""
    if SdkExemplar is None:
        points = [point._replace(exemplars=()) for point in points]
    ours = ExportMetricsServiceRequest.FromString(wire.encode_metrics(resource, SCOPE, points))
    groups = {}
    for point in points:
        groups.setdefault(point.instrument, []).append(point)
    made = [sdk_metric(instrument, group) for instrument, group in groups.items()]
    scope = sdk.ScopeMetrics(sdk_scope(SCOPE), made, "")
    resource_metrics = sdk.ResourceMetrics(SdkResource(plain_mapping(resource.attributes)), [scope], "")
    theirs = encode_metrics(sdk.MetricsData([resource_metrics]))
    theirs.resource_metrics[0].scope_metrics[0].schema_url = SCOPE.schema_url  # old SDKs leave it out
    assert_same(ours, theirs)


def test_spans_stand_under_their_scope():
    """Spans of another scope stand under that scope with its version and schema, ours under ours."""
    theirs = Scope("user", "9", "urn:user")
    _, group = parse_spans(
        wire.encode_traces(RESOURCE, SCOPE, [make_span(1), make_span(2, scope=theirs), make_span(3)])
    )
    found = [(each.scope.name, each.scope.version, each.schema_url, len(each.spans)) for each in group.scope_spans]
    assert found == [("verl_otel", "1.2.3", "urn:test:1", 2), ("user", "9", "urn:user", 1)]


def test_an_empty_histogram_has_no_minimum():
    """A histogram without measurements has no minimum and no maximum: infinity is no measurement."""
    _, (point,) = parse_points(
        wire.encode_metrics(RESOURCE, SCOPE, [make_point(kind="histogram", value=make_histogram())])
    )
    assert (point.count, point.HasField("min"), point.HasField("max")) == (0, False, False)


@pytest.mark.parametrize("value", [True, 1 << 63, 1 << 64, -(1 << 64), math.nan, -math.inf])
def test_any_number_of_a_gauge_arrives(value):
    """A truth value is 0 or 1, an integer of more than 64 bits a float, NaN and infinity what they are."""
    _, (point,) = parse_points(wire.encode_metrics(RESOURCE, SCOPE, [make_point(value=value)]))
    found = getattr(point, point.WhichOneof("value"))
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_broken_text_becomes_question_marks():
    """A lone surrogate in a name, a key, a value or a message becomes a question mark, and the rest stays."""
    span = make_span(
        name="a\ud800b", attributes={"\udcff": "\udfff", "list": ("\udcff", "ü")}, status=2, message="\ud800"
    )
    ((found,), _) = parse_spans(wire.encode_traces(RESOURCE, SCOPE, [span]))
    broken, several = found.attributes
    assert (found.name, found.status.message, broken.key, broken.value.string_value) == ("a?b", "?", "?", "?")
    assert [each.string_value for each in several.value.array_value.values] == ["?", "ü"]
    _, (point,) = parse_points(wire.encode_metrics(RESOURCE, SCOPE, [make_point(labels=[("\udcff", "\ud800")])]))
    assert (point.attributes[0].key, point.attributes[0].value.string_value) == ("?", "?")


@pytest.mark.parametrize(("value", "kind"), [(b"raw", "bytes_value"), ({"a": 1}, "kvlist_value")])
def test_a_users_bytes_and_mappings_arrive(value, kind):
    """Bytes and mappings, which newer SDKs allow in attributes, arrive as what they are."""
    ((found,), _) = parse_spans(wire.encode_traces(RESOURCE, SCOPE, [make_span(attributes={"key": value})]))
    assert found.attributes[0].value.WhichOneof("value") == kind


def parse(*records):
    message = ExportLogsServiceRequest.FromString(encode_logs(RESOURCE, SCOPE, records))
    (resource,) = message.resource_logs
    (scope,) = resource.scope_logs
    assert scope.scope.name == SCOPE.name
    return list(scope.log_records)


def values(record):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in record.attributes}


def test_a_record_is_an_event():
    """Name, severity, time, ids and attributes under the name of the event."""
    fields = {"reward_mean": 0.25, "samples": 8, "kl": math.inf, "phase": "gen"}
    (record,) = parse(LogRecord(NOW, logs.WARNING, "rollout", 4, fields, 0xAB, 0xCD))
    if "event_name" in record.DESCRIPTOR.fields_by_name:  # the lowest version of the messages does not know it
        assert record.event_name == "verl.rollout"
    assert (record.severity_number, record.severity_text) == (13, "WARN")
    assert (record.time_unix_nano, record.trace_id.hex(), record.span_id.hex()) == (NOW, f"{0xAB:032x}", f"{0xCD:016x}")
    assert record.flags == 1
    assert record.observed_time_unix_nano > 0
    assert values(record) == {
        "verl.rollout.reward_mean": 0.25,
        "verl.rollout.samples": 8,
        "verl.rollout.kl": math.inf,
        "verl.phase": "gen",
        "verl.step.number": 4,
    }


def test_a_message_is_the_body():
    """A message of Python's logging is the body; attributes of the conventions keep their names; without a span there are no ids."""
    fields = {"logger": "x", "message": "queue is full", "code.line.number": 3, "exception.type": "KeyError"}
    (record,) = parse(LogRecord(NOW, logs.CRITICAL, "log", None, fields))
    assert (record.body.string_value, record.severity_text, record.trace_id) == ("queue is full", "FATAL", b"")
    assert values(record) == {"verl.log.logger": "x", "code.line.number": 3, "exception.type": "KeyError"}
