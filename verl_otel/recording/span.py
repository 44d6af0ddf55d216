# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The span: one object that is OpenTelemetry's span, OpenTelemetry's context and the record of the drain.

As a context it implements ``get`` and ``copy`` as OpenTelemetry's own does, so that entering a span costs one object and one context
variable. The drain derives its metrics: leaving a span costs a clock reading and restoring the context.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel._internal import error_boundary
from verl_otel.model import REMOTE, AttributeValue, LinkRecord
from verl_otel.recording.attribute_values import error_name, is_cancellation, to_message
from verl_otel.recording.context import CONTEXT
from verl_otel.recording.otel_span import LEAKED, MAX_MESSAGE
from verl_otel.recording.span_context import SpanIdentity, local_span, without_leaked
from verl_otel.recording.span_metrics import measure
from verl_otel.recording.state import RECORDER, count_dropped, find_room
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import spans as semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from verl_otel.recording.callsite import CallSite

__all__ = ["BareSpan", "Span", "clock", "current", "local_span", "make_span"]

F = TypeVar("F", bound="Callable[..., Any]")

clock = time.perf_counter
_SUBMITTED: Final = {attr.LINK_TYPE: "submitted_by"}


class BareSpan(SpanIdentity):
    """A span as context manager, decorator and OpenTelemetry span. Has no constructor.

    CPython 3.11 creates an object 100 ns faster if its class has no ``__init__``: `begin` and `make_span` fill the slots.
    """

    __slots__ = ("last",)

    last: CallSite | None
    """Call site of the child that was opened last."""

    # -- life cycle --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Span:
        """Begin and become the current span. Returns the span to write to: itself, or the parent that it merged with."""
        if self.start or not RECORDER.on:
            return self._detach_noop()
        try:
            site, get, make_current = self.site, CONTEXT.get, CONTEXT.set
            outer = get()
            parent: Any = None
            if type(outer) is BareSpan and outer.token is not LEAKED:
                parent = outer
            elif outer:
                outer = without_leaked(outer)
                parent = local_span(outer)
            if parent is not None:
                if site.merges_with_parent and self._merge_into(parent):
                    return parent  # type: ignore[no-any-return]  # a span, as `local_span` says
                parent.last = site
            elif site.needs_parent:
                self.detail.unrecorded = True  # measured only: a phase outside a step is no span
                self.start = clock()
                return self  # type: ignore[return-value]  # see `begin`
            self.outer = outer
            if site.spec.root:
                self._link_submitter()
            self.token = make_current(self)
            if len(RECORDER.begun) < RECORDER.room:
                RECORDER.begun.append(self)  # type: ignore[arg-type]  # see `begin`
            else:
                self.store_or_drop()
            self.start = clock()
            return self  # type: ignore[return-value]  # see `begin`
        except BaseException:
            self.cancel_entry()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. An exception is recorded and propagates unchanged."""
        try:
            if error is not None or self._detail is not None or self.stop or not self.start:
                self._close_fully(error)
                return
            self.stop = clock()  # a drain may take it from now on
            get = CONTEXT.get  # a local: CPython 3.11 calls a function in a slot 20 ns slower
            if get() is self:
                reset, token = CONTEXT.reset, self.token
                self.token = None
                try:
                    reset(token)
                except ValueError:
                    self.restore_outer()
            else:
                self._restore_context(None)
        except BaseException:  # a time-out that a signal handler raises
            self.abort()
            raise

    def __call__(self, function: F) -> F:
        """Decorate a function: each call is one span. See `verl_otel.recording.decorate.wrap`.

        Raises:
            TypeError: ``function`` is a class, or a wrapper would change its type.
        """
        from verl_otel.recording.decorate import decorate, wrap

        site = self.site.with_attributes(self._attributes)
        return decorate(function, lambda inner, named: wrap(inner, site.for_function(named)))  # type: ignore[no-any-return]  # of its type

    def close(self, error: BaseException | None = None) -> None:
        """End with or without an error. Never raises."""
        self.__exit__(None, error, None)

    def _close_fully(self, error: BaseException | None) -> None:
        """End, handling errors, merged spans and details."""
        detail = self._detail
        if detail is not None and detail.merged_parent is not None:
            if error is not None and not self.site.hook:
                with error_boundary.suppress_errors("measure"):
                    detail.merged_parent.fail(
                        error
                    )  # the hook around it may swallow the exception: record it on the exported span
            return
        if not self.start:
            return
        try:
            if not self.stop:
                self._finish(error)
        finally:
            if self.token is not None:
                self._restore_context(error)

    def _finish(self, error: BaseException | None) -> None:
        stop = clock()
        try:
            if error is not None and not self._has_recorded(error):
                self.fail(error)
        except Exception as failure:
            error_boundary.record_internal_error("measure", failure)
        finally:
            self.stop = stop  # last: a drain may take it from now on
        if self._detail is not None and self._detail.unrecorded:
            measure(self, self.stop - self.start)  # type: ignore[arg-type]  # see `begin`

    def discard(self) -> None:
        """Exclude the span from recording, as if it had never been opened. Call before it ends."""
        self.detail.unrecorded = True
        self.stop = clock()

    def cancel_entry(self) -> None:
        """Undo an entry that was interrupted, wherever that was."""
        if CONTEXT.get() is self:
            CONTEXT.set(self.outer)
        self.token = LEAKED
        self.start = self.start or clock()
        self.discard()

    def abort(self) -> None:
        """End and restore the context after an exit that was interrupted, wherever that was."""
        if not self.start:
            return
        if CONTEXT.get() is self:
            CONTEXT.set(self.outer)
            self.token = LEAKED
        if not self.stop:
            self.stop = clock()

    def _detach_noop(self) -> Span:
        """Return the span without beginning it: recording is off, or the span was entered before."""
        if RECORDER.on and self.stop:
            message = "verl-otel: %r was entered twice; call the verb again for each block"
            error_boundary.warn_once(f"again {self.name}", message, self.name)
        return self  # type: ignore[return-value]  # see `begin`

    def store_or_drop(self) -> None:
        """Store a span that begins although there seems to be no room. If there is none, it is dropped, counted and only measured."""
        if find_room(root=self.site.spec.root):
            RECORDER.begun.append(self)  # type: ignore[arg-type]  # see `begin`
        else:
            self.drop()

    def drop(self) -> None:
        """Drop and count the span; it is measured when it ends."""
        self.detail.unrecorded = True
        count_dropped()

    def _has_recorded(self, error: BaseException) -> bool:
        """Return whether a merged child has recorded this error already."""
        detail = self._detail
        return detail is not None and detail.merged_child is not None and self.error == error_name(error)

    def _restore_context(self, error: BaseException | None) -> None:
        """Restore the context, unless this span is not current (another task may close an async generator)."""
        if error is not None and not isinstance(error, GeneratorExit):
            self._end_inside(error)
        token, self.token = self.token, None
        if token is LEAKED or CONTEXT.get() is not self:
            RECORDER.misplaced += token is not LEAKED
            self.token = LEAKED
            return
        try:
            CONTEXT.reset(token)
        except ValueError:
            self.restore_outer()

    def _end_inside(self, error: BaseException) -> None:
        """End the spans inside whose blocks an exception has left, too: CPython runs signal handlers before the first instruction of ``__exit__``."""
        inside: list[BareSpan] = []
        inner = CONTEXT.get()
        while type(inner) is BareSpan and inner is not self and not inner.site.hook:
            inside.append(inner)
            inner = inner.outer
        if inner is self:
            for span in inside:
                span.close(error)

    def restore_outer(self) -> None:
        """Restore the context in a task or thread whose context is a copy of the one in which the span was entered."""
        CONTEXT.set(self.outer)
        self.token = LEAKED

    def _merge_into(self, parent: Span) -> bool:
        """Merge with ``parent`` if a hook and a decorator opened the two for the same work; return whether they are merged."""
        site, parent_site = self.site, parent.site
        same = site.spec is parent_site.spec and (
            site.name == parent_site.name if site.spec.verb == "phase" else site.hook is not parent_site.hook
        )
        if not same or parent.stop or parent.detail.merged_child is not None:
            return False
        parent.detail.merged_child = self  # type: ignore[assignment]  # see `begin`
        self.detail.merged_parent = parent
        attributes = {key: value for key, value in site.attributes.items() if key not in site.defaults}
        attributes.update(self._attributes or {})
        if site.hook:
            attributes = {key: value for key, value in attributes.items() if key not in parent.attributes}
        elif site.spec.verb == "tool" or attr.GEN_AI_MODEL in attributes:
            parent.detail.name = self.name
        parent.set_attributes(attributes)
        return True

    def _link_submitter(self) -> None:
        """Link a trajectory to the span around it; in a thread without a context, to the step that is open, if it is the only one."""
        if self.site.spec.verb == "trajectory":
            context = CONTEXT.span_of(self.outer).get_span_context()
            if not context.is_valid and not self.site.hook and attr.STEP_NUMBER not in (self._attributes or ()):
                steps = [span for span in RECORDER.opened if span.site.spec.verb == "step"]
                if len(steps) == 1:
                    context = steps[0].get_span_context()
            if context.is_valid:
                state = context.trace_state.to_header() if context.trace_state else ""
                flags = REMOTE if context.is_remote else 0
                self.link_record(LinkRecord(context.trace_id, context.span_id, _SUBMITTED, state, flags))

    def fail(self, error: BaseException) -> None:
        """Record that the work failed or was cancelled."""
        name = error_name(error)
        if is_cancellation(error):
            self.set_attribute(attr.OUTCOME, "cancelled")
            return
        detail = self.detail
        detail.error = name
        detail.status = semconv.STATUS_ERROR
        self.set_attribute(attr.ERROR_TYPE, name)
        self.record_exception(error)
        if RECORDER.capture_content:
            self._keep_message(to_message(error)[:MAX_MESSAGE])

    # -- properties --------------------------------------------------------------------------------------------

    @property
    def merged_parent(self) -> Span | None:
        """The parent that this span merged with, if any."""
        detail = self._detail
        return detail.merged_parent if detail is not None else None

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
        """All attributes; those of the call take precedence over those of the call site."""
        own = self._attributes
        return {**self.site.attributes, **own} if own else self.site.attributes

    def end(self, end_time: int | None = None) -> None:  # noqa: ARG002 - OpenTelemetry's signature; the end is always now
        """End the span; it stays current until its ``with`` or function is left."""
        if self.start and not self.stop:
            self._finish(None)


class Span(BareSpan):
    """A span as the verbs return it (`verl_otel.phase` and the others).

    Its instances are of class `BareSpan`; this class is for type hints.

    Example:
        with verl_otel.tool("python") as span:
            span.set_attribute("exit_code", run())
    """

    __slots__ = ()

    def __new__(cls, site: CallSite, attributes: dict[str, AttributeValue] | None = None) -> Span:
        """Return a span that has not begun."""
        span = make_span(site)
        if attributes:
            span.set_attributes(attributes)
        return span

    def __init__(self, site: CallSite, attributes: dict[str, AttributeValue] | None = None) -> None:
        raise NotImplementedError  # for type checkers


def make_span(site: CallSite, attributes: dict[str, AttributeValue] | None = None) -> Span:
    """Return a span that has not begun. A little faster than `Span`."""
    span: Any = BareSpan()
    span.site = site
    span._attributes = attributes
    span._detail = span.ids = span.outer = span.token = span.last = None
    span.start = span.stop = 0.0
    return span  # type: ignore[no-any-return]  # as in `begin`


def current() -> Span | None:
    """Return the current span if it is a verl-otel span."""
    return local_span(without_leaked(CONTEXT.get())) if RECORDER.on else None
