# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Passes spans of verl-otel to the span processors that the user has added to the global provider, the standard way."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from verl_otel._internal import error_boundary
from verl_otel._internal.deadline import remaining
from verl_otel.exporting.base import Exporter
from verl_otel.model import REMOTE, SAMPLED, TRACE_FLAGS
from verl_otel.semconv.spans import STATUS_ERROR

if TYPE_CHECKING:
    from verl_otel.exporting.base import MetricState
    from verl_otel.exporting.providers import Providers
    from verl_otel.model import Batch, Resource, Scope, SpanRecord

MAX_WAITING: Final = 10_000
"""Spans that may wait for the user's processors."""


def make_readable(span: SpanRecord, resource: Any, scope: Scope) -> ReadableSpan:
    """Return a record as a span of the SDK.

    Args:
        span: An ended span.
        resource: The SDK's ``Resource`` of this process.
        scope: The scope of verl-otel.
    """
    parent = _context(span.trace_id, span.parent_id, span.trace_state, span.flags) if span.parent_id else None
    return ReadableSpan(
        span.name,
        _context(span.trace_id, span.span_id, span.trace_state, span.flags & TRACE_FLAGS),
        parent,
        resource,
        dict(span.attributes),
        [Event(event.name, dict(event.attributes), event.time_ns) for event in span.events],
        [
            Link(_context(link.trace_id, link.span_id, link.trace_state, link.flags), dict(link.attributes))
            for link in span.links
        ],
        SpanKind(span.kind - 1),  # OTLP counts from 1
        status=Status(StatusCode(span.status), (span.message or None) if span.status == STATUS_ERROR else None),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope(scope.name, scope.version, scope.schema_url),
    )


class UserExporter(Exporter):
    """Passes sampled spans of verl-otel to the user's span processors on a thread of its own, since processors may block.

    Args:
        providers: The installed providers.
        capacity: Spans that may wait; the oldest are dropped.
    """

    name = "user"

    def __init__(self, providers: Providers, capacity: int = MAX_WAITING) -> None:
        super().__init__()
        self._providers = providers
        self._capacity = capacity
        self._waiting: deque[SpanRecord] = deque()
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._wanted = self._done = 0
        """Numbers of the last requested and of the last completed flush."""
        self._deadline = 0.0
        self._stopped = False

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - the base's signature
        """Start the thread."""
        self._scope = scope
        threading.Thread(target=self._run, name="verl-otel-user", daemon=True).start()

    def consume(self, batch: Batch) -> None:
        """Queue the spans of verl-otel. The user's own spans in the batch have been processed already."""
        spans = [span for span in batch.spans if span.scope is None and span.flags & SAMPLED]
        if not spans:
            return
        self._waiting.extend(spans)
        dropped = 0
        while len(self._waiting) > self._capacity:
            with contextlib.suppress(IndexError):  # the thread has taken the rest
                self._waiting.popleft()
                dropped += 1
        self.drop("spans", dropped, "queue full")
        self._wake.set()

    def begin_flush(self, deadline: float) -> int:
        """Have the thread forward the queue and flush the user's processors; return the number of this flush."""
        with self._flushed:
            self._wanted += 1
            self._deadline = deadline
            self._wake.set()
            return self._wanted

    def flush(self, deadline: float) -> None:
        """Forward the queue and flush the user's processors, until ``deadline``. Returns at once after `close`."""
        wanted = self.begin_flush(deadline)
        with self._flushed:
            self._flushed.wait_for(lambda: self._stopped or self._done >= wanted, remaining(deadline))

    def close(self, deadline: float) -> None:
        """Flush, stop, and count the rest as dropped."""
        self.flush(deadline)
        self._stopped = True
        self._wake.set()
        left = len(self._waiting)
        self._waiting.clear()
        self.drop("spans", left, "not sent before exit")

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            wanted = self._wanted
            begin = time.monotonic()
            with error_boundary.suppress_errors("user exporter"):
                self._forward()
                if self._done < wanted:
                    self._providers.flush(remaining(self._deadline))
            self.seconds += time.monotonic() - begin
            self.cpu_seconds = time.thread_time()
            with self._flushed:
                self._done = wanted
                self._flushed.notify_all()

    def _forward(self) -> None:
        while self._waiting:
            try:
                span = self._waiting.popleft()
            except IndexError:  # it was dropped to make room
                return
            try:
                readable = make_readable(span, self._providers.resource, self._scope)
            except Exception:
                self.drop("spans", 1, "cannot be encoded")
                continue
            for processor in self._providers.user_processors:
                with error_boundary.suppress_errors("user exporter"):
                    processor.on_end(readable)


def _context(trace_id: int, span_id: int, trace_state: str, flags: int) -> SpanContext:
    return SpanContext(
        trace_id, span_id, bool(flags & REMOTE), TraceFlags(SAMPLED | flags & TRACE_FLAGS), _read_state(trace_state)
    )


@functools.lru_cache(maxsize=64)
def _read_state(text: str) -> TraceState:
    """Return a parsed trace state; a process has a handful of them."""
    return TraceState.from_header([text]) if text else TraceState()
