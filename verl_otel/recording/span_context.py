# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Span context: ids, which are created on demand, and the parent of a span.

Few spans need ids before they are drained: a propagation header, a child of the OpenTelemetry SDK and an exemplar ask for them.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import REMOTE, TRACE_FLAGS
from verl_otel.recording import id_generator
from verl_otel.recording.context import context_access
from verl_otel.recording.otel_span import LEAKED, OTelSpan
from verl_otel.recording.state import RECORDER, wall_offset_ns

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TraceState

    from verl_otel.recording.callsite import CallSite
    from verl_otel.recording.span import Span

_new = tuple.__new__  # avoids the constructor of a named tuple, which costs as much as all the rest
_ids_lock = threading.RLock()  # re-entrant: a signal handler may need ids while its own thread holds the lock


class SpanIds(NamedTuple):
    """Ids and trace flags of a span, and the clock offset of its trace in this process."""

    trace_id: int
    span_id: int
    parent_id: int
    flags: int
    state: str
    offset_ns: int
    """Unix time minus monotonic time, taken when the trace began in this process, so that long runs do not drift."""


class SpanIdentity(OTelSpan):
    """Ids, parent and Unix times of a span."""

    __slots__ = ("ids", "site")

    ids: SpanIds | tuple[SpanIds, int] | None
    """None until they are needed. A drain stores the parent's ids and the own span id: few ended spans are asked again."""
    site: CallSite

    def resolve(self) -> SpanIds:
        """Return the ids. The first call creates them and, for a root, makes the sampling decision."""
        if self.ids is None:
            # A loop, no recursion: spans may be nested deeper than the stack allows.
            waiting: list[SpanIdentity] = []
            span: SpanIdentity | None = self
            while span is not None and span.ids is None:
                waiting.append(span)
                span = span._parent()
            for span in reversed(waiting):
                new_ids = span._make_ids()
                with _ids_lock:
                    if span.ids is None:
                        span.ids = new_ids
        ids = self.ids
        assert ids is not None  # noqa: S101 - set above
        if not isinstance(ids, SpanIds):  # another thread that does this at the same time gets the same ids
            parent_ids, span_id = ids
            ids = self.ids = _child_ids(parent_ids, span_id)
        return ids

    def _parent(self) -> SpanIdentity | None:
        return None if self.site.spec.root or self.outer is None else local_span(self.outer)

    def _make_ids(self) -> SpanIds:
        root = self.site.spec.root or self.outer is None
        parent = self._parent()
        if parent is not None:
            return _child_ids(parent.resolve(), id_generator.make_span_id())
        if not root:
            remote = context_access().span_of(self.outer).get_span_context()
            if remote.is_valid:
                state = remote.trace_state.to_header()
                flags = int(remote.trace_flags) & TRACE_FLAGS | (REMOTE if remote.is_remote else 0)
                return SpanIds(
                    remote.trace_id, id_generator.make_span_id(), remote.span_id, flags, state, wall_offset_ns()
                )
        trace_id = id_generator.make_trace_id()
        flags = RECORDER.sampling.decide(self, trace_id)  # type: ignore[arg-type]  # as in `local_span`
        return SpanIds(trace_id, id_generator.make_span_id(), 0, flags, self.site.spec.state, wall_offset_ns())

    def get_span_context(self) -> SpanContext:
        """Return OpenTelemetry's span context. A span whose context was returned is always exported."""
        from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, TraceFlags

        detail = self.detail
        if detail.merged_parent is not None:
            return detail.merged_parent.get_span_context()
        if self.outer is None:  # recording is off, or the span is only measured: it is not exported
            return INVALID_SPAN_CONTEXT
        if detail.context is None:
            ids = self.resolve()
            flags = TraceFlags(ids.flags & TRACE_FLAGS)
            detail.context = SpanContext(ids.trace_id, ids.span_id, False, flags, _read_state(ids.state))
        return detail.context

    @property
    def traceparent(self) -> str:
        """The span's W3C ``traceparent``, for `verl_otel.consume` and for systems that continue the trace; empty while recording is off."""
        if self.outer is None and not self.start:
            return ""
        ids = self.resolve()
        return f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.flags & TRACE_FLAGS:02x}"

    @property
    def start_ns(self) -> int:
        """Start in Unix nanoseconds, by the clock of its trace."""
        return int(self.start * 1e9) + self.resolve().offset_ns

    @property
    def end_ns(self) -> int:
        """End in Unix nanoseconds, by the clock of its trace."""
        return int(self.stop * 1e9) + self.resolve().offset_ns


def _child_ids(parent: SpanIds, span_id: int) -> SpanIds:
    """Return the ids of a child."""
    return SpanIds(parent.trace_id, span_id, parent.span_id, parent.flags & TRACE_FLAGS, parent.state, parent.offset_ns)


@functools.lru_cache(maxsize=64)
def _read_state(text: str) -> TraceState:
    """Return a parsed trace state; a process has a handful of them."""
    from opentelemetry.trace import TraceState

    return TraceState.from_header([text]) if text else TraceState()


def create_root_ids(roots: list[Span]) -> None:
    """Create the ids of root spans, all at once.

    On failure a span stays without ids, and `resolve` reports it later: logging under the lock could deadlock with a handler that needs ids.
    """
    random_ids = id_generator.make_span_ids(3 * len(roots))
    offset = wall_offset_ns()
    with _ids_lock:
        for span, high, low, span_id in zip(roots, random_ids[::3], random_ids[1::3], random_ids[2::3], strict=True):
            if span.ids is None:
                trace_id = high << 64 | low or 1
                try:
                    flags = RECORDER.sampling.decide(span, trace_id)
                    span.ids = _new(SpanIds, (trace_id, span_id or 1, 0, flags, span.site.spec.state, offset))
                except Exception as error:
                    error_boundary.may_propagate(error)


def local_span(context: Any) -> Span | None:
    """Return the verl-otel span of a context, or None."""
    if isinstance(context, SpanIdentity):
        return context  # type: ignore[return-value]  # `Span` differs from `BareSpan` by its constructor only
    span = context.get(context_access().key) if context else None
    return span if isinstance(span, SpanIdentity) else None  # type: ignore[return-value]  # as above


def without_leaked(context: Any) -> Any:
    """Return a context without the spans that were exited where they were not current: they have ended."""
    while isinstance(context, SpanIdentity) and context.token is LEAKED:
        context = context.outer
    if not isinstance(context, SpanIdentity) and context:
        held = context.get(context_access().key)
        if isinstance(held, SpanIdentity) and held.token is LEAKED:
            from opentelemetry.trace import set_span_in_context

            return set_span_in_context(context_access().span_of(without_leaked(held.outer)), context)
    return context


def release_ended_parents(span: SpanIdentity) -> None:
    """Release the ended spans around an ended span with ids: a chain of tasks would keep all of them alive."""
    outer = span.outer
    while isinstance(outer, SpanIdentity) and outer.stop:
        outer = outer.outer
    span.outer = outer


def _before_fork() -> None:
    """Create the ids of open spans: parent and child process would create different ones."""
    for span in RECORDER.opened:
        with error_boundary.suppress_errors("fork"):
            span.resolve()


def _after_fork() -> None:
    global _ids_lock
    _ids_lock = threading.RLock()


process_state.register(before_fork=_before_fork, after_fork=_after_fork)
