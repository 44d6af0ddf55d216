# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Collection (the drain): turns buffers and ended spans into the immutable batch that exporters consume.

Only one thread drains at a time, under `RECORDER.drain_lock`: two would take the same buffer twice. Threads of the session wait for the
lock; other callers only try it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import Batch, Labels, Point
from verl_otel.recording import (
    convention_aliases,
    own_trajectories,
    sampled_timers,
    series_registry,
    span_records,
    state,
)
from verl_otel.recording.series_registry import bound_labels, bound_point
from verl_otel.recording.state import RECORDER

MAX_PENDING: Final = 20_000
"""Points that may wait for a drain; reached only if nothing drains."""

Observation = tuple[Labels, float]
Observe = Callable[[], Iterable[Observation]]
"""Callback of a collection: returns labels and numbers. It must take no lock that recording takes, and record nothing."""

Measurement = tuple[str, Labels, float]
"""Metric, labels, number."""
_observables: dict[str, Observe] = {}
_groups: dict[str, tuple[frozenset[str], Callable[[], Iterable[Measurement]]]] = {}


def collect(*, wait: float = -1) -> Batch | None:
    """Take what was recorded since the last drain.

    Args:
        wait: Seconds to wait for the drain lock; 0 to only try it, -1 to wait without limit.

    Returns:
        The batch, or None if the lock was not free within ``wait``.
    """
    lock, begin = RECORDER.drain_lock, time.monotonic()
    if not lock.acquire(timeout=wait):
        return None
    try:
        now = time.time_ns()
        kept = span_records.end_all(state.take_ended(sampled_timers.take_all()))
        with error_boundary.suppress_errors("own trajectories"):
            own_trajectories.report()
        points = series_registry.fold_all(wait if wait < 0 else max(0.0, begin + wait - time.monotonic()))
        scalars = state.take(RECORDER.pending_points)
    finally:
        lock.release()
    if RECORDER.convention_aliases:
        points.extend(convention_aliases.make_aliases(points))
    points.extend(scalars)
    return Batch(now, tuple(kept), tuple(points), span_records.read_open())


def collect_observed(batch: Batch, *, groups: bool = True) -> Batch:
    """Return a batch of the observables, to be exported after one that did not wait for them.

    Args:
        batch: The drained batch, whose open spans it repeats.
        groups: Call the callbacks of `observe_all`, too: those of the hardware may take a second.
    """
    now = time.time_ns()
    points = _collect_observed(now)
    asked: frozenset[str] = frozenset()
    if groups:
        points += _collect_groups(now)
        asked = asked.union(*(names for names, _ in list(_groups.values())))
    return Batch(now, points=tuple(points), open_spans=batch.open_spans, asked=asked)


def add_points(points: Iterable[Point]) -> None:
    """Add complete points, such as the scalars of one step, to the next drain. What exceeds `MAX_PENDING` is dropped and counted."""
    bounded = list(map(bound_point, points))
    room = max(0, MAX_PENDING - len(RECORDER.pending_points))
    RECORDER.pending_points.extend(bounded[:room])
    if len(bounded) > room:
        RECORDER.dropped_points += len(bounded) - room


def observe(metric: str, callback: Observe) -> None:
    """Register the callback of a metric of the catalogue. A second one replaces the first."""
    _observables[metric] = callback


def observe_all(group: str, metrics: Iterable[str], callback: Callable[[], Iterable[Measurement]]) -> None:
    """Register one callback for several metrics of the catalogue. A series that it does not return any more is removed.

    Args:
        group: Name of the group. A second callback of the same group replaces the first.
        metrics: Names of the metrics.
        callback: Returns metrics, labels and numbers; the rules of `Observe` apply.
    """
    _groups[group] = frozenset(metrics), callback


def observed() -> frozenset[str]:
    """Return the metrics that have a callback."""
    return frozenset(_observables).union(*(names for names, _ in list(_groups.values())))


def stop_observing() -> None:
    """Remove every callback of `observe` and `observe_all`: the session that registered them ends."""
    _observables.clear()
    _groups.clear()


process_state.register(reset=stop_observing)


def _collect_observed(now: int) -> list[Point]:
    points = []
    for name, callback in list(_observables.items()):
        instrument = series_registry.INSTRUMENTS[name]
        try:
            points += [Point(instrument, bound_labels(labels), _started_ns, now, value) for labels, value in callback()]
        except Exception as error:
            error_boundary.record_internal_error(f"observe {name}", error)
    return points


def _collect_groups(now: int) -> list[Point]:
    points = []
    for group, (_, read) in list(_groups.items()):
        try:
            points += [
                Point(series_registry.INSTRUMENTS[metric], bound_labels(labels), _started_ns, now, value)
                for metric, labels, value in read()
            ]
        except Exception as error:
            error_boundary.record_internal_error(f"observe {group}", error)
    return points


_started_ns = time.time_ns()
