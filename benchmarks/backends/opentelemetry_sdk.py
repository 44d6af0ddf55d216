# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OpenTelemetry SDK, used by hand as its documentation shows: a ``functools.wraps`` wrapper, four attributes, a batch processor.

Its histogram is read by a Prometheus reader, its spans are all sampled. Without an endpoint they go to an exporter that drops
them, which is the least that exporting can cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.backend import ATTRIBUTES, Backend, Function, Region

QUEUE: Final = 1 << 15
"""Spans that may wait for the batch processor: more than a round makes, so that none is dropped and thereby cheap."""
NAME: Final = "bench.work"
_attributes: Final = dict(ATTRIBUTES)
_clock: Final = time.perf_counter


class OpenTelemetry(Backend):
    """The SDK.

    Args:
        endpoint: Address of an OTLP server; empty for an exporter that drops what it gets.
        sampled: Whether spans are sampled.
    """

    addition = "c.add(5, a)"

    def __init__(self, endpoint: str = "", *, sampled: bool = True) -> None:
        self._registry = CollectorRegistry()
        self._meters = MeterProvider([PrometheusMetricReader(registry=self._registry)], shutdown_on_exit=False)
        self._tracers = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(_exporter(endpoint), max_queue_size=QUEUE))
        self._exports = bool(endpoint)
        self._tracer = self._tracers.get_tracer("bench")
        meter = self._meters.get_meter("bench")
        self._counter = meter.create_counter("bench.things")
        self._record = meter.create_histogram(NAME, unit="s").record

    def timed(self, function: Function) -> Function:
        """Wrap around ``Histogram.record``."""
        record = self._record

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = _clock()
            try:
                return function(*args, **kwargs)
            finally:
                record(_clock() - begin, _attributes)

        return timed

    def traced(self, function: Function) -> Function:
        """Wrap around ``start_as_current_span`` and, inside it, ``Histogram.record``."""
        tracer, record = self._tracer, self._record

        @wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with tracer.start_as_current_span(NAME, attributes=_attributes):
                begin = _clock()
                try:
                    return function(*args, **kwargs)
                finally:
                    record(_clock() - begin, _attributes)

        return traced

    def timed_region(self) -> Any:
        """Return a ``contextmanager`` around ``Histogram.record``."""
        record = self._record

        @contextmanager
        def region() -> Iterator[None]:
            begin = _clock()
            try:
                yield
            finally:
                record(_clock() - begin, _attributes)

        return region

    def traced_region(self) -> Region:
        """Return a ``contextmanager`` around ``start_as_current_span`` and ``Histogram.record``."""
        tracer, record = self._tracer, self._record

        @contextmanager
        def region() -> Iterator[None]:
            with tracer.start_as_current_span(NAME, attributes=_attributes):
                begin = _clock()
                try:
                    yield
                finally:
                    record(_clock() - begin, _attributes)

        return region

    def counter(self) -> Any:
        """Return a counter; the SDK has no bound ones."""
        return self._counter

    def deliver(self) -> None:
        """Export every span, or answer a scrape."""
        if self._exports:
            self._tracers.force_flush(60_000)
        else:
            generate_latest(self._registry)

    def close(self) -> None:
        """Stop the batch processor."""
        self._tracers.shutdown()
        self._meters.shutdown()


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 - dropped
        return SpanExportResult.SUCCESS


def _exporter(endpoint: str) -> SpanExporter:
    if not endpoint:
        return _Nowhere()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(f"{endpoint}/v1/traces")
    return exporter
