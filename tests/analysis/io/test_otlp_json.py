# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of files become the records that were written, whatever they hold; what cannot be one raises what the reader expects."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis.io import otlp_json as otlp
from verl_otel.exporting import files
from verl_otel.exporting.files import traces_line
from verl_otel.model import Instrument, LinkRecord, Point, Resource, Scope, SpanRecord


def usual(record):
    """What the fields of a record have that are not read back: how much was dropped, the scope."""
    return [st.just(value) for value in record._field_defaults.values()]


PRIMITIVES = [st.text(max_size=20), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)]
VALUES = st.one_of(*PRIMITIVES, *(st.lists(each, min_size=1, max_size=3).map(tuple) for each in PRIMITIVES))
ATTRIBUTES = st.dictionaries(st.text(max_size=10), VALUES, max_size=4)
IDS, TRACE_IDS = st.integers(1, 2**64 - 1), st.integers(1, 2**128 - 1)
TIMES = st.integers(1, 2**63 - 1)
SPANS = st.builds(
    SpanRecord,
    TRACE_IDS,
    IDS,
    st.one_of(st.just(0), IDS),
    st.text(max_size=30),
    st.integers(1, 5),
    TIMES,
    TIMES,
    ATTRIBUTES,
    st.lists(st.builds(LinkRecord, TRACE_IDS, IDS, ATTRIBUTES, *usual(LinkRecord)), max_size=3).map(tuple),
    st.just(()),
    st.integers(0, 2),
    st.text(max_size=20),
    st.sampled_from([1, 0x201]),
    st.sampled_from(["", "verl=s", "verl=t"]),
    *usual(SpanRecord),
)
RESOURCE = Resource({"service.instance.id": "r1/trainer-0", "process.pid": 7, "verl.gpu.ids": ("0", "1")})


def line(thing):
    """An object as the file exporter writes it."""
    return json.dumps(thing, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


@pytest.mark.full
@given(st.lists(SPANS, min_size=1, max_size=4))
@settings(deadline=None)
def test_reading_is_the_inverse_of_writing(spans):
    """Every span that is written is read back equal, with the resource of who wrote it."""
    ((raw, read),) = otlp.read_spans(traces_line(RESOURCE, Scope("s"), spans))
    assert [span._replace(flags=span.flags & ~0x100) for span in read] == spans
    assert otlp.read_resource(raw) == RESOURCE.attributes


def test_spans_of_all_scopes_are_read():
    """A user's own spans, which have a scope of their own, belong to their process as ours do."""
    spans = [SpanRecord(1, number, 0, "x", 1, 1, 2, {}, (), (), 0, "", 1, "", Scope(f"s{number}")) for number in (1, 2)]
    ((_, read),) = otlp.read_spans(traces_line(RESOURCE, Scope("s"), spans))
    assert [span.span_id for span in read] == [1, 2]


def test_values_that_only_newer_kits_write_are_left_empty():
    """Bytes and maps in a user's attributes cost their value, not their span."""
    span = SpanRecord(1, 1, 0, "x", 1, 1, 2, {"a": b"1", "b": {"c": 1}, "d": None, "e": 1}, (), (), 0, "", 1, "")
    ((_, (read,)),) = otlp.read_spans(traces_line(RESOURCE, Scope("s"), [span]))
    assert read.attributes == {"a": (), "b": (), "d": (), "e": 1}


def test_numbers_keep_what_json_cannot_say():
    """NaN and the infinities are read back as numbers, integers too, attributes as well as points."""
    values = [math.inf, -math.inf, 3, -1.5, math.nan]
    gauge = Instrument("x", "gauge", "", "")
    points = [Point(gauge, (("k", str(number)),), 0, number + 1, value) for number, value in enumerate(values)]
    ((_, read),) = otlp.read_points(line(files.metrics_object(RESOURCE, Scope("s"), points)))
    assert [repr(point.value) for point in read] == ["inf", "-inf", "3.0", "-1.5", "nan"]
    assert [(point.name, point.labels, point.time_ns) for point in read] == [
        ("x", (("k", str(number)),), number + 1) for number in range(5)
    ]
    span = SpanRecord(1, 1, 0, "x", 1, 1, 2, {"a": math.nan, "b": (math.inf,)}, (), (), 0, "", 1, "")
    ((_, (found,)),) = otlp.read_spans(traces_line(RESOURCE, Scope("s"), [span]))
    assert (repr(found.attributes["a"]), found.attributes["b"]) == ("nan", (math.inf,))


def test_histograms_are_no_values():
    """Of metrics only gauges and sums are read; a histogram beside them does no harm."""
    thing = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [
        {"name": "h", "histogram": {"dataPoints": [{"timeUnixNano": "1", "sum": 3}]}},
        {"name": "s", "sum": {"dataPoints": [{"timeUnixNano": "1", "asInt": "2"}]}},
    ]}]}]}  # fmt: skip
    ((_, points),) = otlp.read_points(line(thing))
    assert [(point.name, point.value) for point in points] == [("s", 2.0)]


SPAN = '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","spanId":"1","name":"verl.step",%s}]}]}]}'
TIMED = '"startTimeUnixNano":"1"'


@pytest.mark.parametrize(
    "text",
    [
        "garbage", "{}", "[]", "null", "3", '"text"', "[" * 100_000, '{"resourceSpans": 3}', '{"resourceSpans": [3]}',
        SPAN % '"startTimeUnixNano":Infinity',
        SPAN % '"startTimeUnixNano":"-1"',
        SPAN % '"startTimeUnixNano":"0"',
        SPAN % '"startTimeUnixNano":"9999999999999999999999"',
        SPAN % f'{TIMED},"kind":1e999',
        SPAN % f'{TIMED},"links":[{{"traceId":"z","spanId":"1"}}]',
        SPAN % f'{TIMED},"attributes":[{{"key":"a","value":{{"intValue":"9223372036854775808"}}}}]',
        SPAN % f'{TIMED},"attributes":[{{"key":"a","value":{{"doubleValue":"many"}}}}]',
    ],
)  # fmt: skip
def test_a_line_that_is_none_raises_what_is_expected(text):
    """Whatever is wrong with a line, it is one of the errors by which the reader knows that."""
    with pytest.raises(otlp.UNREADABLE):
        list(otlp.read_spans(text.encode()))


def test_a_line_of_invalid_text_raises_what_is_expected():
    """Bytes that are no UTF-8 are damage, too."""
    with pytest.raises(otlp.UNREADABLE):
        list(otlp.read_spans((SPAN % TIMED).replace("verl", "\xff").encode("latin-1")))
