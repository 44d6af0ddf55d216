# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The span: one object that is OpenTelemetry's span, OpenTelemetry's context and our record at once.

Ids are made when somebody asks for them (a header, a real OpenTelemetry child, an exemplar, the export). As a context it
answers ``get`` and ``copy`` the way OpenTelemetry's own does, so entering a span costs one object and one context variable.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from verl_otel import _guard
from verl_otel.model import REMOTE, SAMPLED, AttributeValue
from verl_otel.recording import ids
from verl_otel.recording.context import kernel
from verl_otel.recording.measures import measure
from verl_otel.recording.sampling import Policy
from verl_otel.recording.store import Store, keep, wall_offset_ns
from verl_otel.recording.surface import LEAKED as _LEAKED
from verl_otel.recording.surface import MAX_MESSAGE, Detail, Surface
from verl_otel.recording.values import error_name, is_cancellation, to_text
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import spans as semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from opentelemetry.trace import SpanContext

    from verl_otel.recording.site import Site

F = TypeVar("F", bound="Callable[..., Any]")

clock = time.perf_counter
MAX_TRACKED: Final = 100_000
"""Open spans in the table; more are recorded when they end, but not seen while they are open."""
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


class Span(Surface):
    """One piece of work, as context manager, decorator and OpenTelemetry span.

    Made by the verbs (`verl_otel.phase` and its kin), not by hand.

    Example:
        with verl_otel.tool("python") as span:
            span.set_attribute("exit_code", run())
    """

    __slots__ = ("ids", "site")

    def __init__(self, site: Site, attributes: dict[str, AttributeValue] | None = None) -> None:
        self.site = site
        self._attributes = attributes
        self._detail: Detail | None = None
        self.ids: Ids | None = None
        self.outer = None
        self.token: Any = None
        self.start = 0.0
        self.stop = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Span:
        """Begin, and become the current span. Returns the span to write to: itself, or the one it became one with."""
        if not Store.on or self.start:
            if self.stop:
                _guard.say(
                    f"again {self.name}",
                    "verl-otel: %r was entered twice; call the verb again for each block",
                    self.name,
                )
            return self
        now = kernel()
        outer = _without_leaked(now.get())
        parent = local_span(outer)
        if parent is not None:
            if self.site.adopts and self._join(parent):
                return parent
            parent.detail.last_child = self.name
        elif self.site.needs_parent:
            self.start = clock()  # measured only: a phase outside a step is a metric and no span
            return self
        self.outer = outer
        if self.site.spec.root:
            self._link_submitter(now.span_of(outer).get_span_context())
        self.token = now.set(self)
        self.start = clock()
        if len(Store.opened) < MAX_TRACKED:
            Store.opened[self] = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; an exception marks the span and passes on unchanged."""
        self.close(error)

    def __call__(self, function: F) -> F:
        """Decorate a function: each call is one span. See `verl_otel.recording.wrap.wrap`."""
        from verl_otel.recording.wrap import wrap

        return wrap(function, self.site.with_attributes(self._attributes).for_function(function))

    def close(self, error: BaseException | None = None) -> None:
        """End with or without an error. Never raises."""
        detail = self._detail
        if detail is not None and detail.host is not None:
            if error is not None and not self.site.hook:
                with _guard.swallowed("measure"):
                    detail.host.fail(error)  # the hook around it may swallow the exception: say it where it shows
            return
        if not self.start:
            return
        try:
            if not self.stop:
                self.stop = clock()
                self._measure(error)
        finally:
            if self.token is not None:
                self._leave()

    def discard(self) -> None:
        """Make it as if the span had never been opened; call before it ends."""
        Store.opened.pop(self, None)
        self.stop = clock()

    def _measure(self, error: BaseException | None) -> None:
        try:
            if error is not None and not self._was_told(error):
                self.fail(error)
            measure(self, self.stop - self.start)
        except Exception as failure:
            _guard.report("measure", failure)
        finally:
            if self.token is not None:
                Store.opened.pop(self, None)
                keep(self)

    def _was_told(self, error: BaseException) -> bool:
        """Return whether the span that became one with us has said this already."""
        detail = self._detail
        return detail is not None and detail.adopter is not None and self.error == error_name(error)

    def _leave(self) -> None:
        """Give the context back, if it is still ours to give (an async generator may be closed by another task)."""
        now = kernel()
        token, self.token = self.token, None
        if token is _LEAKED or now.get() is not self:
            Store.misplaced += token is not _LEAKED
            self.token = _LEAKED
            return
        try:
            now.reset(token)
        except ValueError:  # entered in another task or thread, whose context was copied to here and still holds us
            now.set(self.outer)
            self.token = _LEAKED

    def _join(self, parent: Span) -> bool:
        """Become one with ``parent`` if a hook and a decorator opened the two for the same piece of work."""
        mine, other = self.site, parent.site
        same = mine.spec is other.spec and (
            mine.name == other.name if mine.spec.verb == "phase" else mine.hook is not other.hook
        )
        if not same or parent.stop or parent.detail.adopter is not None:
            return False
        parent.detail.adopter = self
        self.detail.host = parent
        said = {key: value for key, value in mine.attributes.items() if key not in mine.defaults}
        said.update(self._attributes or {})
        if mine.hook:
            said = {key: value for key, value in said.items() if key not in parent.attributes}
        elif mine.spec.verb == "tool" or attr.GEN_AI_MODEL in said:
            parent.detail.name = self.name
        parent.set_attributes(said)
        return True

    def _link_submitter(self, context: SpanContext) -> None:
        if context.is_valid and self.site.spec.verb == "trajectory":
            self.link(context, {attr.LINK_TYPE: "submitted_by"})

    def fail(self, error: BaseException) -> None:
        """Say that the work failed, or that it was cancelled."""
        name = error_name(error)
        if is_cancellation(error):
            self.set_attribute(attr.OUTCOME, "cancelled")
            return
        detail = self.detail
        detail.error = name
        detail.status = semconv.STATUS_ERROR
        self.set_attribute(attr.ERROR_TYPE, name)
        self.record_exception(error)
        if Store.capture_content:
            detail.message = to_text(error)[:MAX_MESSAGE]

    # -- identity -----------------------------------------------------------------------------------------------------

    def resolve(self) -> Ids:
        """Return the ids; made at the first call, which also decides whether a new trace is kept."""
        if self.ids is None:
            waiting: list[Span] = []  # a loop and no recursion: spans may lie in one another deeper than the stack is
            span: Span | None = self
            while span is not None and span.ids is None:
                waiting.append(span)
                span = span._parent()
            for span in reversed(waiting):
                made = span._make_ids()
                with _ids_lock:
                    if span.ids is None:
                        span.ids = made
        assert self.ids is not None  # noqa: S101 - made above
        return self.ids

    def _parent(self) -> Span | None:
        return None if self.site.spec.root or self.outer is None else local_span(self.outer)

    def _make_ids(self) -> Ids:
        root = self.site.spec.root or self.outer is None
        parent = self._parent()
        if parent is not None:
            above = parent.ids or parent.resolve()
            return Ids(
                above.trace_id, ids.make_span_id(), above.span_id, above.flags & SAMPLED, above.state, above.offset_ns
            )
        if not root:
            remote = kernel().span_of(self.outer).get_span_context()
            if remote.is_valid:
                state = remote.trace_state.to_header()
                flags = int(remote.trace_flags) & SAMPLED | (REMOTE if remote.is_remote else 0)
                return Ids(remote.trace_id, ids.make_span_id(), remote.span_id, flags, state, wall_offset_ns())
        trace_id = ids.make_trace_id()
        flags = Policy.decide(self, trace_id)
        return Ids(trace_id, ids.make_span_id(), 0, flags, self.site.spec.state, wall_offset_ns())

    def get_span_context(self) -> SpanContext:
        """Return OpenTelemetry's span context; a span whose id was asked for is always exported."""
        from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, TraceFlags, TraceState

        if self.host is not None:
            return self.host.get_span_context()
        if self.outer is None:  # off, or only measured: nothing will be exported under an id
            return INVALID_SPAN_CONTEXT
        mine = self.resolve()
        state = TraceState.from_header([mine.state]) if mine.state else TraceState()
        return SpanContext(mine.trace_id, mine.span_id, False, TraceFlags(mine.flags & SAMPLED), state)

    @property
    def host(self) -> Span | None:
        """The span that this one became one with, if any."""
        detail = self._detail
        return detail.host if detail is not None else None

    @property
    def start_ns(self) -> int:
        """Unix time at which it began, by the clock of its trace."""
        return int(self.start * 1e9) + self.resolve().offset_ns

    @property
    def end_ns(self) -> int:
        """Unix time at which it ended, by the clock of its trace."""
        return int(self.stop * 1e9) + self.resolve().offset_ns

    @property
    def error(self) -> str:
        """``error.type`` of a span that failed; empty otherwise."""
        detail = self._detail
        return detail.error if detail is not None else ""

    @property
    def name(self) -> str:
        """The span's name."""
        detail = self._detail
        return (detail.name if detail is not None else "") or self.site.name

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Everything set so far, the call's own values over those of the decorator."""
        own = self._attributes
        return {**self.site.attributes, **own} if own else self.site.attributes

    def end(self, end_time: int | None = None) -> None:  # noqa: ARG002 - ours always ends now
        """End the span; it stays current until its ``with`` or function is left."""
        if self.start and not self.stop:
            self.stop = clock()
            self._measure(None)


def local_span(context: Any) -> Span | None:
    """Return the span of ours that a context holds, or None."""
    if type(context) is Span:
        return context
    span = context.get(kernel().key) if context else None
    return span if type(span) is Span else None


def current() -> Span | None:
    """Return the current span if it is one of ours."""
    return local_span(_without_leaked(kernel().get())) if Store.on else None


def _without_leaked(context: Any) -> Any:
    """Return a context without spans that were left where they were not current: they have ended."""
    while type(context) is Span and context.token is _LEAKED:
        context = context.outer
    if type(context) is not Span and context:
        held = context.get(kernel().key)
        if type(held) is Span and held.token is _LEAKED:
            from opentelemetry.trace import set_span_in_context

            return set_span_in_context(kernel().span_of(_without_leaked(held.outer)), context)
    return context


def shorten(span: Span) -> None:
    """Let go of the ended spans around an ended one, whose ids are made: a chain of tasks would hold them all."""
    outer = span.outer
    while type(outer) is Span and outer.stop:
        outer = outer.outer
    span.outer = outer


def _before_fork() -> None:
    """Make the ids of what is open: parent and child would make different ones."""
    for span in list(Store.opened):
        with _guard.swallowed("fork"):
            span.resolve()


def _after_fork_in_child() -> None:
    global _ids_lock
    _ids_lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
