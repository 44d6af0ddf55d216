# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tracer that aiohttp's instrumentation is given: the global one, within our rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace

from verl_otel.recording.store import Store


class GuestTracer(trace.Tracer):
    """Makes spans below a current one, and keeps the messages of exceptions to itself."""

    def __init__(self, tracer: trace.Tracer, is_on: Callable[[], bool]) -> None:
        self._tracer = tracer
        self._is_on = is_on

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> trace.Span:
        """Begin a span; one that records nothing when off, or without a span above it."""
        if not self._is_on() or not trace.get_current_span(context).get_span_context().is_valid:
            return trace.INVALID_SPAN
        span = self._tracer.start_span(name, context, *args, **kwargs)
        if not Store.capture_content:
            span.record_exception = _leave_out  # type: ignore[method-assign]  # the message may hold a prompt
        return span

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a span and make it the current one; the instrumentation does not use it."""
        return self._tracer.start_as_current_span(*args, **kwargs)


class GuestProvider(trace.TracerProvider):
    """Gives `GuestTracer` around the tracer of whoever is the global provider."""

    def __init__(self, is_on: Callable[[], bool]) -> None:
        self._is_on = is_on

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        """Return a tracer; see `opentelemetry.trace.TracerProvider.get_tracer`."""
        return GuestTracer(trace.get_tracer_provider().get_tracer(*args, **kwargs), self._is_on)


def _leave_out(*args: Any, **kwargs: Any) -> None:
    """Stand in for ``record_exception``."""
