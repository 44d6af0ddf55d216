# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP as bytes, written directly: a tenth to a thirtieth of the cost of the SDK's encoder.

Field numbers and types: opentelemetry-proto 1.x, ``trace.proto``, ``metrics.proto``, ``common.proto``. The tests parse the
bytes and compare them with the SDK encoder's messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from verl_otel.exporting.otlp.encode_spans import encode_spans
from verl_otel.exporting.otlp.protobuf import field, key_values, text, varint
from verl_otel.model import (
    Exemplar,
    HistogramValue,
    Instrument,
    Point,
    Resource,
    Scope,
    SpanRecord,
    in_64_bits,
    to_float,
)

DELTA: Final = 1
CUMULATIVE: Final = 2
_double = struct.Struct("<d").pack
_fixed64 = struct.Struct("<Q").pack
_signed64 = struct.Struct("<q").pack


def _exemplar(exemplar: Exemplar) -> bytes:
    out = b"\x11" + _fixed64(exemplar.time_ns) + b"\x19" + _double(exemplar.value)
    return out + field(4, exemplar.span_id.to_bytes(8, "big")) + field(5, exemplar.trace_id.to_bytes(16, "big"))


def _histogram_point(point: Point, value: HistogramValue) -> bytes:
    out = b"\x11" + _fixed64(point.start_ns) + b"\x19" + _fixed64(point.time_ns)
    out += b"\x21" + _fixed64(value.samples) + b"\x29" + _double(value.total)
    out += field(6, b"".join(map(_fixed64, value.counts))) + field(7, b"".join(map(_double, value.bounds)))
    for exemplar in point.exemplars:
        out += field(8, _exemplar(exemplar))
    out += key_values(9, point.labels)
    if (
        value.minimum <= value.maximum
    ):  # of no measurement, or of an interval of which only the whole is known, there are none
        out += b"\x59" + _double(value.minimum) + b"\x61" + _double(value.maximum)
    return out


def _number_point(point: Point, value: float) -> bytes:
    start = b"" if point.instrument.kind == "gauge" else b"\x11" + _fixed64(point.start_ns)
    whole = isinstance(value, int) and in_64_bits(value)
    number = b"\x31" + _signed64(value) if whole else b"\x21" + _double(to_float(value))
    return start + b"\x19" + _fixed64(point.time_ns) + number + key_values(7, point.labels)


def _metric(instrument: Instrument, points: Sequence[Point], temporality: int) -> bytes:
    out = field(1, text(instrument.name))
    if instrument.description:
        out += field(2, text(instrument.description))
    if instrument.unit:
        out += field(3, text(instrument.unit))
    data = b"".join(
        field(
            1,
            _histogram_point(point, point.value)
            if isinstance(point.value, HistogramValue)
            else _number_point(point, point.value),
        )
        for point in points
    )
    tail = b"\x10" + varint(temporality)
    if instrument.kind == "gauge":
        return out + field(5, data)
    if instrument.kind == "histogram":
        return out + field(9, data + tail)
    if instrument.kind == "counter":
        return out + field(7, data + tail + b"\x18\x01")
    return out + field(7, data + tail)


def _scope(scope: Scope) -> bytes:
    return field(1, text(scope.name)) + (field(2, text(scope.version)) if scope.version else b"")


def encode_traces(resource: Resource, scope: Scope, spans: Iterable[SpanRecord]) -> bytes:
    """Return an ``ExportTraceServiceRequest`` with all spans, those of other scopes under their own.

    Args:
        resource: The sender.
        scope: The scope of records that name none.
        spans: Ended spans.
    """
    by_scope: dict[Scope, list[SpanRecord]] = {}
    group: list[SpanRecord] | None = None
    last: Scope | None = None
    for span in spans:
        span_scope = span.scope
        if group is None or span_scope is not last:  # a scope is hashed again each time it is looked up
            group, last = by_scope.setdefault(span_scope or scope, []), span_scope
        group.append(span)
    return make_request(resource, {span_scope: encode_spans(group) for span_scope, group in by_scope.items()})


def encode_metrics(
    resource: Resource, scope: Scope, points: Iterable[Point], is_delta: Callable[[Point], bool] | None = None
) -> bytes:
    """Return an ``ExportMetricsServiceRequest`` with one ``Metric`` per instrument.

    Args:
        resource: The sender.
        scope: The scope of all of them.
        points: What to send.
        is_delta: Returns whether a point is a difference; absent, none is.
    """
    by_instrument: dict[Instrument, list[Point]] = {}
    for point in points:
        by_instrument.setdefault(point.instrument, []).append(point)
    metrics = []
    for instrument, group in by_instrument.items():
        temporality = DELTA if is_delta is not None and is_delta(group[0]) else CUMULATIVE
        metrics.append(field(2, _metric(instrument, group, temporality)))
    return make_request(resource, {scope: metrics})


def make_request(resource: Resource, by_scope: dict[Scope, list[bytes]]) -> bytes:
    """Return an export request of any signal: its three levels have the same field numbers.

    Args:
        resource: The sender.
        by_scope: Encoded items, each as field 2 of its scope's message.
    """
    out = field(1, key_values(1, resource.attributes.items()))
    for scope, items in by_scope.items():
        schema = field(3, text(scope.schema_url)) if scope.schema_url else b""
        out += field(2, field(1, _scope(scope)) + b"".join(items) + schema)
    return field(1, out)
