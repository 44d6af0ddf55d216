# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Drain: from buffers and ended spans to the frozen data that exporting takes.

One drainer at a time: two of them would take the same buffer twice (seen). A thread of ours waits for the lock; everybody
else tries it and goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from verl_otel import _guard
from verl_otel.model import Batch, Labels, OpenSpan, Point
from verl_otel.recording import leaves, records, registry, store
from verl_otel.recording.marks import Marks
from verl_otel.recording.sampling import Policy
from verl_otel.recording.span import Span, clock
from verl_otel.recording.store import DrainLock, Store

OPEN_AFTER: Final = 1.0
"""Seconds after which an open span is written down; younger ones end before the next drain as a rule."""

MAX_OPEN: Final = 500
"""Open spans that a drain hands out, the oldest: enough to say what hangs, little enough to be written every second."""
MAX_PENDING: Final = 20_000
"""Points that may wait for a drain; reached only when nothing drains."""

Observation = tuple[Labels, float]
Observe = Callable[[], Iterable[Observation]]
"""Asked at collection: returns labels and numbers. Takes no lock that recording takes, records nothing."""

Measurement = tuple[str, Labels, float]
"""Metric, labels, number."""
_observables: dict[str, Observe] = {}
_groups: dict[str, tuple[frozenset[str], Callable[[], Iterable[Measurement]]]] = {}
_pending: list[Point] = []


def drain(*, observe: bool = False, wait: float = -1) -> Batch | None:
    """Take what was recorded since the last drain.

    Args:
        observe: Ask the observables, too.
        wait: Seconds to wait for another drainer; 0 to only try, -1 for as long as it takes.

    Returns:
        The batch, or None when another drainer was at work for all of ``wait``.
    """
    lock = DrainLock.held
    if not lock.acquire(timeout=wait):
        return None
    try:
        now = time.time_ns()
        kept = records.end_all(store.take_ended(leaves.take_all(kept=Policy.leaves)))
        points = registry.fold_all(wait)
        scalars = store.take(_pending)
    finally:
        lock.release()
    points.extend(scalars)
    batch = Batch(now, tuple(kept), tuple(points), tuple(_open_spans()))
    if not observe:
        return batch
    answers = ask(batch)
    return batch._replace(points=(*batch.points, *answers.points), asked=answers.asked)


def ask(batch: Batch, *, groups: bool = True) -> Batch:
    """Return what is asked at collection, to be handed over after a batch that has not waited for it.

    Args:
        batch: What was drained; what is open is taken from it.
        groups: Ask the callbacks of `observe_all`, too: those of the hardware may take a second.
    """
    now = time.time_ns()
    points = _ask(now)
    asked: frozenset[str] = frozenset()
    if groups:
        points += _ask_groups(now)
        asked = asked.union(*(names for names, _ in list(_groups.values())))
    return Batch(now, points=tuple(points), open_spans=batch.open_spans, asked=asked)


def add_points(points: Iterable[Point]) -> None:
    """Hand over points that were made as a whole, such as the scalars of one step, for the next drain."""
    made = list(points)
    room = max(0, MAX_PENDING - len(_pending))
    _pending.extend(made[:room])
    if len(made) > room:
        Store.dropped_points += len(made) - room


def clear() -> None:
    """Forget points and kept leaves that wait for a drain. For a forked child and tests."""
    _pending.clear()
    leaves.clear()
    records.Ended.count = 0


os.register_at_fork(after_in_child=clear)


def forget() -> None:
    """Forget every span, total and point: a session begins, and an earlier one of this process left them.

    Unlike ``clear`` of the three parts this may be called while others record.
    """
    registry.reset()
    store.clear()
    Policy.clear()
    Marks.clear()
    clear()


def observe(metric: str, callback: Observe) -> None:
    """Have a metric of the catalogue asked for at every collection; a second callback replaces the first."""
    _observables[metric] = callback


def observe_all(group: str, metrics: Iterable[str], callback: Callable[[], Iterable[Measurement]]) -> None:
    """Have several metrics of the catalogue asked for at once at every collection; a series that is not named any more is gone.

    Args:
        group: What they are of. A second callback of the same group replaces the first.
        metrics: Their names.
        callback: Returns metrics, labels and numbers, as an `Observe` does.
    """
    _groups[group] = frozenset(metrics), callback


def observed() -> frozenset[str]:
    """Return the metrics of the catalogue that are asked for at collection."""
    return frozenset(_observables).union(*(names for names, _ in list(_groups.values())))


def stop_observing() -> None:
    """Forget every callback of `observe` and `observe_all`: the session that registered them ends."""
    _observables.clear()
    _groups.clear()


def _open_spans() -> list[OpenSpan]:
    """Return the oldest open spans: the table is in the order of opening, so the first young one ends the search."""
    now = clock()
    found: list[OpenSpan] = []
    for span in Store.opened:
        age = now - span.start
        if len(found) >= MAX_OPEN or age < OPEN_AFTER:
            break
        with _guard.swallowed("open span"):
            found.append(_open(span, age))
    return found


def _open(span: Span, age: float) -> OpenSpan:
    last_child = span.last.name if span.last is not None else ""
    return OpenSpan(records.record_open(span), age, last_child, span.site.spec.verb)


def _ask(now: int) -> list[Point]:
    points = []
    for name, callback in list(_observables.items()):
        instrument = registry.INSTRUMENTS[name]
        try:
            points += [Point(instrument, labels, _started_ns, now, value) for labels, value in callback()]
        except Exception as error:
            _guard.report(f"observe {name}", error)
    return points


def _ask_groups(now: int) -> list[Point]:
    points = []
    for group, (_, read) in list(_groups.items()):
        try:
            points += [
                Point(registry.INSTRUMENTS[metric], labels, _started_ns, now, value) for metric, labels, value in read()
            ]
        except Exception as error:
            _guard.report(f"observe {group}", error)
    return points


_started_ns = time.time_ns()
