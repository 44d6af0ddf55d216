# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans as OTLP/JSON objects, written plainly: the reference that the text of the library is compared with. Shares no code with it."""

import base64
import math
from collections.abc import Mapping


def _double(value):
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _value(value):
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if -(1 << 63) <= value < 1 << 63 else {"stringValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return _rare_value(value)


def _rare_value(value):
    """Return what newer SDKs allow in the attributes of a user's own spans."""
    if value is None:
        return {}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    return {"stringValue": str(value)}


def _attributes(attributes):
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def span_object(span):
    """Return one ``Span`` object. An open span has the end time ``"0"``."""
    encoded = {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "flags": 0x100 | span.flags,
    }
    if span.parent_id:
        encoded["parentSpanId"] = f"{span.parent_id:016x}"
    if span.trace_state:
        encoded["traceState"] = span.trace_state
    if span.links:
        encoded["links"] = [
            {
                "traceId": f"{link.trace_id:032x}",
                "spanId": f"{link.span_id:016x}",
                "attributes": _attributes(link.attributes),
                "flags": 0x100 | link.flags,
                **({"traceState": link.trace_state} if link.trace_state else {}),
                **_dropped("Attributes", link.dropped),
            }
            for link in span.links
        ]
    if span.events:
        encoded["events"] = [
            {
                "name": event.name,
                "timeUnixNano": str(event.time_ns),
                "attributes": _attributes(event.attributes),
                **_dropped("Attributes", event.dropped),
            }
            for event in span.events
        ]
    if span.status or span.message:
        encoded["status"] = {"code": span.status, **({"message": span.message} if span.message else {})}
    if any(span.dropped):
        for what, count in zip(("Attributes", "Events", "Links"), span.dropped, strict=True):
            encoded |= _dropped(what, count)
    return encoded


def _dropped(what, count):
    return {f"dropped{what}Count": count} if count else {}


def traces_object(resource, scope, spans):
    """Return a ``TracesData`` object with the spans of each scope apart."""
    by_scope = {}
    for span in spans:
        by_scope.setdefault(span.scope or scope, []).append(span_object(span))
    scopes = [
        {"scope": _scope(span_scope), "spans": spans_, **_schema(span_scope)} for span_scope, spans_ in by_scope.items()
    ]
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource.attributes)}, "scopeSpans": scopes}]}


def _scope(scope):
    return {"name": scope.name, **({"version": scope.version} if scope.version else {})}


def _schema(scope):
    return {"schemaUrl": scope.schema_url} if scope.schema_url else {}
