# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read OTLP JSON, as files and requests hold it. Shares no code with the library."""

import json


def read_objects(path):
    """Return the objects of the whole lines of a file; the last line may be half written."""
    *lines, _rest = path.read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines]


def each_span(message):
    """Yield the attributes of the resource, the name of the scope, and the span, for each span of a message."""
    return _each(message["resourceSpans"], "scopeSpans", "spans")


def each_metric(message):
    """Yield the attributes of the resource, the name of the scope, and the metric, for each metric of a message."""
    return _each(message["resourceMetrics"], "scopeMetrics", "metrics")


def each_log(message):
    """Yield the attributes of the resource, the name of the scope, and the record, for each record of a log of a message."""
    return _each(message["resourceLogs"], "scopeLogs", "logRecords")


def _each(groups, scopes, items):
    for group in groups:
        resource = read_attributes(group["resource"].get("attributes", ()))
        for scope in group[scopes]:
            name = scope.get("scope", {}).get("name", "")
            for item in scope[items]:
                yield resource, name, item


def each_point(metric):
    """Return the points of a metric of any kind."""
    return next(metric[kind] for kind in ("gauge", "sum", "histogram") if kind in metric)["dataPoints"]


def read_number(point):
    """Return the value of a point; of a histogram, the number of measurements."""
    if "count" in point:
        return int(point["count"])
    return float(point["asDouble"]) if "asDouble" in point else int(point["asInt"])


def read_attributes(pairs):
    """Return attributes as a dictionary, with integers as numbers and arrays as lists."""
    return {pair["key"]: _read_value(pair["value"]) for pair in pairs}


def _read_value(value):
    (kind, content), *_ = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_read_value(item) for item in content.get("values", [])]
    return content
