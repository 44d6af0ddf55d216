# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes a line of a run's file: OTLP/JSON objects into `SpanRecord`, resources and points.

The decoder is msgspec's with typed structures: it creates no objects for unused fields (buckets, events, scopes). A line that it
rejects, with a number of more than 64 bits or a value of another type, is skipped; the caller reports it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, NamedTuple, Union

import msgspec

from verl_otel.model import SAMPLED, AttributeValue, LinkRecord, SpanRecord

UNREADABLE: Final = (
    msgspec.MsgspecError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""Exceptions that a damaged line can raise."""

_Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Time = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
"""A time in nanoseconds since 1970; OTLP writes 0 for a time that is not known."""


class _Value(msgspec.Struct, gc=False, rename="camel"):
    string_value: str | None = None
    int_value: _Integer | None = None
    double_value: Union[float, str, None] = None  # "NaN" and the infinities are strings
    bool_value: bool | None = None
    array_value: Any = None


class _Pair(msgspec.Struct, gc=False, rename="camel"):
    key: str
    value: _Value


class _Link(msgspec.Struct, gc=False, rename="camel"):
    trace_id: str
    span_id: str
    attributes: msgspec.Raw = msgspec.Raw(b"[]")


class _Status(msgspec.Struct, gc=False, rename="camel"):
    code: int = 0
    message: str = ""


class _Span(msgspec.Struct, gc=False, rename="camel"):
    trace_id: str
    span_id: str
    name: str
    start_time_unix_nano: _Time
    end_time_unix_nano: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0  # 0: still open
    parent_span_id: str = ""
    kind: int = 1
    attributes: msgspec.Raw = msgspec.Raw(b"[]")
    links: list[_Link] = []
    status: _Status | None = None
    flags: int = SAMPLED
    trace_state: str = ""


class _ScopeSpans(msgspec.Struct, gc=False, rename="camel"):
    spans: list[_Span] = []


class _ResourceSpans(msgspec.Struct, gc=False, rename="camel"):
    resource: msgspec.Raw = msgspec.Raw(b"{}")
    scope_spans: list[_ScopeSpans] = []


class _Traces(msgspec.Struct, gc=False, rename="camel"):
    resource_spans: list[_ResourceSpans]


class _OpenLine(_Traces, gc=False, rename="camel"):
    ended: list[str] = []
    written_unix_nano: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


class _Point(msgspec.Struct, gc=False, rename="camel"):
    time_unix_nano: _Time
    attributes: list[_Pair] = []
    as_int: _Integer | None = None
    as_double: Union[float, str, None] = None


class _Points(msgspec.Struct, gc=False, rename="camel"):
    data_points: list[_Point] = []


class _Metric(msgspec.Struct, gc=False, rename="camel"):
    name: str
    gauge: _Points | None = None
    sum: _Points | None = None


class _ScopeMetrics(msgspec.Struct, gc=False, rename="camel"):
    metrics: list[_Metric] = []


class _ResourceMetrics(msgspec.Struct, gc=False, rename="camel"):
    resource: msgspec.Raw = msgspec.Raw(b"{}")
    scope_metrics: list[_ScopeMetrics] = []


class _Metrics(msgspec.Struct, gc=False, rename="camel"):
    resource_metrics: list[_ResourceMetrics]


class _Resource(msgspec.Struct, gc=False, rename="camel"):
    attributes: list[_Pair] = []


_TRACES: Final = msgspec.json.Decoder(_Traces, strict=False)
_OPEN: Final = msgspec.json.Decoder(_OpenLine, strict=False)
_METRICS: Final = msgspec.json.Decoder(_Metrics, strict=False)
_PAIRS: Final = msgspec.json.Decoder(list[_Pair], strict=False)
_RESOURCE: Final = msgspec.json.Decoder(_Resource, strict=False)
_new: Final = tuple.__new__
_SPAN_DEFAULTS: Final = tuple(SpanRecord._field_defaults.values())
_LINK_DEFAULTS: Final = tuple(LinkRecord._field_defaults.values())
_share: Final = functools.lru_cache(maxsize=4096)(str)
"""One object for equal texts of many spans: less memory to go through makes a reader faster by a twelfth."""


class PointRecord(NamedTuple):
    """One value of one series at one time."""

    name: str
    labels: tuple[tuple[str, str], ...]
    time_ns: int
    value: float


def read_spans(line: bytes) -> Iterator[tuple[bytes, list[SpanRecord]]]:
    """Return the spans of one line of ``traces-`` or ``open-``, with the (raw) resource of their process."""
    return _groups(_TRACES.decode(line))


def read_open(line: bytes) -> tuple[list[tuple[bytes, list[SpanRecord]]], list[int], int]:
    """Return the spans that have begun or changed by a line of ``open-``, the ids of those that ended, and when it was written (0: unknown).

    The spans come with the (raw) resource of their process.
    """
    decoded = _OPEN.decode(line)
    return list(_groups(decoded)), [int(span_id, 16) for span_id in decoded.ended], decoded.written_unix_nano


def _groups(traces: _Traces) -> Iterator[tuple[bytes, list[SpanRecord]]]:
    for group in traces.resource_spans:
        yield bytes(group.resource), [_record(span) for scope in group.scope_spans for span in scope.spans]


def read_points(line: bytes) -> Iterator[tuple[bytes, list[PointRecord]]]:
    """Return gauges and sums of one line of ``metrics-``, with the (raw) resource of their process."""
    for group in _METRICS.decode(line).resource_metrics:
        points = []
        for scope in group.scope_metrics:
            for metric in scope.metrics:
                data = metric.gauge or metric.sum
                points += [_point(metric.name, point) for point in data.data_points] if data else []
        yield bytes(group.resource), points


def read_resource(raw: bytes) -> dict[str, AttributeValue]:
    """Return the attributes of a resource."""
    return _attributes(_RESOURCE.decode(raw).attributes)


def _record(span: _Span) -> SpanRecord:
    status, parent, links = span.status, span.parent_span_id, span.links
    return _new(  # takes a third of the time of the constructor with keywords
        SpanRecord,
        (
            int(span.trace_id, 16),
            int(span.span_id, 16),
            int(parent, 16) if parent else 0,
            _share(span.name),
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _read_attributes(bytes(span.attributes)),
            tuple(map(_link, links)) if links else (),
            (),
            status.code if status else 0,
            status.message if status else "",
            span.flags,
            _share(span.trace_state),
            *_SPAN_DEFAULTS,
        ),
    )


def _link(link: _Link) -> LinkRecord:
    read = _read_attributes(bytes(link.attributes))
    return _new(LinkRecord, (int(link.trace_id, 16), int(link.span_id, 16), read, *_LINK_DEFAULTS))


def _point(name: str, point: _Point) -> PointRecord:
    labels = tuple((key, str(value)) for key, value in _attributes(point.attributes).items())
    raw = point.as_int if point.as_int is not None else point.as_double
    if raw is None:
        raise ValueError("a point without a value")
    return PointRecord(name, labels, point.time_unix_nano, float(raw))


@functools.lru_cache(maxsize=1024)
def _read_attributes(raw: bytes) -> dict[str, AttributeValue]:
    """Return attributes. Half of all spans share theirs with others: turns, tools, servers, links."""
    return _attributes(_PAIRS.decode(raw))


def _attributes(pairs: list[_Pair]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    for pair in pairs:  # the hottest loop of a report: 50 million times for a long run
        value = pair.value
        plain_value: AttributeValue | None = value.string_value
        if plain_value is None:
            plain_value = value.int_value
            if plain_value is None:
                plain_value = value.bool_value
                if plain_value is None:
                    plain_value = _rare(value)
        attributes[_share(pair.key)] = plain_value
    return attributes


def _rare(value: _Value) -> AttributeValue:
    if value.double_value is not None:
        return float(value.double_value)
    array = value.array_value
    return tuple(_items(array["values"])) if array and "values" in array else ()  # type: ignore[arg-type]  # of one type, as written


def _items(values: Iterable[Any]) -> Iterator[AttributeValue]:
    for item in values:
        yield _attributes([_Pair("", msgspec.convert(item, _Value, strict=False))])[""]
