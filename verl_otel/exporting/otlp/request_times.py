# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Gives the points of a request the time of the request, as those of OpenTelemetry's SDK have the time of their collection.

A store takes a value that is sent again with its old time for a repetition, and the series ends there: in Prometheus after five minutes. It
also rejects a request in which one point is older than the request before. Differences keep the time until which they count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from verl_otel.model import Point


def stamp(points: list[Point], is_delta: Callable[[Point], bool] | None) -> list[Point]:
    """Return points of verl-otel with the time of now."""
    now = time.time_ns()
    return [
        point
        if is_delta is not None and is_delta(point)
        else point._replace(time_ns=now, start_ns=min(point.start_ns, now))
        for point in points
    ]


def stamp_message(message: bytes) -> bytes:
    """Return a request with the user's own metrics with the time of now; unchanged if it cannot be read."""
    try:
        request = ExportMetricsServiceRequest.FromString(message)
    except Exception:
        return message
    now = time.time_ns()
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, str(metric.WhichOneof("data")), None)
                if data is None or getattr(data, "aggregation_temporality", 0) == AGGREGATION_TEMPORALITY_DELTA:
                    continue
                for point in data.data_points:
                    point.time_unix_nano = now
    return bytes(request.SerializeToString())
