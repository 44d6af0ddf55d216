# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a host's own OpenTelemetry needs of ours: our span as W3C headers, and a provider that is there in time."""

from __future__ import annotations

from verl_otel import _guard, session
from verl_otel.recording.context import kernel
from verl_otel.recording.store import Store


@_guard.guarded("trace headers")
def make_headers() -> dict[str, str] | None:
    """Return the current span as ``traceparent`` and ``tracestate``; None when off or when no span is current.

    The engines read W3C headers and no others, so the user's ``OTEL_PROPAGATORS`` have no say here.
    """
    if not Store.on:
        return None
    now = kernel()
    if not now.span_of(now.get()).get_span_context().is_valid:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers or None


@_guard.guarded("open provider")
def open_provider() -> None:
    """Open this process's exporters now, and with them the global provider, if nobody else has set one.

    They open with the first record otherwise, up to a second after it: a host's spans of that second would be lost.
    """
    current = session.current()
    if current is not None:
        current.open_now()
