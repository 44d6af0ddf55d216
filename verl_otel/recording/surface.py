# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a span shows to OpenTelemetry: the whole `opentelemetry.trace.Span`, and the mapping that a context is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from verl_otel.model import REMOTE, AttributeValue, EventRecord, LinkRecord
from verl_otel.recording.context import kernel
from verl_otel.recording.store import Store
from verl_otel.recording.values import clean, error_name, to_text
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import spans as semconv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.trace import SpanContext

    from verl_otel.recording.span import Span


class _Leaked:
    """The kind of `LEAKED`, which is one object in each process: wrappers that are pickled by value hold it."""

    def __reduce__(self) -> str:
        return "LEAKED"


LEAKED: Final = _Leaked()
"""The token of a span that was left where it was not current: it has ended, and whoever holds it looks through it."""

MAX_ATTRIBUTES: Final = 128
MAX_EVENTS: Final = 128
"""Attributes and events of one span, as OpenTelemetry has it; what comes later is dropped."""

MAX_MESSAGE: Final = 1024
"""Characters of an exception message, where messages are kept at all."""


class Detail:
    """What most spans never have."""

    __slots__ = (
        "adopter",
        "context",
        "error",
        "events",
        "host",
        "links",
        "lost",
        "message",
        "name",
        "scores",
        "status",
    )

    def __init__(self) -> None:
        self.adopter: Span | None = None
        """The span directly inside us that became one with us."""
        self.host: Span | None = None
        """The span directly around us that we became one with."""
        self.context: SpanContext | None = None
        """What OpenTelemetry sees of the ids: asked for at every record of a user's histogram, made once."""
        self.error = ""
        self.events: list[EventRecord] | None = None
        self.links: list[LinkRecord] | None = None
        self.lost = False
        """Whether no drain will see it: there was no room, it is only measured, or it was discarded."""
        self.message = ""
        self.name = ""
        self.scores: tuple[float, ...] = ()
        """Every score of a batch; its attribute holds the first ones only."""
        self.status = semconv.STATUS_UNSET


class Surface:
    """The methods of a span that others call. `verl_otel.recording.span` adds its life and its identity."""

    __slots__ = ("_attributes", "_detail", "outer", "start", "stop", "token")

    _attributes: dict[str, AttributeValue] | None
    """What was said about this one."""
    _detail: Detail | None
    outer: Any
    """The context in which it was entered."""
    start: float
    """Monotonic seconds; 0 before it begins."""
    stop: float
    """Monotonic seconds; 0 while it is open."""
    token: Any
    """What gives the context back; None while we are not current."""

    @property
    def detail(self) -> Detail:
        """What most spans never have; made at the first use."""
        found = self._detail
        if found is None:
            found = self._detail = Detail()
        return found

    # -- what OpenTelemetry's span can do -----------------------------------------------------------------------------

    def set_attribute(self, key: str, value: object) -> None:
        """Set one attribute. Values that OpenTelemetry does not know are turned into text."""
        own = self._attributes
        if own is None:
            own = self._attributes = {}
        if type(key) is not str:
            key = to_text(key)
        if len(own) < MAX_ATTRIBUTES or key in own:
            own[key] = clean(value)

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """Set several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(
        self, name: str, attributes: Mapping[str, object] | None = None, timestamp: int | None = None
    ) -> None:
        """Add an event. ``timestamp``: nanoseconds since the Unix epoch, now if absent."""
        detail = self.detail
        if detail.events is None:
            detail.events = []
        if len(detail.events) < MAX_EVENTS:
            values = {to_text(key): clean(value) for key, value in (attributes or {}).items()}
            detail.events.append(EventRecord(to_text(name), int(timestamp or time.time_ns()), values))

    def add_link(self, context: SpanContext, attributes: Mapping[str, object] | None = None) -> None:
        """Link to another span. Links beyond 128 are dropped, as OpenTelemetry does."""
        self.link(context, attributes)

    def link(self, context: SpanContext, attributes: Mapping[str, object] | None = None) -> None:
        """Link to another span by its context."""
        values = {key: clean(value) for key, value in (attributes or {}).items()}
        state = context.trace_state.to_header() if context.trace_state else ""
        flags = REMOTE if context.is_remote else 0
        self.link_record(LinkRecord(context.trace_id, context.span_id, values, state, flags))

    def link_record(self, record: LinkRecord) -> None:
        """Link to another span by its ids."""
        detail = self.detail
        if detail.links is None:
            detail.links = [record]
        elif len(detail.links) < semconv.MAX_LINKS:
            detail.links.append(record)

    def update_name(self, name: str) -> None:
        """Rename the span."""
        self.detail.name = to_text(name)

    def is_recording(self) -> bool:
        """Whether the span is open."""
        return bool(self.start) and not self.stop

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Set the status from an OpenTelemetry ``Status`` or ``StatusCode``."""
        code = getattr(status, "status_code", status)
        self.detail.status = int(getattr(code, "value", code))
        text = getattr(status, "description", None) or description
        if Store.capture_content and text:  # OpenTelemetry's own helpers put the exception's message here
            self.detail.message = to_text(text)[:MAX_MESSAGE]

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, object] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001, FBT002 - OpenTelemetry's signature
    ) -> None:
        """Add an exception as an event: its type, and its message if content may be kept."""
        values: dict[str, object] = {attr.EXCEPTION_TYPE: error_name(exception), **(attributes or {})}
        if escaped:
            values["exception.escaped"] = True
        if Store.capture_content:
            values[attr.EXCEPTION_MESSAGE] = to_text(exception)[:MAX_MESSAGE]
        self.add_event("exception", values, timestamp)

    # -- what OpenTelemetry's context can do --------------------------------------------------------------------------

    def get(self, key: str, default: object = None) -> object:
        """Return a value of the context that this span is: itself, or what was there when it was entered."""
        if key == kernel().key and self.token is not LEAKED:
            return self
        return self._beneath(key).get(key, default)

    def copy(self) -> dict[str, object]:
        """Return the context as a dictionary that its taker may change."""
        key = kernel().key
        values = dict(self._beneath().copy())
        held = self.get(key)
        if held is None:
            values.pop(key, None)
        else:
            values[key] = held
        return values

    def _beneath(self, key: str = "") -> Any:
        """Return what lies beneath all spans of ours, in a loop; for the span's own key, the next one that is open."""
        context = self.outer
        wanted = key and key == kernel().key
        while isinstance(context, Surface) and not (wanted and context.token is not LEAKED):
            context = context.outer
        return context if context is not None else {}

    def __getitem__(self, key: str) -> object:
        found = self.get(key, LEAKED)
        if found is LEAKED:
            raise KeyError(key)
        return found

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
