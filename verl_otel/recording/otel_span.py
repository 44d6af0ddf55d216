# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's interfaces of a span: `opentelemetry.trace.Span`, and the mapping of a context."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from verl_otel._internal import error_boundary
from verl_otel.model import NONE_DROPPED, REMOTE, AttributeValue, EventRecord, LinkRecord
from verl_otel.recording import byte_accounting
from verl_otel.recording.attribute_values import (
    coerce_attribute,
    error_name,
    items_of,
    to_message,
    to_name,
    to_number,
    to_text,
)
from verl_otel.recording.byte_accounting import FEW, MAX_ATTRIBUTES, SHORT
from verl_otel.recording.context import context_access
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import spans as semconv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.trace import SpanContext

    from verl_otel.recording.span import Span


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


class SpanDetail:
    """Rarely used fields of a span."""

    __slots__ = (
        "bytes", "context", "dropped", "error", "events", "links", "merged_child", "merged_parent", "message",
        "name", "scores", "status", "unrecorded",
    )  # fmt: skip

    def __init__(self) -> None:
        self.merged_child: Span | None = None
        """The child that merged with this span."""
        self.merged_parent: Span | None = None
        """The parent that this span merged with."""
        self.context: SpanContext | None = None
        """OpenTelemetry's span context. Cached: every record of a user's histogram asks for it."""
        self.bytes = 0
        """Bytes of large attributes, events and links on top of `state.SPAN_BYTES`; see `verl_otel.recording.byte_accounting`."""
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
        self.status = semconv.STATUS_UNSET


class OTelSpan:
    """OpenTelemetry's methods of a span. `SpanIdentity` adds its ids and `BareSpan` its life cycle."""

    __slots__ = ("_attributes", "_detail", "outer", "start", "stop", "token")

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

    @property
    def detail(self) -> SpanDetail:
        """The rarely used fields, created at the first use."""
        detail = self._detail
        if detail is None:
            detail = self._detail = SpanDetail()
        return detail

    # -- OpenTelemetry's span ----------------------------------------------------------------------------

    def set_attribute(self, key: str, value: object) -> None:
        """Set one attribute. Values of types that OpenTelemetry does not support become text. Never raises."""
        own = self._attributes
        if own is None:
            own = self._attributes = {}
        kind = type(value)
        if (  # a small value of a common type: nothing to convert or weigh
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
            self._set_weighed(own, to_name(key), coerce_attribute(value))

    def _set_weighed(self, own: dict[str, AttributeValue], key: str, value: AttributeValue) -> None:
        """Set an attribute that may be large, or one of many, if there is room for it."""
        before = own.get(key)
        if before is None and len(own) >= MAX_ATTRIBUTES:
            self._drop(byte_accounting.ATTRIBUTES)
            return
        size = byte_accounting.weigh(value) + (
            byte_accounting.weigh_key(key) if before is None else -byte_accounting.weigh(before)
        )
        if (size <= byte_accounting.FREE and len(own) < FEW) or self.charge(size):
            own[key] = value
        else:
            self._drop(byte_accounting.ATTRIBUTES)

    def charge(self, size: int, most: int = byte_accounting.MAX_SPAN) -> bool:
        """Add bytes to the account of this span if its limit and that of all spans allow; return whether they do.

        Args:
            size: Bytes; negative to release some.
            most: Limit of this span in bytes.
        """
        detail = self.detail
        reserve = 0 < size <= byte_accounting.SMALL  # for the error or outcome of a span
        if size > 0 and (
            detail.bytes + size > most + (byte_accounting.RESERVE if reserve else 0)
            or RECORDER.bytes + size > RECORDER.byte_limit + (RECORDER.byte_limit // 4 if reserve else 0)
        ):
            return False
        size = max(size, -detail.bytes)
        detail.bytes += size
        RECORDER.bytes += size
        return True

    def _drop(self, which: int) -> None:
        """Count a dropped attribute, event or link."""
        detail = self.detail
        attributes, events, links = detail.dropped
        counts = attributes + (which == byte_accounting.ATTRIBUTES), events + (which == byte_accounting.EVENTS), links
        detail.dropped = counts if which != byte_accounting.LINKS else (attributes, events, links + 1)

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """Set several attributes."""
        own = self._attributes
        if own is None:
            own = self._attributes = {}
        for key, value in items_of(attributes):
            kind = type(value)
            if (  # as in `set_attribute`, without a call for each attribute
                type(key) is str
                and len(key) <= SHORT
                and len(own) < FEW
                and ((kind is str and len(value) <= SHORT) or (kind is int and -_LARGEST <= value <= _LARGEST))
            ):
                own[key] = value
            else:
                self.set_attribute(key, value)

    def add_event(
        self, name: str, attributes: Mapping[str, object] | None = None, timestamp: int | None = None
    ) -> None:
        """Add an event. ``timestamp``: nanoseconds since the Unix epoch, now if absent. Never raises."""
        detail = self.detail
        if detail.events is None:
            detail.events = []
        values = byte_accounting.coerce_attributes(attributes)
        size = byte_accounting.EVENT + byte_accounting.weigh_attributes(values)
        if len(detail.events) >= MAX_EVENTS or not self.charge(size):
            self._drop(byte_accounting.EVENTS)
            return
        dropped = byte_accounting.count_missing(attributes, values)
        detail.events.append(EventRecord(to_name(name), _to_time(timestamp), values, dropped))

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
            self._drop(byte_accounting.LINKS)
            return
        values = byte_accounting.coerce_attributes(attributes)
        dropped = byte_accounting.count_missing(attributes, values)
        self.link_record(LinkRecord(trace_id, span_id, values, state, flags, dropped))

    def link_record(self, record: LinkRecord) -> None:
        """Link to another span by its ids."""
        detail = self.detail
        if detail.links is None:
            detail.links = []
        size = byte_accounting.weigh_attributes(record.attributes)
        if detail.links or size > byte_accounting.FREE:  # `SPAN_BYTES` includes one small link
            size += byte_accounting.LINK
            if len(detail.links) >= semconv.MAX_LINKS or not self.charge(size):
                self._drop(byte_accounting.LINKS)
                return
        detail.links.append(record)

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
        if number in (semconv.STATUS_UNSET, semconv.STATUS_OK, semconv.STATUS_ERROR):
            self.detail.status = int(number)
        text = description if text is None else text
        if RECORDER.capture_content and text is not None:  # OpenTelemetry's helpers put the exception message here
            self._keep_message(to_text(text)[:MAX_MESSAGE])

    def _keep_message(self, text: str) -> None:
        if self.charge(byte_accounting.weigh(text)):
            self.detail.message = text

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
        while isinstance(context, OTelSpan) and not (wanted and context.token is not LEAKED):
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
