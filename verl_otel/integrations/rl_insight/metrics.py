# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's lifecycle and metric functions: metrics of users under their own names.

No function raises or blocks; values that cannot be recorded are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Union

from verl_otel._internal import error_boundary
from verl_otel.recording.instruments import Counter, Gauge, Histogram, valid_bounds
from verl_otel.recording.state import RECORDER

MAX_METRICS: Final = 1000
"""Maximum number of metrics of one process, because names that hold numbers are unbounded; further metrics are dropped."""
_Instrument = Union[Counter, Gauge, Histogram]
_Kind = type[_Instrument]
_instruments: dict[tuple[type, str], Any] = {}


def init(
    project: str | None = None, experiment_name: str | None = None, config: Mapping[str, Any] | None = None
) -> None:
    """Do nothing: verl-otel starts with ``import verl`` and reads project and experiment from ``Tracking``."""


def finish() -> None:
    """Do nothing: verl-otel ends with ``Tracking.finish`` and with the process."""


def metric_count(name: str, amount: float = 1.0, documentation: str = "", **labels: Any) -> None:
    """Add to a counter."""
    _record(Counter, name, amount, documentation, labels)


def metric_gauge(name: str, value: float, documentation: str = "", **labels: Any) -> None:
    """Replace the value of a gauge."""
    _record(Gauge, name, value, documentation, labels)


def metric_histogram(name: str, value: float, documentation: str = "", **labels: Any) -> None:
    """Record one sample of a histogram, with verl-otel's bucket bounds, from microseconds to an hour."""
    _record(Histogram, name, value, documentation, labels)


def _record(kind: _Kind, name: str, value: float, documentation: str, labels: dict[str, Any]) -> None:
    if RECORDER.on:
        with error_boundary.suppress_errors("rl_insight"):
            instrument = _find_instrument(kind, name, documentation)
            if instrument is not None:
                instrument._record(value, labels)  # a label may be named like a parameter of `add`


def _find_instrument(kind: _Kind, name: str, documentation: str) -> _Instrument | None:
    existing: _Instrument | None = _instruments.get((kind, name))
    if existing is not None:
        return existing
    if len(_instruments) >= MAX_METRICS:
        error_boundary.warn_once(
            "rl_insight metrics",
            "verl-otel: more than %d metrics through rl_insight; the rest is left out",
            MAX_METRICS,
        )
        return None
    bounds = valid_bounds(None) if kind is Histogram else ()
    instrument = _instruments[(kind, name)] = kind(str(name), "", documentation, bounds)
    return instrument
