# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tracer for aiohttp's instrumentation: the global one, with the restrictions of `verl_otel.integrations.aiohttp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace

from verl_otel.recording.state import RECORDER


class GuestTracer(trace.Tracer):
    """Creates spans only below a current span, and does not record messages of exceptions."""

    def __init__(self, tracer: trace.Tracer, is_on: Callable[[], bool]) -> None:
        self._tracer = tracer
        self._is_on = is_on

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> trace.Span:
        """Begin a span; a non-recording one when off or without a parent."""
        if not self._is_on() or not trace.get_current_span(context).get_span_context().is_valid:
            return trace.INVALID_SPAN
        span = self._tracer.start_span(name, context, *args, **kwargs)
        if not RECORDER.capture_content:
            span.record_exception = _ignore_exception  # type: ignore[method-assign]  # the message may hold a prompt
        return span

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a span and make it current; not used by the instrumentation."""
        return self._tracer.start_as_current_span(*args, **kwargs)


class GuestProvider(trace.TracerProvider):
    """Returns `GuestTracer` around the tracer of the global provider."""

    def __init__(self, is_on: Callable[[], bool]) -> None:
        self._is_on = is_on

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        """Return a tracer; see `opentelemetry.trace.TracerProvider.get_tracer`."""
        return GuestTracer(trace.get_tracer_provider().get_tracer(*args, **kwargs), self._is_on)


def _ignore_exception(*args: Any, **kwargs: Any) -> None:
    """Replaces ``record_exception``."""
