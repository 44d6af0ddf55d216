# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The span: one object that is OpenTelemetry's span, OpenTelemetry's context and the record of the drain.

As a context it implements ``get`` and ``copy`` as OpenTelemetry's own does, so that entering a span costs one object and one context
variable. The drain derives its metrics: leaving a span costs a clock reading and restoring the context. Ids are created on demand: few spans
need them before they are drained, for a propagation header, a child of the OpenTelemetry SDK or an exemplar.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel._internal import dead_children, error_boundary, own_code, process_state
from verl_otel.model import NONE_DROPPED, REMOTE, TRACE_FLAGS, AttributeValue, EventRecord, LinkRecord
from verl_otel.recording import own_loop
from verl_otel.recording.attribute_values import (
    coerce_attribute,
    error_name,
    is_cancellation,
    items_of,
    to_message,
    to_name,
    to_number,
    to_text,
)
from verl_otel.recording.context import CONTEXT, SpanIds, context_access, make_span_id, make_span_ids, make_trace_id
from verl_otel.recording.sampling import POLICY
from verl_otel.recording.span_metrics import measure
from verl_otel.recording.state import OPEN_FACTOR, RECORDER, count_dropped, wall_offset_ns, weigh_beyond
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import (
    MAX_LINKS,
    STATUS_ERROR,
    STATUS_OK,
    STATUS_UNSET,
    TRACESTATE_TRAJECTORY,
    TRACESTATE_VALIDATION,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from opentelemetry.trace import SpanContext, TraceState

    from verl_otel.recording.callsite import CallSite

F = TypeVar("F", bound="Callable[..., Any]")

clock = time.perf_counter
_SUBMITTED: Final = {attr.LINK_TYPE: "submitted_by"}


class _Leaked:
    """Class of `LEAKED`, of which a process has one instance, also after unpickling a wrapper that holds it."""

    def __reduce__(self) -> str:
        return "LEAKED"


LEAKED: Final = _Leaked()
"""Token of a span that was exited where it was not current. It has ended; contexts that hold it use its parent instead."""

MAX_EVENTS: Final = 128
"""Events of one span, OpenTelemetry's limit. Further ones are dropped and counted."""
_LARGEST: Final = (1 << 63) - 1
MAX_MESSAGE: Final = 1024
"""Characters of an exception message, where messages are recorded at all."""

# -- Memory of attributes, events and links: bounded by their number and by the length of their texts while a span is open (see
# `verl_otel.recording.attribute_values`). What a large span takes is estimated once, when it ends --

MAX_ATTRIBUTES: Final = 128
"""Attributes of one span, event or link, OpenTelemetry's limit. Further ones are dropped and counted."""
FEW: Final = 12
"""Number of small attributes that `verl_otel.recording.state.SPAN_BYTES` includes."""
SHORT: Final = 40
"""Characters up to which a key or text is small; a UUID has 36."""
MAX_SCORES: Final = 1_000_000
"""Scores of one batch that are kept until they are measured."""
ATTRIBUTES, EVENTS, LINKS = range(3)
"""Kinds of dropped items, in the order of `SpanRecord.dropped`."""


def coerce_attributes(attributes: Any) -> dict[str, AttributeValue]:
    """Return the first attributes of a mapping, converted. Never raises."""
    return {to_name(key): coerce_attribute(value) for key, value in items_of(attributes)[:MAX_ATTRIBUTES]}


def count_missing(attributes: Any, kept: dict[str, AttributeValue]) -> int:
    """Return how many attributes of a mapping were not kept. Never raises."""
    if issubclass(type(attributes), dict):
        return max(0, dict.__len__(attributes) - len(kept))
    return max(0, len(items_of(attributes)) - len(kept))


# -- Ids --

_new = tuple.__new__  # avoids the constructor of a named tuple, which costs as much as all the rest
_ids_lock = threading.RLock()  # re-entrant: a signal handler may need ids while its own thread holds the lock


class SpanDetail:
    """Rarely used fields of a span."""

    __slots__ = (
        "context", "dropped", "error", "events", "is_large", "links", "merged_child", "merged_parent", "message",
        "name", "scores", "status", "unrecorded",
    )  # fmt: skip

    def __init__(self) -> None:
        self.merged_child: Span | None = None
        """The child that merged with this span."""
        self.merged_parent: Span | None = None
        """The parent that this span merged with."""
        self.context: SpanContext | None = None
        """OpenTelemetry's span context. Cached: every record of a user's histogram asks for it."""
        self.is_large = False
        """Whether it may take more than `state.SPAN_BYTES`, so that it is weighed when it ends."""
        self.dropped = NONE_DROPPED
        """Number of dropped attributes, events and links."""
        self.error = ""
        self.events: list[EventRecord] | None = None
        self.links: list[LinkRecord] | None = None
        self.unrecorded = False
        """Whether no drain will see the span: there was no room, it is only measured, or it was discarded."""
        self.message = ""
        self.name = ""
        self.scores: tuple[float, ...] = ()
        """All scores of a batch; the attribute holds the first ones only."""
        self.status = STATUS_UNSET


class Span:
    """A span as context manager, decorator, OpenTelemetry span and OpenTelemetry context. The verbs return it (`verl_otel.phase` and the others).

    Example:
        with verl_otel.tool("python") as span:
            span.set_attribute("exit_code", run())
    """

    __slots__ = ("_attributes", "_detail", "ids", "last", "outer", "site", "start", "stop", "token")

    _attributes: dict[str, AttributeValue] | None
    """Attributes of this call."""
    _detail: SpanDetail | None
    outer: Any
    """The context in which the span was entered."""
    start: float
    """Monotonic seconds; 0 before it begins."""
    stop: float
    """Monotonic seconds; 0 while it is open."""
    token: Any
    """Token that restores the context; None while the span is not current."""
    ids: SpanIds | tuple[SpanIds, int] | None
    """None until they are needed. A drain stores the parent's ids and the own span id, 0 if the span is not kept: few
    ended spans are asked again."""
    site: CallSite
    last: CallSite | None
    """Call site of the child that was opened last."""

    def __init__(self, site: CallSite, attributes: Mapping[str, object] | None = None) -> None:
        self.site = site
        self.start = self.stop = 0.0
        self._attributes = self._detail = self.ids = self.outer = self.token = self.last = None
        if attributes:
            self.set_attributes(attributes)

    @classmethod
    def of_hook(cls, site: CallSite, attributes: dict[str, AttributeValue]) -> Span:
        """Return a span with a few attributes of a hook: numbers and short texts, which are not converted again."""
        span = cls(site)
        span._attributes = attributes
        return span

    @property
    def detail(self) -> SpanDetail:
        """The rarely used fields, created at the first use."""
        detail = self._detail
        if detail is None:
            detail = self._detail = SpanDetail()
        return detail

    # -- life cycle --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Span:
        """Begin and become the current span. Returns the span to write to: itself, or the parent that it merged with."""
        if self.start or not RECORDER.on:
            return self._detach_noop()
        try:
            site, get, make_current = self.site, CONTEXT.get, CONTEXT.set
            outer = get()
            parent: Span | None = None
            if type(outer) is Span and outer.token is not LEAKED:
                parent = outer
            elif outer:
                outer = without_leaked(outer)
                parent = local_span(outer)
            if parent is not None:
                if site.merges_with_parent and site.spec is parent.site.spec and self._merge_into(parent):
                    return parent
                parent.last = site
            elif site.needs_parent and (site.hook or not own_loop.is_between_steps()):
                # measured only: verl's timers outside a step are no spans
                self.detail.unrecorded = True
                self.start = clock()
                return self
            self.outer = outer
            if site.spec.root:
                self._begin_root()
            opened = RECORDER.open_spans
            is_full = len(opened) >= OPEN_FACTOR * RECORDER.capacity
            # One of too many does not become current: the next one would hold it, also if it is never left.
            self.token = None if is_full else make_current(self)
            if len(RECORDER.ended) < RECORDER.capacity and not is_full:
                opened[self] = None
            else:
                self.drop()
            self.start = clock()
            return self
        except BaseException:
            self._interrupt(entered=False)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. An exception is recorded and propagates unchanged."""
        try:
            if error is not None or self._detail is not None or self.stop or not self.start:
                self._close_fully(error)
                return
            self.stop = clock()
            RECORDER.ended.append(self)  # `RECORDER.end`, without a call
            RECORDER.open_spans.pop(self, None)
            get = CONTEXT.get  # a local: CPython 3.11 calls a function in a slot 20 ns slower
            if get() is self:
                reset, token = CONTEXT.reset, self.token
                self.token = None
                try:
                    reset(token)
                except (ValueError, TypeError):  # another context, or `LEAKED`
                    self.restore_outer()
            else:
                self._restore_context(None)
        except BaseException:  # a time-out that a signal handler raises
            self._interrupt(entered=True)
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
                    # the hook around it may swallow the exception: record it on the exported span
                    detail.merged_parent.fail(error)
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
            self.stop = stop
        detail = self._detail
        if detail is not None and detail.is_large and not detail.unrecorded and not RECORDER.take_room(self._weigh()):
            self.drop()
        if detail is not None and detail.unrecorded:
            measure(self, self.stop - self.start)
        else:
            RECORDER.end(self)

    def discard(self) -> None:
        """Exclude the span from recording, as if it had never been opened. Call before it ends."""
        self.detail.unrecorded = True
        self.stop = clock()
        RECORDER.open_spans.pop(self, None)

    def _interrupt(self, *, entered: bool) -> None:
        """Restore the context after an entry or exit that was interrupted, wherever that was.

        Args:
            entered: Whether the span had begun, so that it is recorded.
        """
        if CONTEXT.get() is self:
            CONTEXT.set(self.outer)
            self.token = LEAKED
        if not entered:
            self.token = LEAKED
            self.start = self.start or clock()
            self.discard()
        elif self.start:
            self.stop = self.stop or clock()
            if self in RECORDER.ended:  # the exit had handed it over already
                RECORDER.open_spans.pop(self, None)
            elif self in RECORDER.open_spans:
                RECORDER.end(self)

    def _detach_noop(self) -> Span:
        """Return the span without beginning it: recording is off, or the span was entered before."""
        if RECORDER.on and self.stop:
            message = "verl-otel: %r was entered twice; call the verb again for each block"
            error_boundary.warn_once(f"again {self.name}", message, self.name)
        return self

    def drop(self) -> None:
        """Drop and count the span; it is measured when it ends."""
        self.detail.unrecorded = True
        RECORDER.open_spans.pop(self, None)
        count_dropped()

    def _weigh(self) -> int:
        """Return about how many bytes it takes beyond the usual size of a span."""
        detail = self.detail
        return weigh_beyond(self._attributes or {}, (*(detail.events or ()), *(detail.links or ())), detail.scores)

    def _has_recorded(self, error: BaseException) -> bool:
        """Return whether a merged child has recorded this error already."""
        detail = self._detail
        return detail is not None and detail.merged_child is not None and self.error == error_name(error)

    def _restore_context(self, error: BaseException | None) -> None:
        """Restore the context, unless this span is not current (another task may close an async generator)."""
        if error is not None and not isinstance(error, GeneratorExit):
            self._end_inside(error)
        token, self.token = self.token, None
        is_current = CONTEXT.get() is self
        if token is LEAKED or not (is_current or self._leave_inside()):
            RECORDER.misplaced += token is not LEAKED
            self.token = LEAKED
            return
        try:
            CONTEXT.reset(token)
        except ValueError:
            if is_current:
                self.restore_outer()
            else:
                RECORDER.misplaced += 1
                self.token = LEAKED

    def _leave_inside(self) -> bool:
        """Leave the spans that were entered inside this one and are still current; return whether that is so.

        A generator that is not run to its end, as after a ``break``, keeps its block: its span is open, but must not be current after the block
        around the loop. If it is this block that stands in a generator, the span inside is that of its consumer, and stays.
        """
        inside: list[Span] = []
        inner = CONTEXT.get()
        while type(inner) is Span and inner is not self:
            inside.append(inner)
            inner = inner.outer
        if inner is not self or _is_in_generator():
            return False
        for span in inside:
            span.token = LEAKED
        return True

    def _end_inside(self, error: BaseException) -> None:
        """End the spans inside whose blocks an exception has left, too: CPython runs signal handlers before the first instruction of ``__exit__``."""
        inside: list[Span] = []
        inner = CONTEXT.get()
        while type(inner) is Span and inner is not self and not inner.site.hook:
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
        """Merge with ``parent``, of the same verb, if a hook and a decorator opened the two for the same work.

        Returns:
            Whether they are merged.
        """
        site, parent_site = self.site, parent.site
        same = site.name == parent_site.name if site.spec.verb == "phase" else site.hook is not parent_site.hook
        if not same or parent.stop or parent.detail.merged_child is not None:
            return False
        parent.detail.merged_child = self
        self.detail.merged_parent = parent
        attributes = {key: value for key, value in site.attributes.items() if key not in site.defaults}
        attributes.update(self._attributes or {})
        if site.hook:
            attributes = {key: value for key, value in attributes.items() if key not in parent.attributes}
        elif site.spec.verb == "tool" or attr.GEN_AI_MODEL in attributes:
            parent.detail.name = self.name
        parent.set_attributes(attributes)
        return True

    def _begin_root(self) -> None:
        """Number a step of an own loop; link a trajectory to what submitted it; have the event loop watched in which it begins."""
        if self.site.spec.verb == "step" and not self.site.hook:
            own_loop.number_step(self)
        self._link_submitter()
        if RECORDER.note_root is not None:
            RECORDER.note_root(self)

    def _link_submitter(self) -> None:
        """Link a trajectory to the span around it, unless that is in no step; without a context, to the step that is open, if it is the only one.

        A worker that was forked in a step keeps its context for good: in the steps after it, ``step=`` counts.
        """
        if self.site.spec.verb == "trajectory":
            around: Any = CONTEXT.span_of({} if _is_between_steps(self.outer) else self.outer)
            context, is_numbered = around.get_span_context(), attr.STEP_NUMBER in (self._attributes or ())
            is_left = context.is_valid and not context.is_remote and around not in RECORDER.open_spans
            if is_left and is_numbered and not self.site.hook:
                return
            if not context.is_valid and not self.site.hook and not is_numbered:
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
        detail.status = STATUS_ERROR
        self.set_attribute(attr.ERROR_TYPE, name)
        if line := own_code.find_raised(error):
            self.set_attribute(attr.ERROR_LINE, line)
        if dead := dead_children.describe(error):
            self.set_attribute(attr.ERROR_CHILD, dead)
        self.record_exception(error)
        if RECORDER.capture_content:
            detail.message = to_message(error)[:MAX_MESSAGE]

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

    def find_attribute(self, key: str) -> AttributeValue | None:
        """Return one attribute, or None. Costs less than all `attributes`."""
        own = self._attributes
        return own[key] if own and key in own else self.site.attributes.get(key)

    def end(self, end_time: int | None = None) -> None:  # noqa: ARG002 - OpenTelemetry's signature; the end is always now
        """End the span; it stays current until its ``with`` or function is left."""
        if self.start and not self.stop:
            self._finish(None)

    # -- ids, parent and times --------------------------------------------------------------------------------------------

    def resolve(self) -> SpanIds:
        """Return the ids. The first call creates them and, for a root, makes the sampling decision."""
        outer = self.outer
        if self.ids is None and type(outer) is Span and type(outer.ids) is SpanIds and not self.site.spec.root:
            new_ids = _child_ids(outer.ids, make_span_id())
            with _ids_lock:
                if self.ids is None:
                    self.ids = new_ids
        elif self.ids is None:
            # A loop, no recursion: spans may be nested deeper than the stack allows.
            waiting: list[Span] = []
            span: Span | None = self
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
            with _ids_lock:
                known = self.ids
                if isinstance(known, SpanIds):
                    return known
                parent_ids, span_id = ids
                ids = self.ids = _child_ids(parent_ids, span_id or make_span_id())  # 0: it was not shown
        return ids

    def _parent(self) -> Span | None:
        return None if self.site.spec.root or self.outer is None else local_span(self.outer)

    def _make_ids(self) -> SpanIds:
        root = self.site.spec.root or self.outer is None
        parent = self._parent()
        if parent is not None:
            return _child_ids(parent.resolve(), make_span_id())
        if not root:
            remote = context_access().span_of(self.outer).get_span_context()
            if remote.is_valid:
                state = remote.trace_state.to_header()
                flags = int(remote.trace_flags) & TRACE_FLAGS | (REMOTE if remote.is_remote else 0)
                return SpanIds(remote.trace_id, make_span_id(), remote.span_id, flags, state, wall_offset_ns())
        trace_id = make_trace_id()
        flags = POLICY.decide(self, trace_id)
        return SpanIds(trace_id, make_span_id(), 0, flags, _root_state(self), wall_offset_ns())

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

    # -- OpenTelemetry's span ----------------------------------------------------------------------------

    def set_attribute(self, key: str, value: object) -> None:
        """Set one attribute. Values of types that OpenTelemetry does not support become text. Never raises."""
        own = self._attributes
        if own is None:
            own = self._attributes = {}
        kind = type(value)
        if (  # a small value of a common type: nothing to convert
            type(key) is str
            and len(key) <= SHORT
            and len(own) < FEW
            and (
                (kind is str and len(value) <= SHORT)  # type: ignore[arg-type]  # checked by its type
                or (kind is int and -_LARGEST <= value <= _LARGEST)  # type: ignore[operator]  # as above
                or kind is float
                or kind is bool
                or (kind is tuple and len(value) == 1 and type(value[0]) is str and len(value[0]) <= SHORT)  # type: ignore[arg-type,index]  # as above
            )
        ):
            own[key] = value  # type: ignore[assignment]  # as above
        else:
            self._set_converted(own, to_name(key), coerce_attribute(value))

    def _set_converted(self, own: dict[str, AttributeValue], key: str, value: AttributeValue) -> None:
        """Set an attribute that may be large, or one of many."""
        if len(own) >= MAX_ATTRIBUTES and key not in own:
            self._drop(ATTRIBUTES)
            return
        own[key] = value
        if type(value) is str or type(value) is tuple or len(own) > FEW:
            self.detail.is_large = True

    def take_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Set attributes of a hook: numbers and short texts, which are neither converted nor weighed. None: not known."""
        own = self._attributes
        if own is None:
            own = self._attributes = {}
        for key, value in attributes.items():
            if value is not None:
                own[key] = value

    def set_scores(self, scores: tuple[Any, ...]) -> None:
        """Keep all scores of a batch until they are measured."""
        self.detail.scores = scores[:MAX_SCORES]
        self.detail.is_large = True

    def _drop(self, which: int) -> None:
        """Count a dropped attribute, event or link."""
        detail = self.detail
        attributes, events, links = detail.dropped
        counts = attributes + (which == ATTRIBUTES), events + (which == EVENTS), links
        detail.dropped = counts if which != LINKS else (attributes, events, links + 1)

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """Set several attributes."""
        for key, value in items_of(attributes):
            self.set_attribute(key, value)

    def add_event(
        self, name: str, attributes: Mapping[str, object] | None = None, timestamp: int | None = None
    ) -> None:
        """Add an event. ``timestamp``: nanoseconds since the Unix epoch, now if absent. Never raises."""
        detail = self.detail
        if detail.events is None:
            detail.events = []
        if len(detail.events) >= MAX_EVENTS:
            self._drop(EVENTS)
            return
        values = coerce_attributes(attributes)
        dropped = count_missing(attributes, values)
        detail.events.append(EventRecord(to_name(name), _to_time(timestamp), values, dropped))
        detail.is_large = True

    def add_link(self, context: SpanContext, attributes: Mapping[str, object] | None = None) -> None:
        """Link to another span. Links beyond 128 are dropped, as OpenTelemetry does."""
        self.link(context, attributes)

    def link(self, context: SpanContext, attributes: Mapping[str, object] | None = None) -> None:
        """Link to another span by its context. Never raises."""
        try:
            trace_id, span_id = int(context.trace_id), int(context.span_id)
            state = to_text(context.trace_state.to_header()) if context.trace_state else ""
            flags = REMOTE if context.is_remote else 0
        except Exception as error:  # not a span context
            error_boundary.may_propagate(error)
            trace_id = span_id = -1
        if not 0 <= trace_id < 1 << 128 or not 0 <= span_id < 1 << 64:
            self._drop(LINKS)
            return
        values = coerce_attributes(attributes)
        dropped = count_missing(attributes, values)
        self.link_record(LinkRecord(trace_id, span_id, values, state, flags, dropped))
        if values:
            self.detail.is_large = True

    def link_record(self, record: LinkRecord) -> None:
        """Link to another span by its ids."""
        detail = self.detail
        if detail.links is None:
            detail.links = []
        if len(detail.links) >= MAX_LINKS:
            self._drop(LINKS)
            return
        detail.links.append(record)
        if len(detail.links) > 1:  # `SPAN_BYTES` includes one
            detail.is_large = True

    def update_name(self, name: str) -> None:
        """Rename the span."""
        self.detail.name = to_name(name)

    def is_recording(self) -> bool:
        """Whether the span is open."""
        return bool(self.start) and not self.stop

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Set the status from an OpenTelemetry ``Status`` or ``StatusCode``; anything else is ignored."""
        try:
            code = getattr(status, "status_code", status)
            number = to_number(getattr(code, "value", code))
            text = getattr(status, "description", None)
        except Exception as error:
            error_boundary.may_propagate(error)
            return
        if number in (STATUS_UNSET, STATUS_OK, STATUS_ERROR):
            self.detail.status = int(number)
        text = description if text is None else text
        if RECORDER.capture_content and text is not None:  # OpenTelemetry's helpers put the exception message here
            self.detail.message = to_text(text)[:MAX_MESSAGE]

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, object] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001, FBT002 - OpenTelemetry's signature
    ) -> None:
        """Add an exception as an event: its type, and its message if content may be recorded."""
        values: dict[str, object] = {attr.EXCEPTION_TYPE: error_name(exception)}
        values.update((to_name(key), value) for key, value in items_of(attributes))
        if escaped is True:
            values["exception.escaped"] = True
        if RECORDER.capture_content:
            values[attr.EXCEPTION_MESSAGE] = to_message(exception)[:MAX_MESSAGE]
        self.add_event("exception", values, timestamp)

    # -- OpenTelemetry's context --------------------------------------------------------------------------

    def get(self, key: str, default: object = None) -> object:
        """Return a value of this context: the span itself for the key of the current span, else the value of the outer context."""
        if key == context_access().key and self.token is not LEAKED:
            return self
        return self._outer_context(key).get(key, default)

    def copy(self) -> dict[str, object]:
        """Return the context as a new dictionary."""
        key = context_access().key
        values = dict(self._outer_context().copy())
        span = self.get(key)
        if span is None:
            values.pop(key, None)
        else:
            values[key] = span
        return values

    def _outer_context(self, key: str = "") -> Any:
        """Return the context below all verl-otel spans; for the key of the current span, the next open one. A loop, no recursion."""
        context = self.outer
        wanted = key and key == context_access().key
        while isinstance(context, Span) and not (wanted and context.token is not LEAKED):
            context = context.outer
        return context if context is not None else {}

    def __getitem__(self, key: str) -> object:
        value = self.get(key, LEAKED)
        if value is LEAKED:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self.get(str(key), LEAKED) is not LEAKED

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def __bool__(self) -> bool:
        return True

    def keys(self) -> Any:
        """Return the context's keys."""
        return self.copy().keys()

    def values(self) -> Any:
        """Return the context's values."""
        return self.copy().values()

    def items(self) -> Any:
        """Return the context's items."""
        return self.copy().items()


def _to_time(timestamp: object) -> int:
    """Return a timestamp in Unix nanoseconds; now if ``timestamp`` is not valid."""
    number = to_number(timestamp)
    return int(number) if number is not None and 0 < number <= _LARGEST else time.time_ns()


def current_span() -> Span | None:
    """Return the current span if it is a verl-otel span."""
    if not RECORDER.on:
        return None
    context = CONTEXT.get()
    if type(context) is Span and context.token is not LEAKED:
        return context
    return local_span(without_leaked(context))


def _child_ids(parent: SpanIds, span_id: int) -> SpanIds:
    """Return the ids of a child."""
    trace_id, parent_id, _, flags, state, offset = parent
    return _new(SpanIds, (trace_id, span_id, parent_id, flags & TRACE_FLAGS, state, offset))


def _root_state(root: Span) -> str:
    """Return the trace state of the trace that a span begins."""
    state = root.site.spec.state
    if state == TRACESTATE_TRAJECTORY and root.attributes.get(attr.VALIDATE) is True:
        return TRACESTATE_VALIDATION
    return state


@functools.lru_cache(maxsize=64)
def _read_state(text: str) -> TraceState:
    """Return a parsed trace state; a process has a handful of them."""
    from opentelemetry.trace import TraceState

    return TraceState.from_header([text]) if text else TraceState()


def create_root_ids(roots: list[Span]) -> None:
    """Create the ids of root spans, all at once.

    On failure a span stays without ids, and `resolve` reports it later: logging under the lock could deadlock with a handler that needs ids.
    """
    random_ids = make_span_ids(3 * len(roots))
    offset = wall_offset_ns()
    with _ids_lock:
        for span, high, low, span_id in zip(roots, random_ids[::3], random_ids[1::3], random_ids[2::3], strict=True):
            if span.ids is None:
                trace_id = high << 64 | low or 1
                try:
                    flags = POLICY.decide(span, trace_id)
                    span.ids = _new(SpanIds, (trace_id, span_id or 1, 0, flags, _root_state(span), offset))
                except Exception as error:
                    error_boundary.may_propagate(error)


def create_child_ids(spans: list[Span]) -> None:
    """Create the ids of children of spans that have ids, all at once."""
    random_ids = make_span_ids(len(spans))
    with _ids_lock:
        for span, span_id in zip(spans, random_ids, strict=True):
            if span.ids is None:
                span.ids = (span.outer.ids, span_id or 1)


_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_BLOCKS: Final = (contextlib.__file__, str(Path(__file__).with_name("decorate.py")))
"""Files whose code runs a generator as a block: its frame is one of the block's."""


def _is_in_generator() -> bool:
    """Return whether the code that leaves the span is that of a generator, and no block written as one."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    if not frame.f_code.co_flags & _GENERATOR:
        return False
    while frame.f_back is not None and frame.f_code.co_flags & _GENERATOR:
        frame = frame.f_back
    return frame.f_code.co_filename not in _BLOCKS


def local_span(context: Any) -> Span | None:
    """Return the verl-otel span of a context, or None."""
    if isinstance(context, Span):
        return context
    span = context.get(context_access().key) if context else None
    return span if isinstance(span, Span) else None


def _is_between_steps(context: Any) -> bool:
    """Return whether a context is that of a phase between two steps, which submits nothing: no step has its trace."""
    span = local_span(context)
    while span is not None and (outer := span._parent()) is not None:
        span = outer
    return span is not None and span.site.spec.verb == "phase" and not span.resolve().parent_id


def without_leaked(context: Any) -> Any:
    """Return a context without the spans that were exited where they were not current: they have ended."""
    while isinstance(context, Span) and context.token is LEAKED:
        context = context.outer
    if not isinstance(context, Span) and context:
        held = context.get(context_access().key)
        if isinstance(held, Span) and held.token is LEAKED:
            from opentelemetry.trace import set_span_in_context

            return set_span_in_context(context_access().span_of(without_leaked(held.outer)), context)
    return context


def _before_fork() -> None:
    """Create the ids of open spans: parent and child process would create different ones."""
    for span in RECORDER.opened:
        with error_boundary.suppress_errors("fork"):
            span.resolve()


def _after_fork() -> None:
    global _ids_lock
    _ids_lock = threading.RLock()


process_state.register(before_fork=_before_fork, after_fork=_after_fork)
