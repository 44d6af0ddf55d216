# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's life cycle and metric functions: a user's own metrics under the names that he gave them.

Nothing raises and nothing waits: what cannot be recorded is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from verl_otel import _guard
from verl_otel.recording.instruments import Counter, Gauge, Histogram, valid_bounds
from verl_otel.recording.store import Store

MAX_METRICS: Final = 1000
"""Metrics of one process; what comes later is left out, since a name made of numbers would never end."""
T = TypeVar("T", Counter, Gauge, Histogram)
_made: dict[tuple[type, str], Any] = {}


def init(
    project: str | None = None,
    experiment_name: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Do nothing: verl-otel began with ``import verl`` and knows project and experiment from ``Tracking``."""


def finish() -> None:
    """Do nothing: verl-otel ends with ``Tracking.finish`` and with the process."""


def metric_count(name: str, amount: float = 1.0, documentation: str = "", **labels: Any) -> None:
    """Add to a counter."""
    if Store.on:
        with _guard.swallowed("rl_insight"):
            counter = _find(Counter, name, documentation)
            if counter is not None:
                counter._record(amount, labels)  # a label may be named like a parameter of `add`


def metric_gauge(name: str, value: float, documentation: str = "", **labels: Any) -> None:
    """Replace the value of a gauge."""
    if Store.on:
        with _guard.swallowed("rl_insight"):
            gauge = _find(Gauge, name, documentation)
            if gauge is not None:
                gauge.set(value, **labels)


def metric_histogram(name: str, value: float, documentation: str = "", **labels: Any) -> None:
    """Record one sample of a histogram, with verl-otel's bounds: from microseconds to an hour."""
    if Store.on:
        with _guard.swallowed("rl_insight"):
            histogram = _find(Histogram, name, documentation)
            if histogram is not None:
                histogram._record(value, labels)


def _find(kind: type[T], name: str, documentation: str) -> T | None:
    found: T | None = _made.get((kind, name))
    if found is not None:
        return found
    if len(_made) >= MAX_METRICS:
        _guard.say(
            "rl_insight metrics",
            "verl-otel: more than %d metrics through rl_insight; the rest is left out",
            MAX_METRICS,
        )
        return None
    bounds = valid_bounds(None) if kind is Histogram else ()
    made = _made[(kind, name)] = kind(str(name), "", documentation, bounds)
    return made
