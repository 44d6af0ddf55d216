# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who a span is: ids that are made when somebody asks, and where it lies among other spans.

Most spans are never asked: a header, a real OpenTelemetry child, an exemplar and the export ask.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from verl_otel import _guard
from verl_otel.model import REMOTE, SAMPLED
from verl_otel.recording import ids
from verl_otel.recording.context import kernel
from verl_otel.recording.sampling import Policy
from verl_otel.recording.store import Store, wall_offset_ns
from verl_otel.recording.surface import LEAKED, Surface

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TraceState

    from verl_otel.recording.site import Site
    from verl_otel.recording.span import Span

_new = tuple.__new__  # the constructor of a named tuple costs as much as all the rest
_ids_lock = threading.RLock()  # re-entrant: a signal handler may ask for ids while its own thread makes some


class Ids(NamedTuple):
    """What identifies a span outside its process, and the clock of its trace in this one."""

    trace_id: int
    span_id: int
    parent_id: int
    flags: int
    state: str
    offset_ns: int
    """Unix time minus monotonic time, taken where the trace began in this process: long runs do not drift."""


class Identity(Surface):
    """A span's ids, its place below others, and the times that follow from both."""

    __slots__ = ("ids", "site")

    ids: Ids | tuple[Ids, int] | None
    """None until somebody asks. A drain leaves those of the span around and the own one: few ended spans are asked again."""
    site: Site

    def resolve(self) -> Ids:
        """Return the ids; made at the first call, which also decides whether a new trace is kept."""
        if self.ids is None:
            # A loop and no recursion: spans may lie in one another deeper than the stack is.
            waiting: list[Identity] = []
            span: Identity | None = self
            while span is not None and span.ids is None:
                waiting.append(span)
                span = span._parent()
            for span in reversed(waiting):
                made = span._make_ids()
                with _ids_lock:
                    if span.ids is None:
                        span.ids = made
        found = self.ids
        assert found is not None  # noqa: S101 - made above
        if not isinstance(found, Ids):  # who else does this at the same time makes the same
            above, span_id = found
            found = self.ids = _below(above, span_id)
        return found

    def _parent(self) -> Identity | None:
        return None if self.site.spec.root or self.outer is None else local_span(self.outer)

    def _make_ids(self) -> Ids:
        root = self.site.spec.root or self.outer is None
        parent = self._parent()
        if parent is not None:
            return _below(parent.resolve(), ids.make_span_id())
        if not root:
            remote = kernel().span_of(self.outer).get_span_context()
            if remote.is_valid:
                state = remote.trace_state.to_header()
                flags = int(remote.trace_flags) & SAMPLED | (REMOTE if remote.is_remote else 0)
                return Ids(remote.trace_id, ids.make_span_id(), remote.span_id, flags, state, wall_offset_ns())
        trace_id = ids.make_trace_id()
        flags = Policy.decide(self, trace_id)  # type: ignore[arg-type]  # as in `local_span`
        return Ids(trace_id, ids.make_span_id(), 0, flags, self.site.spec.state, wall_offset_ns())

    def get_span_context(self) -> SpanContext:
        """Return OpenTelemetry's span context; a span whose id was asked for is always exported."""
        from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, TraceFlags

        detail = self.detail
        if detail.host is not None:
            return detail.host.get_span_context()
        if self.outer is None:  # off, or only measured: nothing will be exported under an id
            return INVALID_SPAN_CONTEXT
        if detail.context is None:
            mine = self.resolve()
            flags = TraceFlags(mine.flags & SAMPLED)
            detail.context = SpanContext(mine.trace_id, mine.span_id, False, flags, _read_state(mine.state))
        return detail.context

    @property
    def start_ns(self) -> int:
        """Unix time at which it began, by the clock of its trace."""
        return int(self.start * 1e9) + self.resolve().offset_ns

    @property
    def end_ns(self) -> int:
        """Unix time at which it ended, by the clock of its trace."""
        return int(self.stop * 1e9) + self.resolve().offset_ns


def _below(above: Ids, span_id: int) -> Ids:
    """Return the ids of a span directly below another one."""
    return Ids(above.trace_id, span_id, above.span_id, above.flags & SAMPLED, above.state, above.offset_ns)


@functools.lru_cache(maxsize=64)
def _read_state(text: str) -> TraceState:
    """Return a parsed trace state; a process meets a handful."""
    from opentelemetry.trace import TraceState

    return TraceState.from_header([text]) if text else TraceState()


def make_roots(roots: list[Span]) -> None:
    """Make the ids of spans that begin a trace, all at once.

    Whoever fails here has none afterwards, and is reported by `resolve`: a report under the lock could wait for whoever waits for the lock.
    """
    drawn = ids.make_span_ids(3 * len(roots))
    offset = wall_offset_ns()
    with _ids_lock:
        for span, high, low, span_id in zip(roots, drawn[::3], drawn[1::3], drawn[2::3], strict=True):
            if span.ids is None:
                trace_id = high << 64 | low or 1
                with contextlib.suppress(Exception):
                    flags = Policy.decide(span, trace_id)
                    span.ids = _new(Ids, (trace_id, span_id or 1, 0, flags, span.site.spec.state, offset))


def local_span(context: Any) -> Span | None:
    """Return the span of ours that a context holds, or None."""
    if isinstance(context, Identity):
        return context  # type: ignore[return-value]  # spans differ in their constructor only
    span = context.get(kernel().key) if context else None
    return span if isinstance(span, Identity) else None  # type: ignore[return-value]  # as above


def without_leaked(context: Any) -> Any:
    """Return a context without spans that were left where they were not current: they have ended."""
    while isinstance(context, Identity) and context.token is LEAKED:
        context = context.outer
    if not isinstance(context, Identity) and context:
        held = context.get(kernel().key)
        if isinstance(held, Identity) and held.token is LEAKED:
            from opentelemetry.trace import set_span_in_context

            return set_span_in_context(kernel().span_of(without_leaked(held.outer)), context)
    return context


def shorten(span: Identity) -> None:
    """Let go of the ended spans around an ended one, whose ids are made: a chain of tasks would hold them all."""
    outer = span.outer
    while isinstance(outer, Identity) and outer.stop:
        outer = outer.outer
    span.outer = outer


def _before_fork() -> None:
    """Make the ids of what is open: parent and child would make different ones."""
    for span in Store.opened:
        with _guard.swallowed("fork"):
            span.resolve()


def _after_fork_in_child() -> None:
    global _ids_lock
    _ids_lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
