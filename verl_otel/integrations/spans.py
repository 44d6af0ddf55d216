# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What hooks know of spans: the open ones around a call, those of actor methods, and the current one of whatever tracer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.recording.context import context_access
from verl_otel.recording.span import Span, current_span, local_span
from verl_otel.recording.state import RECORDER
from verl_otel.session import current_session


def find_enclosing(verb: str) -> Span | None:
    """Return the nearest span of a verb around the current place, or None; it may have ended already."""
    span = current_span()
    while span is not None and span.site.spec.verb != verb:
        outer = span.outer
        span = outer if type(outer) is Span else local_span(outer)
    return span


def find_open(verb: str) -> Span | None:
    """Return the nearest open span of a verb around the current place, or None."""
    span = find_enclosing(verb)
    return span if span is not None and not span.stop else None


def describe(span: Span, values: Mapping[str, Any]) -> None:
    """Set the attributes whose values are known, which are not None."""
    span.set_attributes({key: value for key, value in values.items() if value is not None})


OPENERS: Final[dict[str, Callable[[str], Span | None]]] = {}
"""Actor methods, of any class since users define replicas of their own, that are spans in the process of the actor.

A value takes the class name of the actor and returns the span of one call, not yet entered, or None. Integrations fill
it, that of Ray reads it.
"""


def current_span_context() -> Any:
    """Return OpenTelemetry's ``SpanContext`` of the current span, of whatever tracer; one that is not valid if there is none."""
    context = context_access()
    return context.span_of(context.get()).get_span_context()


@error_boundary.never_raises("trace headers")
def make_headers() -> dict[str, str] | None:
    """Return the current span as ``traceparent`` and ``tracestate``; None when off or when no span is current.

    The engines read W3C headers only, so ``OTEL_PROPAGATORS`` does not apply here.
    """
    if not RECORDER.on or not current_span_context().is_valid:
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
