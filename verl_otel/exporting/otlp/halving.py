# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Halves a request that is too large for the server, or for a proxy in front of it (nginx accepts 1 MiB by default).

A request is parsed for it, which is slow and rare: a sender remembers the smallest size that was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def halve(signal: str, body: bytes) -> list[tuple[bytes, int]]:
    """Return two requests with half of the items each, with their numbers of items; nothing if there is one item, or it cannot be read.

    Args:
        signal: One of `SIGNALS`.
        body: An export request. Items are spans, log records or data points.
    """
    try:
        request = _request_type(signal).FromString(body)
    except Exception:
        return []
    total = sum(len(items) for items in _each_list(signal, request))
    half = total // 2
    if not half:
        return []
    parts = [(0, half), (half, total)]
    return [(_keep(signal, body, begin, end), end - begin) for begin, end in parts]


def _keep(signal: str, body: bytes, begin: int, end: int) -> bytes:
    """Return a request with the items from ``begin`` to ``end`` only."""
    request = _request_type(signal).FromString(body)
    place = 0
    for items in _each_list(signal, request):
        count = len(items)
        del items[max(0, min(count, end - place)) :]
        del items[: max(0, min(count, begin - place))]
        place += count
    _remove_empty(signal, request)
    return bytes(request.SerializeToString())


def _request_type(signal: str) -> Any:
    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request
    elif signal == "logs":
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (  # type: ignore[assignment]
            ExportLogsServiceRequest as Request,
        )
    else:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # type: ignore[assignment]
            ExportMetricsServiceRequest as Request,
        )
    return Request


def _each_scope(signal: str, request: Any) -> Iterator[Any]:
    kind = "spans" if signal == "traces" else signal
    for resource in getattr(request, f"resource_{kind}"):
        yield from getattr(resource, f"scope_{kind}")


def _each_list(signal: str, request: Any) -> Iterator[Any]:
    """Yield each list of items, in order."""
    for scope in _each_scope(signal, request):
        if signal == "traces":
            yield scope.spans
        elif signal == "logs":
            yield scope.log_records
        else:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is not None:
                    yield getattr(metric, kind).data_points


def _remove_empty(signal: str, request: Any) -> None:
    """Remove metrics without a data point."""
    if signal != "metrics":
        return
    for scope in _each_scope(signal, request):
        for index in reversed(range(len(scope.metrics))):
            metric = scope.metrics[index]
            kind = metric.WhichOneof("data")
            if kind is not None and not getattr(metric, kind).data_points:
                del scope.metrics[index]
