# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Instruments that a user names: counters, gauges, histograms and timers, bound to their labels once."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union

from verl_otel import _guard
from verl_otel.model import Instrument, Labels
from verl_otel.recording import registry, series
from verl_otel.recording.bound import Buffer, bind
from verl_otel.recording.leaves import Leaf, find_leaf
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_number, to_text
from verl_otel.semconv import buckets
from verl_otel.semconv.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


Histograms = Union[series.Histogram, Leaf]
"""Where a timer's durations go."""

F = TypeVar("F", bound="Callable[..., Any]")

MAX_TIMERS: Final = 500
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\-/]{0,254}")


def valid_name(name: str) -> str:
    """Return a metric name that OpenTelemetry accepts and that is not one of ours; say so once when it had to change."""
    valid = name if _NAME.fullmatch(name) else "x" + re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)[:253]
    if valid in METRICS:
        valid = f"user.{valid}"
    if valid != name:
        _guard.say(f"name {name}", "verl-otel: the metric name %r cannot be used; recorded as %r", name, valid)
    return valid


def valid_bounds(bounds: tuple[float, ...] | None) -> tuple[float, ...]:
    """Return histogram bounds, rising and finite; the default family of durations if there are none."""
    if bounds is None:
        return buckets.TINY
    return tuple(sorted({float(bound) for bound in bounds if math.isfinite(bound)})) or buckets.TINY


def _claim(instrument: Instrument, kind: type[series.Series]) -> bool:
    """Return whether a name belongs to a kind of instrument, which is settled for good; say once that it does not."""
    taken = registry.claim(instrument.name, kind)
    if taken is kind:
        return True
    if taken is None:
        message = "verl-otel: more than %d metrics of your own; %r and later ones are not recorded"
        _guard.say("metrics", message, registry.MAX_METRICS, instrument.name)
        return False
    _guard.say(
        f"kind {instrument.name}",
        "verl-otel: %r is a %s already; the %s is not recorded",
        instrument.name,
        taken.__name__.lower(),
        instrument.kind,
    )
    return False


class _Labelled:
    """A family of series of one name, found by their labels."""

    kind: type[series.Series]
    word: str

    def __init__(self, name: str, unit: str, description: str, bounds: tuple[float, ...] = ()) -> None:
        self._instrument = Instrument(valid_name(name), self.word, unit, description)
        self._bounds = bounds
        self._is_mine: bool | None = None
        """Whether the name is one of this kind; the first instrument that records decides."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew where it arrives: there the name may belong to another kind.
        return type(self), (self._instrument.name, self._instrument.unit, self._instrument.description, self._bounds)

    def _find(self, labels: dict[str, Any]) -> series.Series | None:
        if self._is_mine is None:
            self._is_mine = _claim(self._instrument, self.kind)
        if not self._is_mine:
            return None
        key: Labels = tuple((name, to_text(value)) for name, value in sorted(labels.items()))
        return registry.find(self.kind, self._instrument, key, self._bounds)

    def _record(self, value: object, labels: dict[str, Any]) -> None:
        number = to_number(value) if Store.on else None
        found = self._find(labels) if number is not None else None
        if found is not None and number is not None:
            found.record(number)


class Counter(_Labelled):
    """A sum that only grows. Made by `verl_otel.counter`."""

    kind, word = series.Counter, "counter"

    def add(self, value: float = 1, **labels: str | int | bool) -> None:
        """Add a number that is not negative. Labels must have few values: never a step, an id or free text."""
        self._record(value, labels)

    def bind(self, **labels: str | int | bool) -> Buffer:
        """Return one series of it, whose ``add`` costs a small part, for code that adds very often. Plain numbers only."""
        found = self._find(labels)
        return bind(found) if isinstance(found, series.Counter) else Buffer()


class Histogram(_Labelled):
    """A distribution. Made by `verl_otel.histogram`."""

    kind, word = series.Histogram, "histogram"

    def record(self, value: float, **labels: str | int | bool) -> None:
        """Take one measurement. Labels must have few values: never a step, an id or free text."""
        self._record(value, labels)


class Gauge(_Labelled):
    """A last value. Made by `verl_otel.gauge`."""

    kind, word = series.Gauge, "gauge"

    def set(self, value: float, **labels: str | int | bool) -> None:
        """Replace the value. Labels must have few values: never a step, an id or free text."""
        self._record(value, labels)


class Timer:
    """Times a block or every call of a function. Made by `verl_otel.timed`.

    It may be used again, and inside itself. Tasks and threads that share one may swap their durations: let each call
    `verl_otel.timed`, which costs no more than a look into a dictionary.
    """

    __slots__ = (
        "_around",
        "_measured",
        "_start",
    )  # filled by `make_timer`: a class without a constructor is made faster

    _measured: Histograms
    _start: float
    _around: list[float] | None
    """The starts of the blocks around this one that it times, too."""

    def __enter__(self) -> Timer:
        if self._start:
            self._around = [*(self._around or ()), self._start]
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._start
        self._start = self._around.pop() if self._around else 0.0
        measured = self._measured
        if error is not None:
            registry.record_failure(measured, seconds, error)
        elif Store.on:
            if type(measured) is series.Histogram and len(measured.buffer) < series.CHUNK:
                measured.buffer.append(seconds)  # what `record` does, without the price of a call
            else:
                measured.record(seconds)

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        from verl_otel.recording.wrap import wrap_timed

        return wrap_timed(function, self._measured)


TIMERS: Final[dict[str, series.Histogram]] = {}
LEAVES: Final[dict[str, Leaf]] = {}
"""Where the durations of a timer go, by its name: a block asks for it each time."""


def find_timed(name: str, description: str, *, span: bool) -> Histograms:
    """Return where the durations of a timer go; the first few hundred names are found again in `TIMERS` and `LEAVES`.

    Of the leaves there are no more than those: later ones are measured and keep no spans.
    """
    histogram = timer_series(name, description)
    if not span:
        if len(TIMERS) < MAX_TIMERS:
            TIMERS[name] = histogram
        return histogram
    if len(LEAVES) >= MAX_TIMERS:
        _guard.say(
            "leaves", "verl-otel: more than %d timers with spans; %r and later ones are measured only", MAX_TIMERS, name
        )
        return histogram
    return LEAVES.setdefault(name, find_leaf(histogram))


def make_timer(measured: Histograms) -> Timer:
    """Return a timer whose durations go to ``measured``."""
    timer = Timer()
    timer._measured = measured
    timer._start = 0.0
    timer._around = None
    return timer


def timer_series(name: str, description: str = "") -> series.Histogram:
    """Return the histogram of a user's timer: seconds, from microseconds to an hour."""
    instrument = Instrument(valid_name(name), "histogram", "s", description)
    if not _claim(instrument, series.Histogram):
        return series.Histogram(instrument, (), buckets.TINY)  # of nobody's: it is never drained
    found = registry.find(series.Histogram, instrument, (), buckets.TINY)
    assert isinstance(found, series.Histogram)  # noqa: S101 - made so above
    return found
