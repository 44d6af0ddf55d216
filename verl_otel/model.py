# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The data that recording passes to exporting and analysis: immutable, standard library only.

Named tuples instead of dataclasses: creating a frozen dataclass takes 2 µs, a tuple 0.25 µs, and every kept span needs one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Union

AttributeValue = Union[str, bool, int, float, tuple[Union[str, bool, int, float], ...]]
"""The type of an attribute value, as OpenTelemetry defines it: a primitive, or a sequence of primitives of one type."""

Attributes = Mapping[str, AttributeValue]


class SharedAttributes(dict[str, AttributeValue]):
    """Attributes that many spans share as one object. They must not be changed.

    Created for every decorated function, so it has no ``__init__`` of its own.
    """

    kept: tuple[str, int, bytes] = ("", -1, b"")
    """Cache of the encoder: span name, kind, and the encoded bytes."""
    kept_text: tuple[str, int, str] = ("", -1, "")
    """The same of the encoder that writes JSON."""


Labels = tuple[tuple[str, str], ...]
"""Metric labels in the order of the catalogue, without absent labels."""


_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


def name_trajectory(uid: str, index: object, trace_id: str) -> str:
    """Return ``<uid>/<index>`` with a uid short enough to read; the first digits of the trace id where nothing gave a uid.

    Args:
        uid: That of the prompt; empty: unknown.
        index: Index of the sample among those of its prompt.
        trace_id: Id of the trace in hexadecimal digits.
    """
    return f"{uid[:8] if _UUID.fullmatch(uid) else uid[-24:]}/{index}" if uid else trace_id[:8]


SIGNALS: Final = ("traces", "metrics", "logs")
"""Signals of OTLP, as its paths and variables name them."""
SAMPLED: Final = 0x01
"""Flag of a span: it is sampled (W3C trace flags)."""
RANDOM: Final = 0x02
"""Flag of a span: the id of its trace is random (W3C trace flags of level 2), so that samplers may decide by it."""
TRACE_FLAGS: Final = SAMPLED | RANDOM
"""Flags of a span that its children and requests to other processes inherit."""
REMOTE: Final = 0x200
"""Flag of a span or link: the parent or linked span belongs to another process (OTLP)."""


def in_64_bits(value: int) -> bool:
    """Return whether OpenTelemetry can represent an integer."""
    return -(1 << 63) <= value < 1 << 63


def fit_64_bits(number: float) -> float:
    """Return an exportable number: integers beyond 64 bits become floats, infinite ones beyond the range of floats."""
    return number if not isinstance(number, int) or in_64_bits(number) else to_float(number)


def to_float(value: float) -> float:
    """Return a number as a float; infinity for integers that exceed all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def cut(text: str, most: int) -> str:
    """Return text of at most ``most`` bytes in UTF-8. Lone surrogates count as the question marks that replace them."""
    if 4 * len(text) <= most:
        return text
    if text.isascii():
        return text[:most]
    encoded = text[:most].encode("utf-8", "replace")
    return encoded[:most].decode("utf-8", "ignore") if len(encoded) > most or len(text) > most else text


NONE_DROPPED: Final = (0, 0, 0)


class Scope(NamedTuple):
    """The instrumentation scope of a record."""

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
    """An event of a span. Time in nanoseconds since the Unix epoch."""

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
    """`SAMPLED`, `RANDOM`, `REMOTE`. A record that is not sampled is the root of a trajectory, which only the file exporter writes."""
    trace_state: str
    scope: Scope | None = None
    """None: the scope of verl-otel."""
    dropped: tuple[int, int, int] = NONE_DROPPED
    """Numbers of attributes, events and links that exceeded their limits."""


class OpenSpan(NamedTuple):
    """A structural span that has not ended yet."""

    span: SpanRecord
    """As it was when it was last seen to have changed."""
    start: float
    """When it began, by `time.perf_counter`."""
    last_child: str
    """Name of the child that was opened last; empty: none."""
    verb: str


class Instrument(NamedTuple):
    """Name, kind, unit and description of a metric."""

    name: str
    kind: str
    """``histogram``, ``counter``, ``updown`` or ``gauge``."""
    unit: str
    description: str


class HistogramValue(NamedTuple):
    """A cumulative histogram. ``counts`` has one entry more than ``bounds``; the last one counts values above all bounds."""

    samples: int
    total: float
    minimum: float
    maximum: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class Exemplar(NamedTuple):
    """One measurement with the span in which it was made."""

    value: float
    time_ns: int
    trace_id: int
    span_id: int


class Point(NamedTuple):
    """The state of one series: cumulative since ``start_ns`` for counters and histograms, the last value for gauges."""

    instrument: Instrument
    labels: Labels
    start_ns: int
    time_ns: int
    value: float | int | HistogramValue
    exemplars: tuple[Exemplar, ...] = ()


class Values(NamedTuple):
    """What a histogram has taken since the last drain, value by value: for the user's own SDK, whose views may choose other bounds."""

    instrument: Instrument
    labels: Labels
    values: tuple[float, ...]
    bounds: tuple[float, ...]


class LogRecord(NamedTuple):
    """A record of the run log. Time in nanoseconds since the Unix epoch."""

    time_ns: int
    level: int
    """OTLP's severity number; see `verl_otel.semconv.logs`."""
    scope: str
    """What it is about: ``training``, ``rollout``, ``ppo``, ``validation``, ``sample``, ``log``, or a word of the user's."""
    step: int | None
    fields: Attributes
    trace_id: int = 0
    span_id: int = 0


class Batch(NamedTuple):
    """The result of one drain, for every exporter: ended spans, changed series, and open spans."""

    time_ns: int
    spans: tuple[SpanRecord, ...] = ()
    points: tuple[Point, ...] = ()
    open_spans: tuple[OpenSpan, ...] = ()
    asked: frozenset[str] = frozenset()
    """Metrics of which ``points`` contains every current series, so that their other series are removed."""
    values: tuple[Values, ...] = ()
    """Values of histograms, if `verl_otel.recording.series.keep_values` is on."""


class Resource(NamedTuple):
    """The resource attributes of this process (see `verl_otel.semconv.attributes`)."""

    attributes: Attributes

    def text(self, key: str, default: str = "") -> str:
        """Return one attribute as text."""
        return str(self.attributes.get(key, default))
