# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of vLLM's tracing: the same choice of parents, the global provider at call time."""

import os
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


def init_tracer(
    instrumenting_module_name: str, otlp_traces_endpoint: str, extra_attributes: dict[str, str] | None = None
):
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = otlp_traces_endpoint


def extract_trace_context(headers: Mapping[str, str] | None):
    return TraceContextTextMapPropagator().extract(headers) if headers else None


def instrument_manual(
    span_name: str,
    start_time: int,
    end_time: int | None = None,
    attributes: dict[str, Any] | None = None,
    context: Any = None,
    kind: Any = None,
):
    if context is None and not trace.get_current_span().get_span_context().is_valid:
        context = TraceContextTextMapPropagator().extract(dict(os.environ))
    span = trace.get_tracer(__name__).start_span(span_name, context=context, start_time=start_time, kind=kind)
    span.set_attributes(attributes or {})
    span.end(end_time)
