# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Instruments of the user: counters, gauges and histograms."""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.model import Instrument
from verl_otel.recording import series
from verl_otel.recording.attribute_values import to_name, to_number
from verl_otel.recording.series import make_labels
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import buckets
from verl_otel.semconv.metric_names import METRICS

MAX_FOUND: Final = 1000
"""Sets of labels of one instrument whose series are kept; more may be given, although there are no more series for them."""
MAX_BOUNDS: Final = 256
"""Bounds of a histogram. Each is a line of every scrape for each series."""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\-/]{0,254}")


def valid_name(given: str) -> str:
    """Return a valid metric name outside the catalogue. Logs once if the name was changed. Never raises."""
    name = to_name(given)
    valid = name if _NAME.fullmatch(name) else "x" + re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)[:253]
    if valid in METRICS:
        valid = f"user.{valid}"
    if valid != name:
        error_boundary.warn_once(
            f"name {name}", "verl-otel: the metric name %r cannot be used; recorded as %r", name, valid
        )
    return valid


def valid_bounds(bounds: tuple[float, ...] | None) -> tuple[float, ...]:
    """Return histogram bounds, rising, finite and no more than `MAX_BOUNDS`; the default family if there are none. Never raises."""
    if bounds is None:
        return buckets.TINY
    try:
        numbers = [to_number(bound) for bound in islice(iter(bounds), MAX_BOUNDS)]
    except Exception as error:  # not a sequence, or one that raises
        error_boundary.may_propagate(error)
        return buckets.TINY
    finite = {float(number) for number in numbers if number is not None and math.isfinite(number)}
    return tuple(sorted(finite)) or buckets.TINY


def claim(instrument: Instrument, kind: type[series.Series]) -> bool:
    """Return whether a name belongs to a kind of instrument, which never changes. Logs once if it does not."""
    owner = series.claim(instrument.name, kind)
    if owner is kind:
        return True
    if owner is None:
        message = "verl-otel: more than %d metrics of your own; %r and later ones are not recorded"
        error_boundary.warn_once("metrics", message, series.MAX_METRICS, instrument.name)
        return False
    error_boundary.warn_once(
        f"kind {instrument.name}",
        "verl-otel: %r is a %s already; the %s is not recorded",
        instrument.name,
        owner.__name__.lower(),
        instrument.kind,
    )
    return False


class _LabelledInstrument:
    """A family of series of one name, found by their labels."""

    kind: type[series.Series]
    word: str

    def __init__(self, name: str, unit: str, description: str, bounds: tuple[float, ...] = ()) -> None:
        self._instrument = Instrument(valid_name(name), self.word, to_name(unit), to_name(description))
        self._bounds = bounds
        self._owns_name: bool | None = None
        """Whether the name belongs to this kind; None until the first record."""
        self._found: dict[tuple[Any, ...], series.Series] = {}
        """Series by the names and then the values of their labels as they were given: making labels takes longer."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Created again after unpickling: there the name may belong to another kind.
        return type(self), (self._instrument.name, self._instrument.unit, self._instrument.description, self._bounds)

    def _find(self, labels: dict[str, Any]) -> series.Series | None:
        if self._owns_name is None:
            self._owns_name = claim(self._instrument, self.kind)
        if not self._owns_name:
            return None
        return series.find(self.kind, self._instrument, make_labels(labels), self._bounds)

    def _record(self, value: object, labels: dict[str, Any]) -> None:
        number = to_number(value) if RECORDER.on else None
        if number is None:
            return
        found = None
        try:
            found = self._found.get((*labels, *labels.values()))
        except Exception as error:  # a value that has no hash
            error_boundary.may_propagate(error)
        if found is None:
            found = self._find(labels)
            if found is None:
                return
            # Text only: 1 and True are equal, and different labels.
            if len(self._found) < MAX_FOUND and all(type(text) is str for text in labels.values()):
                key = (*labels, *labels.values())
                self._found[key] = found
        found.record(number)


class Counter(_LabelledInstrument):
    """A sum that only grows. Made by `verl_otel.counter`."""

    kind, word = series.Counter, "counter"

    def add(self, value: float = 1, **labels: str | int | bool) -> None:
        """Add a number that is not negative. Labels must have few values: never a step, an id or free text."""
        self._record(value, labels)

    def bind(self, **labels: str | int | bool) -> series.BoundCounter:
        """Return one series, whose ``add`` costs a fraction, for code that adds very often. Plain numbers only."""
        bound = self._find(labels)  # None: the name belongs to another kind
        return (bound if isinstance(bound, series.Counter) else series.Counter(self._instrument, ())).buffer


class Histogram(_LabelledInstrument):
    """A distribution. Made by `verl_otel.histogram`."""

    kind, word = series.Histogram, "histogram"

    def record(self, value: float, **labels: str | int | bool) -> None:
        """Take one measurement. Labels must have few values: never a step, an id or free text."""
        found = None
        if RECORDER.on and type(value) is float:
            try:
                found = self._found.get((*labels, *labels.values()))
            except Exception as error:  # a value that has no hash
                error_boundary.may_propagate(error)
        if found is None:
            self._record(value, labels)
        elif len(found.buffer) < series.CHUNK:  # `record` of the series, without a call
            found.buffer.append(value)
        else:
            found.spill(value)


class Gauge(_LabelledInstrument):
    """A last value. Made by `verl_otel.gauge`."""

    kind, word = series.Gauge, "gauge"

    def set(self, value: float, **labels: str | int | bool) -> None:
        """Replace the value. Labels must have few values: never a step, an id or free text."""
        self._record(value, labels)
