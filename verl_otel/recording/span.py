# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The span: one object that is OpenTelemetry's span, OpenTelemetry's context and our record at once.

As a context it answers ``get`` and ``copy`` the way OpenTelemetry's own does, so entering a span costs one object and one context
variable. What its verb measures is read off it by the drain: leaving it costs a clock and giving the context back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel import _guard
from verl_otel.model import REMOTE, AttributeValue, LinkRecord
from verl_otel.recording.context import KERNEL
from verl_otel.recording.identity import Identity, local_span, without_leaked
from verl_otel.recording.measures import measure
from verl_otel.recording.store import Store, count_dropped, find_room
from verl_otel.recording.surface import LEAKED, MAX_MESSAGE
from verl_otel.recording.values import error_name, is_cancellation, to_text
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import spans as semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from verl_otel.recording.site import Site

__all__ = ["BareSpan", "Span", "begin", "clock", "current", "local_span", "make_span"]

F = TypeVar("F", bound="Callable[..., Any]")

clock = time.perf_counter
_SUBMITTED: Final = {attr.LINK_TYPE: "submitted_by"}


class BareSpan(Identity):
    """One piece of work, as context manager, decorator and OpenTelemetry span. Without a constructor.

    CPython 3.11 makes an object 100 ns faster if its class has no ``__init__``: `begin` and `make_span` fill its slots.
    """

    __slots__ = ("last",)

    last: Site | None
    """Where the span that was opened last directly inside this one records."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Span:
        """Begin, and become the current span. Returns the span to write to: itself, or the one it became one with."""
        if self.start or not Store.on:
            return self._stay_out()
        site, get, make_current = self.site, KERNEL.get, KERNEL.set
        outer = get()
        parent: Any = None
        if type(outer) is BareSpan and outer.token is not LEAKED:
            parent = outer
        elif outer:
            outer = without_leaked(outer)
            parent = local_span(outer)
        if parent is not None:
            if site.adopts and self._join(parent):
                return parent  # type: ignore[no-any-return]  # a span, as was looked at above
            parent.last = site
        elif site.needs_parent:
            self.detail.lost = True  # measured only: a phase outside a step is a metric and no span
            self.start = clock()
            return self  # type: ignore[return-value]  # see `begin`
        self.outer = outer
        if site.spec.root:
            self._link_submitter()
        self.token = make_current(self)
        if len(Store.begun) < Store.room:
            Store.begun.append(self)  # type: ignore[arg-type]  # see `begin`
        else:
            self.lose()
        self.start = clock()
        return self  # type: ignore[return-value]  # see `begin`

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; an exception marks the span and passes on unchanged."""
        if error is not None or self._detail is not None or self.stop or not self.start:
            self._close_fully(error)
            return
        self.stop = clock()  # from now on a drain may take it
        get = KERNEL.get  # a name of its own: CPython 3.11 calls what lies in a slot 20 ns slower than a variable
        if get() is self:
            reset, token = KERNEL.reset, self.token
            self.token = None
            try:
                reset(token)
            except ValueError:
                self.leave_elsewhere()
        else:
            self._leave()

    def __call__(self, function: F) -> F:
        """Decorate a function: each call is one span. See `verl_otel.recording.wrap.wrap`."""
        from verl_otel.recording.wrap import wrap

        return wrap(function, self.site.with_attributes(self._attributes).for_function(function))

    def close(self, error: BaseException | None = None) -> None:
        """End with or without an error. Never raises."""
        self.__exit__(None, error, None)

    def _close_fully(self, error: BaseException | None) -> None:
        """End with all that may come with it."""
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
                self._finish(error)
        finally:
            if self.token is not None:
                self._leave()

    def _finish(self, error: BaseException | None) -> None:
        stop = clock()
        try:
            if error is not None and not self._was_told(error):
                self.fail(error)
        except Exception as failure:
            _guard.report("measure", failure)
        finally:
            self.stop = stop  # when everything is said: from now on a drain may take it
        if self._detail is not None and self._detail.lost:
            measure(self, self.stop - self.start)  # type: ignore[arg-type]  # see `begin`

    def discard(self) -> None:
        """Make it as if the span had never been opened; call before it ends."""
        self.detail.lost = True
        self.stop = clock()

    def _stay_out(self) -> Span:
        """Do not begin: recording is off, or it has begun before."""
        if Store.on and self.stop:
            message = "verl-otel: %r was entered twice; call the verb again for each block"
            _guard.say(f"again {self.name}", message, self.name)
        return self  # type: ignore[return-value]  # see `begin`

    def lose(self) -> None:
        """Begin although there is no room: somebody looks for some, or the span is measured when it ends, dropped and counted."""
        if find_room(root=self.site.spec.root):
            Store.begun.append(self)  # type: ignore[arg-type]  # see `begin`
        else:
            self.forget()

    def forget(self) -> None:
        """Remember it no more: measured when it ends, dropped and counted."""
        self.detail.lost = True
        count_dropped()

    def _was_told(self, error: BaseException) -> bool:
        """Return whether the span that became one with us has said this already."""
        detail = self._detail
        return detail is not None and detail.adopter is not None and self.error == error_name(error)

    def _leave(self) -> None:
        """Give the context back, if it is still ours to give (an async generator may be closed by another task)."""
        token, self.token = self.token, None
        if token is LEAKED or KERNEL.get() is not self:
            Store.misplaced += token is not LEAKED
            self.token = LEAKED
            return
        try:
            KERNEL.reset(token)
        except ValueError:
            self.leave_elsewhere()

    def leave_elsewhere(self) -> None:
        """Give the context back in a task or thread whose context was copied from the one that we were entered in."""
        KERNEL.set(self.outer)
        self.token = LEAKED

    def _join(self, parent: Span) -> bool:
        """Become one with ``parent`` if a hook and a decorator opened the two for the same piece of work."""
        mine, other = self.site, parent.site
        same = mine.spec is other.spec and (
            mine.name == other.name if mine.spec.verb == "phase" else mine.hook is not other.hook
        )
        if not same or parent.stop or parent.detail.adopter is not None:
            return False
        parent.detail.adopter = self  # type: ignore[assignment]  # see `begin`
        self.detail.host = parent
        said = {key: value for key, value in mine.attributes.items() if key not in mine.defaults}
        said.update(self._attributes or {})
        if mine.hook:
            said = {key: value for key, value in said.items() if key not in parent.attributes}
        elif mine.spec.verb == "tool" or attr.GEN_AI_MODEL in said:
            parent.detail.name = self.name
        parent.set_attributes(said)
        return True

    def _link_submitter(self) -> None:
        if self.site.spec.verb == "trajectory":
            context = KERNEL.span_of(self.outer).get_span_context()
            if context.is_valid:
                state = context.trace_state.to_header() if context.trace_state else ""
                flags = REMOTE if context.is_remote else 0
                self.link_record(LinkRecord(context.trace_id, context.span_id, _SUBMITTED, state, flags))

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

    # -- what is known of it ---------------------------------------------------------------------------------------------

    @property
    def host(self) -> Span | None:
        """The span that this one became one with, if any."""
        detail = self._detail
        return detail.host if detail is not None else None

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
            self._finish(None)


class Span(BareSpan):
    """One piece of work, made by the verbs (`verl_otel.phase` and its kin).

    What its call returns is a `BareSpan`; this class is what type hints say.

    Example:
        with verl_otel.tool("python") as span:
            span.set_attribute("exit_code", run())
    """

    __slots__ = ()

    def __new__(cls, site: Site, attributes: dict[str, AttributeValue] | None = None) -> Span:
        """Return a span that has not begun."""
        return make_span(site, attributes)

    def __init__(self, site: Site, attributes: dict[str, AttributeValue] | None = None) -> None:
        raise NotImplementedError  # for type checkers


def make_span(site: Site, attributes: dict[str, AttributeValue] | None = None) -> Span:
    """Return a span that has not begun: `Span`, a little faster."""
    span: Any = BareSpan()
    span.site = site
    span._attributes = attributes
    span._detail = span.ids = span.outer = span.token = span.last = None
    span.start = span.stop = 0.0
    return span  # type: ignore[no-any-return]  # as in `begin`


def begin(site: Site) -> Span:
    """Begin the span of one call of a decorated function.

    The short way of `make_span` and ``__enter__`` for what nearly every call is: the span around it is ours and open, or there
    is none. Everything else goes the long way.
    """
    get, make_current = KERNEL.get, KERNEL.set
    outer = get()
    known = type(outer) is BareSpan
    if site.spec.root or site.superseded or (outer.token is LEAKED if known else outer or site.needs_parent):
        return _begin_fully(site)
    if known:
        if site.adopts and outer.site.spec is site.spec:
            return _begin_fully(site)
        outer.last = site
    span: Any = BareSpan()  # typed as the class with a constructor, which is all that they differ in
    span.site = site
    span.outer = outer
    # Everything has a value before it is current: a signal handler may look at it then.
    span._attributes = span._detail = span.ids = span.last = span.token = None
    span.start = span.stop = 0.0
    span.token = make_current(span)
    begun = Store.begun
    if len(begun) < Store.room:
        begun.append(span)
    else:
        span.lose()
    span.start = clock()
    return span  # type: ignore[no-any-return]  # typed as the class with a constructor: that is all that they differ in


def _begin_fully(site: Site) -> Span:
    span = make_span(site)
    if not site.superseded:
        span.__enter__()
    return span


def current() -> Span | None:
    """Return the current span if it is one of ours."""
    return local_span(without_leaked(KERNEL.get())) if Store.on else None
