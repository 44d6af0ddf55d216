# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans of verl-otel for span processors of the user's: as spans of OpenTelemetry's SDK, on a thread of their own, since processors may block."""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import Event, ReadableSpan, Span
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import remaining
from verl_otel.exporting.base import SCOPE, Sender
from verl_otel.model import REMOTE, SAMPLED, TRACE_FLAGS, Scope, SpanRecord
from verl_otel.semconv.spans import STATUS_ERROR

if TYPE_CHECKING:
    from verl_otel.exporting.base import MetricState
    from verl_otel.model import Resource


def make_context(trace_id: int, span_id: int, trace_state: str, flags: int) -> SpanContext:
    """Return a context of the SDK from the fields of a record."""
    return SpanContext(
        trace_id, span_id, bool(flags & REMOTE), TraceFlags(SAMPLED | flags & TRACE_FLAGS), _read_state(trace_state)
    )


@functools.lru_cache(maxsize=64)
def _read_state(text: str) -> TraceState:
    """Return a parsed trace state; a process has a handful of them."""
    return TraceState.from_header([text]) if text else TraceState()


def make_readable(span: SpanRecord, resource: Any, scope: Scope) -> ReadableSpan:
    """Return a record as a span of the SDK.

    Args:
        span: An ended span.
        resource: The SDK's ``Resource`` of this process.
        scope: The scope of verl-otel.
    """
    parent = make_context(span.trace_id, span.parent_id, span.trace_state, span.flags) if span.parent_id else None
    return ReadableSpan(
        span.name,
        make_context(span.trace_id, span.span_id, span.trace_state, span.flags & TRACE_FLAGS),
        parent,
        resource,
        dict(span.attributes),
        [Event(event.name, dict(event.attributes), event.time_ns) for event in span.events],
        [
            Link(make_context(link.trace_id, link.span_id, link.trace_state, link.flags), dict(link.attributes))
            for link in span.links
        ],
        SpanKind(span.kind - 1),  # OTLP counts from 1
        status=Status(StatusCode(span.status), (span.message or None) if span.status == STATUS_ERROR else None),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope(scope.name, scope.version, scope.schema_url),
    )


MAX_BEGUN: Final = 10_000
"""Spans that the user's processors have seen begin and not end; the oldest are forgotten beyond it."""


class _Begun(Span):
    """A span of ours as the user's processors have seen it begin; they may have written to it."""


class BegunSpans:
    """Our open spans whose begin the user's span processors were notified of, since a span of the user's began below them.

    Some processors record a span only if they have seen the begin of its trace: MLflow's on the global provider would drop every span below
    one of ours (mlflow/mlflow#19035).
    """

    def __init__(self) -> None:
        self._spans: dict[int, _Begun] = {}

    def __contains__(self, span_id: int) -> bool:
        return span_id in self._spans

    def __len__(self) -> int:
        return len(self._spans)

    def clear(self) -> None:
        """Forget all of them."""
        self._spans.clear()

    def begin(self, record: SpanRecord, resource: Any, processors: Iterable[Any]) -> None:
        """Tell processors of the begin of a span, once."""
        if record.span_id in self._spans:
            return
        parent = (
            make_context(record.trace_id, record.parent_id, record.trace_state, record.flags)
            if record.parent_id
            else None
        )
        context = make_context(record.trace_id, record.span_id, record.trace_state, record.flags & TRACE_FLAGS)
        span = _Begun(
            record.name,
            context,
            parent,
            resource=resource,
            attributes=dict(record.attributes),
            kind=SpanKind(record.kind - 1),
            instrumentation_scope=InstrumentationScope(SCOPE.name, SCOPE.version, SCOPE.schema_url),
        )
        span.start(record.start_ns)
        self._spans[record.span_id] = span
        while len(self._spans) > MAX_BEGUN:
            self._spans.pop(next(iter(self._spans)), None)
        for processor in processors:
            with error_boundary.suppress_errors("user exporter"):
                processor.on_start(span, None)

    def end(self, record: SpanRecord) -> ReadableSpan | None:
        """Return a span that has ended, with what the processors have written to it; None if none has seen it begin."""
        span = self._spans.pop(record.span_id, None)
        if span is None:
            return None
        span.set_attributes(dict(record.attributes))
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        for link in record.links:
            span.add_link(
                make_context(link.trace_id, link.span_id, link.trace_state, link.flags), dict(link.attributes)
            )
        if record.status:
            span.set_status(
                Status(StatusCode(record.status), (record.message or None) if record.status == STATUS_ERROR else None)
            )
        span.end(record.end_ns)
        return span._readable_span()


BEGUN: Final = BegunSpans()


MAX_WAITING: Final = 10_000
"""Spans that may wait for the user's processors."""
FLUSH_SECONDS: Final = 30.0
"""Seconds for a flush between two spans: the default of the SDK."""
AT_ONCE: Final = 512
"""Spans after which the processors are flushed. A batch processor of the SDK keeps 2,048 by default and drops what a longer drain has beyond that."""


class SpanFeeder(Sender):
    """Gives spans of verl-otel to span processors of the user's. They get the end of a span only, unless it is among `BEGUN`.

    Args:
        capacity: Spans that may wait; the oldest are dropped.
    """

    def __init__(self, capacity: int = MAX_WAITING) -> None:
        super().__init__()
        self._capacity = capacity
        self._waiting: deque[SpanRecord] = deque()
        self._ends_begun = True
        """Whether the processors are those that were notified of `BEGUN`."""

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - the base's signature
        """Set the scope of the spans."""
        self._scope = scope

    @abstractmethod
    def _receivers(self) -> Sequence[Any]:
        """Return the span processors; none: the spans wait."""

    @abstractmethod
    def _sdk_resource(self) -> Any:
        """Return the resource of the spans, as one of the SDK's."""

    @abstractmethod
    def _flush_receivers(self, seconds: float) -> None:
        """Flush the span processors for at most some seconds, if they observe the limit."""

    def _put(self, spans: Sequence[SpanRecord]) -> None:
        """Queue spans and wake the thread."""
        self._waiting.extend(spans)
        dropped = 0
        while len(self._waiting) > self._capacity:
            with contextlib.suppress(IndexError):  # the thread has taken the rest
                self._waiting.popleft()
                dropped += 1
        self.drop("spans", dropped, "queue full")
        if spans:
            self._wake.set()

    def close(self, deadline: float) -> None:
        """Send the queue and flush the processors until ``deadline``, stop, and count the rest as dropped."""
        super().close(deadline)
        left = len(self._waiting)
        self._waiting.clear()
        self.drop("spans", left, "not sent before exit")

    def _send(self, *, is_flush: bool) -> bool:
        self._forward()
        deadline = self._deadline
        if is_flush and deadline is not None:
            with error_boundary.suppress_errors("user exporter"):
                self._flush_receivers(remaining(deadline))
        return True

    def _forward(self) -> None:
        receivers, sent = self._receivers(), 0
        while self._waiting and receivers:
            try:
                span = self._waiting.popleft()
            except IndexError:  # it was dropped to make room
                return
            try:
                readable = (self._ends_begun and BEGUN.end(span)) or make_readable(
                    span, self._sdk_resource(), self._scope
                )
            except Exception:
                self.drop("spans", 1, "cannot be encoded")
                continue
            for processor in receivers:
                with error_boundary.suppress_errors("user exporter"):
                    processor.on_end(readable)
            sent += 1
            if not sent % AT_ONCE:
                with error_boundary.suppress_errors("user exporter"):
                    self._flush_receivers(FLUSH_SECONDS)
