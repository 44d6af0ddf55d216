# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP as JSON: the lines of the OTLP file format.

OTLP/JSON is protobuf's JSON mapping with two exceptions: ids are hexadecimal and enums are numbers. 64-bit integers are text;
NaN and the infinities are the words ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as quote
from typing import Any, Final

from verl_otel.exporting.otlp.protobuf import CUMULATIVE, KeptPairs
from verl_otel.model import (
    NONE_DROPPED,
    Attributes,
    EventRecord,
    HistogramValue,
    Instrument,
    LinkRecord,
    Point,
    Resource,
    Scope,
    SharedAttributes,
    SpanRecord,
    in_64_bits,
    to_float,
)

Json = dict[str, Any]


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def value_object(value: Any) -> Json:
    """Return an ``AnyValue`` object."""
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if in_64_bits(value) else {"stringValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [value_object(item) for item in value]}}
    return _rare_value(value)


def _rare_value(value: Any) -> Json:
    """Return what newer SDKs allow in the attributes of a user's own spans."""
    if value is None:
        return {}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    return {"stringValue": str(value)}


def _attributes(attributes: Attributes) -> list[Json]:
    return [{"key": key, "value": value_object(value)} for key, value in attributes.items()]


def _point(point: Point) -> Json:
    labels = [{"key": key, "value": {"stringValue": value}} for key, value in point.labels]
    encoded: Json = {"attributes": labels, "timeUnixNano": str(point.time_ns)}
    if point.instrument.kind != "gauge":
        encoded["startTimeUnixNano"] = str(point.start_ns)
    value = point.value
    if isinstance(value, HistogramValue):
        encoded |= {
            "count": str(value.samples),
            "sum": _double(value.total),
            "bucketCounts": [str(count) for count in value.counts],
            "explicitBounds": [_double(bound) for bound in value.bounds],
        }
        if value.samples:
            encoded |= {"min": _double(value.minimum), "max": _double(value.maximum)}
    elif isinstance(value, int) and in_64_bits(value):
        encoded["asInt"] = str(int(value))
    else:
        encoded["asDouble"] = _double(to_float(value))
    if point.exemplars:
        encoded["exemplars"] = [
            {
                "timeUnixNano": str(exemplar.time_ns),
                "asDouble": _double(exemplar.value),
                "traceId": f"{exemplar.trace_id:032x}",
                "spanId": f"{exemplar.span_id:016x}",
            }
            for exemplar in point.exemplars
        ]
    return encoded


def _metric(instrument: Instrument, points: list[Point]) -> Json:
    encoded: Json = {"name": instrument.name, "unit": instrument.unit, "description": instrument.description}
    data: Json = {"dataPoints": [_point(point) for point in points]}
    if instrument.kind == "gauge":
        return {**encoded, "gauge": data}
    data["aggregationTemporality"] = CUMULATIVE
    if instrument.kind == "histogram":
        return {**encoded, "histogram": data}
    return {**encoded, "sum": {**data, "isMonotonic": instrument.kind == "counter"}}


def metrics_object(resource: Resource, scope: Scope, points: Iterable[Point]) -> Json:
    """Return a ``MetricsData`` object with one metric per instrument."""
    by_instrument: dict[Instrument, list[Point]] = {}
    for point in points:
        by_instrument.setdefault(point.instrument, []).append(point)
    metrics = [_metric(instrument, group) for instrument, group in by_instrument.items()]
    schema = {"schemaUrl": scope.schema_url} if scope.schema_url else {}
    scopes = [{"scope": scope_object(scope), "metrics": metrics, **schema}]
    return {"resourceMetrics": [{"resource": {"attributes": _attributes(resource.attributes)}, "scopeMetrics": scopes}]}


def scope_object(scope: Scope) -> Json:
    """Return an ``InstrumentationScope`` object."""
    return {"name": scope.name, **({"version": scope.version} if scope.version else {})}


# -- Spans: the text is written directly, not by `json.dumps` of objects, which takes three times as long --
# The text of names, and of attributes whose values come again, is kept.

MAX_KEPT: Final = 4096
"""Names, keys and trace states whose text is kept; further ones are written each time."""
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_TRUTH: Final = ('"boolValue":false}}', '"boolValue":true}}')
_keys: dict[str, str] = {}
_names: dict[tuple[str, int], str] = {}
_states: dict[str, str] = {"": ""}


def _key(key: str) -> str:
    text = '{"key":' + quote(key) + ',"value":{'
    if len(_keys) < MAX_KEPT:
        _keys[key] = text
    return text


def _pair(key: str, value: Any) -> str:
    """Return a ``KeyValue`` object."""
    head, kind = _keys.get(key) or _key(key), type(value)
    if kind is str:
        return f'{head}"stringValue":{quote(value)}}}}}'
    if kind is int and in_64_bits(value):
        return f'{head}"intValue":"{value}"}}}}'
    if kind is bool:
        return head + _TRUTH[value]
    if kind is float and value - value == 0.0:  # finite
        return f'{head}"doubleValue":{value!r}}}}}'
    return f"{head}{_dumps(value_object(value))[1:]}}}"


_kept_pairs: Final = KeptPairs(_pair)


def _pairs(attributes: Attributes) -> str:
    """Return the elements of a list of ``KeyValue`` objects."""
    get = _kept_pairs.get
    texts = []
    items: Iterable[tuple[str, Any]] = attributes.items()
    for pair in items:
        key, value = pair
        kind = type(value)
        # see `KeptPairs`
        if kind is str or kind is int or (kind is tuple and len(value) == 1 and type(value[0]) is str):
            texts.append(get(pair) or _kept_pairs.make(pair))
        else:
            texts.append(_pair(key, value))
    return ",".join(texts)


def _name(name: str, kind: int) -> str:
    text = f',"name":{quote(name)},"kind":{kind},"attributes":['
    if len(_names) < MAX_KEPT:
        _names[name, kind] = text
    return text


def _head(name: str, kind: int, attributes: Attributes) -> str:
    """Return name, kind and attributes, without the end of the list."""
    return (_names.get((name, kind)) or _name(name, kind)) + _pairs(attributes)


def _state(state: str) -> str:
    text = f',"traceState":{quote(state)}'
    if len(_states) < MAX_KEPT:
        _states[state] = text
    return text


def _dropped(what: str, count: int) -> str:
    return f',"dropped{what}Count":{count}' if count else ""


def _link(link: LinkRecord) -> str:
    return (
        f'{{"traceId":"{link.trace_id:032x}","spanId":"{link.span_id:016x}","attributes":[{_pairs(link.attributes)}],'
        f'"flags":{0x100 | link.flags}{_state(link.trace_state) if link.trace_state else ""}'
        f"{_dropped('Attributes', link.dropped)}}}"
    )


def _event(event: EventRecord) -> str:
    return (
        f'{{"name":{quote(event.name)},"timeUnixNano":"{event.time_ns}","attributes":[{_pairs(event.attributes)}]'
        f"{_dropped('Attributes', event.dropped)}}}"
    )


def _extras(span: SpanRecord) -> str:
    """Return what most spans do not have."""
    text = f',"links":[{",".join(map(_link, span.links))}]' if span.links else ""
    if span.events:
        text += f',"events":[{",".join(map(_event, span.events))}]'
    if span.status or span.message:
        message = f',"message":{quote(span.message)}' if span.message else ""
        text += f',"status":{{"code":{span.status}{message}}}'
    return text + "".join(map(_dropped, ("Attributes", "Events", "Links"), span.dropped))


def span_texts(spans: Iterable[SpanRecord]) -> list[str]:
    """Return each span as a JSON object. An open span has the end time ``"0"``.

    Raises:
        Exception: A span cannot be encoded, whatever is wrong with it.
    """
    texts: list[str] = []
    last_trace = last_parent = -1
    trace = parent = ""
    for span in spans:
        (
            trace_id, span_id, parent_id, name, kind, start, end, attributes, links, events, status, message, flags, state,
            _, dropped,
        ) = span  # fmt: skip
        if trace_id != last_trace:
            last_trace, trace = trace_id, f'{{"traceId":"{trace_id:032x}","spanId":"'
        if parent_id != last_parent:
            last_parent, parent = parent_id, f'","parentSpanId":"{parent_id:016x}"' if parent_id else '"'
        if type(attributes) is SharedAttributes:
            known_name, known_kind, head = attributes.kept_text
            if known_name is not name or known_kind != kind:
                head = _head(name, kind, attributes)
                attributes.kept_text = (name, kind, head)
        else:
            head = (_names.get((name, kind)) or _name(name, kind)) + _pairs(attributes)
        rest = "" if not state else _states.get(state) or _state(state)
        if events or links or status or message or dropped is not NONE_DROPPED:
            rest += _extras(span)
        texts.append(
            f'{trace}{span_id:016x}{parent}{head}],"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}",'
            f'"flags":{0x100 | flags}{rest}}}'
        )
    return texts


def traces_line(resource: Resource, scope: Scope, spans: Iterable[SpanRecord]) -> bytes:
    """Return a ``TracesData`` object with the spans of each scope apart, as one line with its newline."""
    by_scope: dict[Scope, list[SpanRecord]] = {}
    for span in spans:
        by_scope.setdefault(span.scope or scope, []).append(span)
    scopes = ",".join(
        f'{{"scope":{_dumps(scope_object(span_scope))},"spans":[{",".join(span_texts(group))}]'
        + (f',"schemaUrl":{quote(span_scope.schema_url)}' if span_scope.schema_url else "")
        + "}"
        for span_scope, group in by_scope.items()
    )
    attributes = _pairs(resource.attributes)
    text = f'{{"resourceSpans":[{{"resource":{{"attributes":[{attributes}]}},"scopeSpans":[{scopes}]}}]}}\n'
    return text.encode("utf-8", "replace")
