# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A line of a file says what the bytes of a request say."""

import base64
import json
import math

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.builders.exporting_records import (
    NOW,
    RESOURCE,
    SCOPE,
    attributes,
    integers64,
    make_point,
    make_span,
    metrics,
    resources,
    spans,
    steady,
    texts,
)
from tests.builders.traces_object import traces_object
from verl_otel.exporting import files
from verl_otel.exporting.files import traces_line
from verl_otel.exporting.line_file import encode_line
from verl_otel.exporting.otlp import protobuf
from verl_otel.model import EventRecord, Resource, SharedAttributes

IDS = ("traceId", "spanId", "parentSpanId")


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def read(line, message):
    """Parse a line as a consumer of OTLP/JSON does: ids are hexadecimal there, base64 in protobuf's own mapping."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1

    def convert(thing):
        if isinstance(thing, list):
            return [convert(each) for each in thing]
        if isinstance(thing, dict):
            return {
                key: base64.b64encode(bytes.fromhex(value)).decode() if key in IDS else convert(value)
                for key, value in thing.items()
            }
        return thing

    return json_format.ParseDict(convert(json.loads(line, parse_constant=refuse)), message)


def assert_same(ours, theirs):
    """Compare two messages as text: there are many NaN of different bits, and JSON has one word for them."""
    assert str(ours).replace("-nan", "nan") == str(theirs).replace("-nan", "nan")


def read_spans(resource, records):
    """Return the message in the file and the message on the wire."""
    ours = read(traces_line(resource, SCOPE, records), ExportTraceServiceRequest())
    for group in ours.resource_spans:
        for span in (span for scope in group.scope_spans for span in scope.spans):
            span.flags &= ~0xFF  # the files also say which spans are sampled, with the bits of W3C
    return ours, ExportTraceServiceRequest.FromString(protobuf.encode_traces(resource, SCOPE, records))


def read_metrics(resource, points):
    """Return the message in the file and the message on the wire."""
    ours = read(encode_line(files.metrics_object(resource, SCOPE, points)), ExportMetricsServiceRequest())
    return ours, ExportMetricsServiceRequest.FromString(protobuf.encode_metrics(resource, SCOPE, points))


plain_spans = spans(integers64, event_names=st.text(max_size=8), link_flags=(0,), link_states=st.just(""))


@pytest.mark.full
@steady
@given(resources, st.lists(plain_spans, min_size=1, max_size=4))
def test_a_line_of_spans_equals_the_request(resource, records):
    """A line with any spans is JSON and parses to the message that goes over the wire."""
    assert_same(*without_links(*read_spans(resource, records)))


@pytest.mark.full
@steady
@given(resources, st.lists(spans(event_names=texts), min_size=1, max_size=8))
def test_a_line_of_spans_equals_the_objects(resource, records):
    """The text of any spans, of several scopes, with anything that a span may hold, is what `json.dumps` writes of plain objects."""
    line = traces_line(resource, SCOPE, records)
    expected = json.dumps(traces_object(resource, SCOPE, records), ensure_ascii=False).encode("utf-8", "replace")
    assert read_pairs(line) == read_pairs(expected)


def read_pairs(line):
    """Return the content of a line, in which an object that has a key twice is not the same as one that has it once."""
    return json.loads(line, object_pairs_hook=sorted_pairs)


def sorted_pairs(pairs):
    return sorted(pairs, key=lambda pair: pair[0])


equal_values = st.sampled_from([0, 0.0, -0.0, False, "0", 1, 1.0, True, "1", ("1",), (1,), (True,), (1.0,), ("1", "1")])


@steady
@given(st.lists(st.dictionaries(st.sampled_from("ab"), equal_values), max_size=12))
def test_values_that_are_equal_keep_their_type(several):
    """1, 1.0 and True, which are equal, keep their type in a line and on the wire, whichever was written before."""
    records = [make_span(number + 1, attributes=each) for number, each in enumerate(several)]
    assert read_pairs(traces_line(RESOURCE, SCOPE, records)) == read_pairs(
        json.dumps(traces_object(RESOURCE, SCOPE, records))
    )
    assert_same(*read_spans(RESOURCE, records))


@pytest.mark.parametrize("encode", [traces_line, protobuf.encode_traces], ids=["a line", "a request"])
@steady
@given(st.lists(st.tuples(texts, st.integers(1, 5)), min_size=1, max_size=8), attributes())
def test_what_spans_share_is_not_mixed_up(encode, kinds, shared):
    """Spans that hold one object of attributes, under changing names and kinds, are each encoded as if it were their own."""
    given_once = SharedAttributes(shared)
    pairs = [make_span(number + 1, name=name, kind=kind) for number, (name, kind) in enumerate(kinds)]
    ours = encode(RESOURCE, SCOPE, [span._replace(attributes=given_once) for span in pairs])
    assert ours == encode(RESOURCE, SCOPE, [span._replace(attributes=shared) for span in pairs])


def without_links(ours, theirs):
    """Leave the flags of links out; a test of their own tells about them."""
    for message in (ours, theirs):
        for group in message.resource_spans:
            for link in (link for scope in group.scope_spans for span in scope.spans for link in span.links):
                link.flags = 0
    return ours, theirs


@pytest.mark.full
@steady
@given(resources, metrics())
def test_a_line_of_metrics_equals_the_request(resource, points):
    """A line with any points is JSON and parses to the message that goes over the wire."""
    ours, theirs = read_metrics(resource, points)
    for metric in ours.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.gauge.data_points:
            point.start_time_unix_nano = 0  # a test of its own tells about it
    assert_same(ours, theirs)


def test_numbers_that_json_lacks_are_words():
    """NaN and the infinities are the words of the OTLP file format, in attributes and points."""
    numbers = (math.nan, math.inf, -math.inf)
    line = traces_line(RESOURCE, SCOPE, [make_span(attributes={"numbers": numbers})])
    for word in (b'"NaN"', b'"Infinity"', b'"-Infinity"'):
        assert b'{"doubleValue":' + word in line
    line = encode_line(files.metrics_object(RESOURCE, SCOPE, [make_point(value=math.nan)]))
    assert b'"asDouble":"NaN"' in line


def test_ids_are_hexadecimal_and_times_text():
    """Ids are lower-case hexadecimal with leading zeros, enums numbers, 64-bit integers text."""
    (group,) = json.loads(traces_line(RESOURCE, SCOPE, [make_span(0xAB, parent_id=0xC)]))["resourceSpans"]
    (span,) = group["scopeSpans"][0]["spans"]
    assert span["traceId"] == "00000000000000ab0000000000000007"
    assert (span["spanId"], span["parentSpanId"]) == ("00000000000000ab", "000000000000000c")
    assert (span["kind"], span["startTimeUnixNano"]) == (1, str(NOW))


def test_a_line_is_one_line():
    """No text in a span, not even with every kind of line end, splits its line."""
    text = "a\nb\rc\u2028d\x85e\x00"
    line = traces_line(RESOURCE, SCOPE, [make_span(name=text)])
    assert len(line.split(b"\n")) == 2
    assert json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] == text


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, (1 << 70, 1)])
def test_an_integer_of_more_than_64_bits_is_text(value):
    """An attribute beyond 64 bits stands in the line as it goes over the wire: as text."""
    assert_same(*read_spans(RESOURCE, [make_span(attributes={"big": value})]))


@pytest.mark.parametrize("value", [None, ("a", None)])
def test_a_users_none_does_not_raise(value):
    """A user's span with None in its attributes is written."""
    assert traces_line(RESOURCE, SCOPE, [make_span(attributes={"bad": value})])


def test_an_event_and_a_resource_with_broken_text():
    """Lone surrogates anywhere, such as an undecodable environment, become question marks in the line."""
    span = make_span(events=(EventRecord("\udcff", NOW, {"\udcff": "\udcff"}),))
    line = traces_line(Resource({"host": "\udcff"}), SCOPE, [span])
    (group,) = read(line, ExportTraceServiceRequest()).resource_spans
    assert group.resource.attributes[0].value.string_value == "?"
    assert group.scope_spans[0].spans[0].events[0].name == "?"
