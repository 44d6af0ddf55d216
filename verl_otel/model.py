# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The data that crosses from recording to exporting and analysis: frozen, plain, standard library only.

Named tuples and not dataclasses: a frozen dataclass costs 2 µs to make, a tuple a quarter of one, and a kept span makes one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple, Union

AttributeValue = Union[str, bool, int, float, tuple[str, ...], tuple[bool, ...], tuple[int, ...], tuple[float, ...]]
"""What an attribute may hold (OpenTelemetry's rule: a primitive, or a sequence of primitives of one kind)."""

Attributes = Mapping[str, AttributeValue]


class SharedAttributes(dict[str, AttributeValue]):
    """Attributes that many spans share as one object, and that nobody changes.

    Made of every decorated place, so it has no ``__init__`` of its own.
    """

    kept: tuple[str, int, bytes] = ("", -1, b"")
    """Where the encoder keeps its bytes: for spans of which name and kind, and the bytes."""


Labels = tuple[tuple[str, str], ...]
"""Metric labels in the order of the catalogue; an absent label is not in the tuple."""


SAMPLED: Final = 0x01
"""Flag of a span: it is kept (W3C trace flags)."""
REMOTE: Final = 0x200
"""Flag of a span or link: the span it points to lives in another process (OTLP's bit)."""


def in_64_bits(value: int) -> bool:
    """Return whether OpenTelemetry can hold an integer."""
    return -(1 << 63) <= value < 1 << 63


def to_float(value: float) -> float:
    """Return any number as a float, infinite for integers beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


NONE_DROPPED: Final = (0, 0, 0)


class Scope(NamedTuple):
    """The instrumentation scope that made a record."""

    name: str
    version: str = ""
    schema_url: str = ""


class LinkRecord(NamedTuple):
    """A span's link to another span. Ids are integers (128 and 64 bits)."""

    trace_id: int
    span_id: int
    attributes: Attributes
    trace_state: str = ""
    flags: int = 0
    """0 or `REMOTE`."""
    dropped: int = 0
    """Attributes that were too many."""


class EventRecord(NamedTuple):
    """Something that happened in a span. Time in nanoseconds since the Unix epoch."""

    name: str
    time_ns: int
    attributes: Attributes
    dropped: int = 0
    """Attributes that were too many."""


class SpanRecord(NamedTuple):
    """A span. Field names are OTLP's in snake case, ids integers, times nanoseconds since the Unix epoch.

    ``parent_id`` 0: a root. ``end_ns`` 0: still open (in the open-span table only).
    """

    trace_id: int
    span_id: int
    parent_id: int
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: tuple[LinkRecord, ...]
    events: tuple[EventRecord, ...]
    status: int
    message: str
    flags: int
    """`SAMPLED`, `REMOTE`. A record that is not sampled is a trajectory's root, which only the files keep."""
    trace_state: str
    scope: Scope | None = None
    """None: verl-otel's own."""
    dropped: tuple[int, int, int] = NONE_DROPPED
    """Attributes, events and links that were too many."""


class OpenSpan(NamedTuple):
    """A structural span that has not ended yet."""

    span: SpanRecord
    age: float
    """Seconds since it began, on the monotonic clock."""
    last_child: str
    """Name of the child that was opened last, or empty."""
    verb: str


class Instrument(NamedTuple):
    """What a series measures."""

    name: str
    kind: str
    """``histogram``, ``counter``, ``updown`` or ``gauge``."""
    unit: str
    description: str


class HistogramValue(NamedTuple):
    """A cumulative histogram. ``counts`` has one entry more than ``bounds``, the last for values above all bounds."""

    samples: int
    total: float
    minimum: float
    maximum: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class Exemplar(NamedTuple):
    """One measurement that leads to a trace."""

    value: float
    time_ns: int
    trace_id: int
    span_id: int


class Point(NamedTuple):
    """The state of one series: cumulative since ``start_ns`` for counters and histograms, the last value otherwise."""

    instrument: Instrument
    labels: Labels
    start_ns: int
    time_ns: int
    value: float | int | HistogramValue
    exemplars: tuple[Exemplar, ...] = ()


class Batch(NamedTuple):
    """What one drain hands to every exporter: ended spans, changed series, and what is open now."""

    time_ns: int
    spans: tuple[SpanRecord, ...] = ()
    points: tuple[Point, ...] = ()
    open_spans: tuple[OpenSpan, ...] = ()
    asked: frozenset[str] = frozenset()
    """Metrics of which ``points`` has every series that there is now: others of them are gone."""


class Resource(NamedTuple):
    """Who sends: the resource attributes of this process (see `verl_otel.semconv.attributes`)."""

    attributes: Attributes

    def text(self, key: str, default: str = "") -> str:
        """Return one attribute as text."""
        return str(self.attributes.get(key, default))
