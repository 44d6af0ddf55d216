# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are larger than a server accepts (opentelemetry-python PR 5032; nginx accepts 1 MiB): halves arrive, each item once."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE, make_batch, make_histogram, make_point, make_span
from tests.exporting.otlp_requests import soon
from verl_otel.exporting.otlp import protobuf
from verl_otel.exporting.otlp.exporter import halve
from verl_otel.model import Batch

LABELS = [(("n", str(number)),) for number in range(100)]


def make_points():
    """Points of two instruments."""
    gauges = [make_point(value=float(number), labels=labels) for number, labels in enumerate(LABELS)]
    return [*gauges, make_point("verl.other", "counter", 1.0)]


def test_halves_are_the_request():
    """Both halves together have each item once, in order, under the resource and scope of the request."""
    spans = protobuf.encode_traces(RESOURCE, SCOPE, [make_span(number) for number in range(1, 8)])
    first, second = halve("traces", spans)
    assert (first[1], second[1]) == (3, 4)
    names = [[span.span_id for span in read_spans(body)] for body in (first[0] + second[0], spans)]
    assert names[0] == names[1]
    points = protobuf.encode_metrics(
        RESOURCE, SCOPE, [*make_points(), make_point("verl.third", "histogram", make_histogram(0.5))]
    )
    first, second = halve("metrics", points)
    assert (first[1], second[1]) == (51, 51)
    assert all(len(body) < 0.6 * len(points) for body, _ in (first, second))


def read_spans(body):
    """The spans of a request; one behind the other is one request, as protobuf merges messages."""
    request = ExportTraceServiceRequest.FromString(body)
    return [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
@pytest.mark.parametrize("body", [b"", b"\xff"])
def test_what_has_no_halves_has_none(signal, body):
    """A request without items, or one that cannot be read, stays whole."""
    assert halve(signal, body) == []


def test_spans_arrive_in_halves_and_what_is_too_large_alone_is_counted(sink, otlp):
    """The largest requests that the server accepts arrive; of what follows, nothing of the refused size is sent again."""
    sink.limit = 2_000
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(*range(1, 101)))
    exporter.consume(Batch(NOW, (make_span(1000, attributes={"text": "x" * 3_000}), make_span(1001))))
    exporter.flush(soon())
    assert sink.span_ids() == dict.fromkeys((*range(1, 101), 1001), 1)
    assert sum(exporter.dropped("spans").values()) == 1
    known = min(len(request.body) for request in sink.of("traces") if len(request.body) > sink.limit)
    before = len(sink.of("traces"))
    exporter.consume(make_batch(*range(201, 301)))
    exporter.flush(soon())
    assert all(len(request.body) < known for request in sink.of("traces")[before:])
    assert len(sink.span_ids()) == 201


def test_series_arrive_in_halves(sink, otlp):
    """Every series is there, also that of a second instrument."""
    sink.limit = 1_500
    exporter, state = otlp(sink.url)
    state.update(make_points())
    exporter.flush(soon())
    values = sink.values()
    assert sorted(set(values["verl.test"])) == [float(number) for number in range(100)]
    assert set(values["verl.other"]) == {1.0}
    assert exporter.dropped("points") == {}


def test_a_server_that_accepts_more_again_gets_more(sink, otlp):
    """A limit that was raised is found by an item that was too large before: nothing is dropped for good because of one answer."""
    sink.limit = 0
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1, 2))
    exporter.flush(soon())
    assert sum(exporter.dropped("spans").values()) == 2
    sink.limit = float("inf")
    for numbers in ((3, 4), range(5, 100)):
        exporter.consume(make_batch(*numbers))
        exporter.flush(soon())
    assert sink.span_ids() == dict.fromkeys(range(3, 100), 1)
    assert len(sink.messages("traces")[-1].resource_spans[0].scope_spans[0].spans) == 95


def test_metrics_of_the_user_arrive_in_halves(sink, otlp):
    """They are one message of the user's own provider."""
    sink.limit = 1_500
    exporter, _ = otlp(sink.url)
    exporter.consume_metrics(protobuf.encode_metrics(RESOURCE, SCOPE, make_points()))
    exporter.flush(soon())
    assert sorted(set(sink.values()["verl.test"])) == [float(number) for number in range(100)]


def test_differences_are_sent_once_each(sink, otlp, monkeypatch):
    """With delta temporality no half is sent twice: it would be counted twice."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    sink.limit = 1_500
    exporter, state = otlp(sink.url)
    state.update([make_point("verl.other", "counter", 1.0, labels=labels) for labels in LABELS])
    exporter.flush(soon())
    assert sink.values()["verl.other"] == [1.0] * len(LABELS)
