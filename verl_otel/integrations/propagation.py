# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Interoperation with a host's own OpenTelemetry: the current span as W3C headers, and an early global provider."""

from __future__ import annotations

from typing import Any

from verl_otel._internal import error_boundary
from verl_otel.recording.context import context_access as otel_context
from verl_otel.recording.state import RECORDER
from verl_otel.session import current as current_session


def current_span_context() -> Any:
    """Return OpenTelemetry's ``SpanContext`` of the current span, of whatever tracer; one that is not valid if there is none."""
    context = otel_context()
    return context.span_of(context.get()).get_span_context()


@error_boundary.never_raises("trace headers")
def make_headers() -> dict[str, str] | None:
    """Return the current span as ``traceparent`` and ``tracestate``; None when off or when no span is current.

    The engines read W3C headers only, so ``OTEL_PROPAGATORS`` does not apply here.
    """
    if not RECORDER.on:
        return None
    if not current_span_context().is_valid:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers or None


@error_boundary.never_raises("open provider")
def open_provider() -> None:
    """Open the exporters of this process now, and with them the global provider unless another one is set.

    Otherwise they open up to a second after the first record, and a host's spans of that second would be lost.
    """
    current = current_session()
    if current is not None:
        current.open_now()
