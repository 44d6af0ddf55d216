# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP as JSON objects: attribute values, scopes and metrics of the OTLP file format, one object a line. Spans: `encode_json_spans`.

OTLP/JSON is protobuf's JSON mapping with two exceptions: ids are hexadecimal and enums are numbers. 64-bit integers are text;
NaN and the infinities are the words ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any

from verl_otel.exporting.otlp.encode_metrics import CUMULATIVE
from verl_otel.model import Attributes, HistogramValue, Instrument, Point, Resource, Scope, in_64_bits, to_float

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
