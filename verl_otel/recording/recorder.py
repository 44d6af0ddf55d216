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
from verl_otel.model import SAMPLED, Batch, Exemplar, Labels, OpenSpan, Point, SpanRecord
from verl_otel.recording import progress, registry, store
from verl_otel.recording.sampling import Policy
from verl_otel.recording.series import FoldLock
from verl_otel.recording.span import Span, clock, shorten
from verl_otel.recording.store import Store
from verl_otel.semconv import spans as semconv
from verl_otel.semconv.spans import SERVER

OPEN_AFTER: Final = 1.0
"""Seconds after which an open span is written down; younger ones end before the next drain as a rule."""

MAX_OPEN: Final = 500
"""Open spans that a drain hands out, the oldest: enough to say what hangs, little enough to be written every second."""
MAX_PENDING: Final = 20_000
"""Points that may wait for a drain; reached only when nothing drains."""

Observation = tuple[Labels, float]
Observe = Callable[[], Iterable[Observation]]
"""Asked at collection: returns labels and numbers. Takes no lock that recording takes, records nothing."""

_observables: dict[str, Observe] = {}
_pending: list[Point] = []


def drain(*, observe: bool = False, wait: float = -1) -> Batch | None:
    """Take what was recorded since the last drain.

    Args:
        observe: Ask the observables, too.
        wait: Seconds to wait for another drainer; 0 to only try, -1 for as long as it takes.

    Returns:
        The batch, or None when another drainer was at work for all of ``wait``.
    """
    lock = FoldLock.held
    if not lock.acquire(timeout=wait):
        return None
    try:
        now = time.time_ns()
        records = []
        for span in store.take(Store.finished):
            with _guard.swallowed("record"):
                record = _end(span)
                if record is not None:
                    records.append(record)
        points = registry.fold_all()
        scalars = store.take(_pending)
    finally:
        lock.release()
    points.extend(scalars)
    if observe:
        points.extend(_ask(now))
    return Batch(now, tuple(records), tuple(points), tuple(_open_spans()))


def add_points(points: Iterable[Point]) -> None:
    """Hand over points that were made as a whole, such as the scalars of one step, for the next drain."""
    made = list(points)
    room = max(0, MAX_PENDING - len(_pending))
    _pending.extend(made[:room])
    if len(made) > room:
        Store.dropped_points += len(made) - room


def clear() -> None:
    """Forget points that wait for a drain. For a forked child and tests."""
    _pending.clear()


os.register_at_fork(after_in_child=clear)


def forget() -> None:
    """Forget every span, total and point: a session begins, and an earlier one of this process left them.

    Unlike ``clear`` of the three parts this may be called while others record.
    """
    with FoldLock.held:
        registry.reset()
    store.clear()
    Policy.clear()
    clear()


def observe(metric: str, callback: Observe) -> None:
    """Have a metric of the catalogue asked for at every collection; a second callback replaces the first."""
    _observables[metric] = callback


def stop_observing() -> None:
    """Forget every callback of `observe`: the session that registered them ends."""
    _observables.clear()


def _end(span: Span) -> SpanRecord | None:
    """Turn an ended span into a record; None for one that is not kept. Its exemplar is offered on the way."""
    ids = span.resolve()
    detail = span._detail
    sampled = ids.flags & SAMPLED
    if detail is not None and detail.series is not None and sampled:
        detail.series.offer(Exemplar(span.stop - span.start, span.end_ns, ids.trace_id, ids.span_id))
    progress.note(span.name, span.stop - span.start, ids.parent_id, span.end_ns if span.site.spec.kind == SERVER else 0)
    shorten(span)
    if not sampled and span.site.spec.verb != "trajectory":
        return None
    return _record(span, span.end_ns)


def _record(span: Span, end_ns: int) -> SpanRecord:
    ids, detail = span.resolve(), span._detail
    start_ns = span.start_ns
    kind = span.site.spec.kind
    if detail is None:
        return SpanRecord(
            ids.trace_id,
            ids.span_id,
            ids.parent_id,
            span.site.name,
            kind,
            start_ns,
            end_ns,
            span.attributes,
            (),
            (),
            semconv.STATUS_UNSET,
            "",
            ids.flags,
            ids.state,
        )
    return SpanRecord(
        ids.trace_id,
        ids.span_id,
        ids.parent_id,
        span.name,
        kind,
        start_ns,
        end_ns,
        span.attributes,
        tuple(detail.links or ()),
        tuple(detail.events or ()),
        detail.status,
        detail.message,
        ids.flags,
        ids.state,
    )


def _open_spans() -> list[OpenSpan]:
    """Return the oldest open spans: the table is in the order of opening, so the first young one ends the search."""
    now = clock()
    found: list[OpenSpan] = []
    for span in list(Store.opened):
        age = now - span.start
        if len(found) >= MAX_OPEN or age < OPEN_AFTER:
            break
        if not span.stop:
            with _guard.swallowed("open span"):
                found.append(_open(span, age))
    return found


def _open(span: Span, age: float) -> OpenSpan:
    detail = span._detail
    last_child = detail.last_child if detail is not None else ""
    return OpenSpan(_record(span, 0), age, last_child, span.site.spec.verb)


def _ask(now: int) -> list[Point]:
    points = []
    for name, callback in list(_observables.items()):
        instrument = registry.INSTRUMENTS[name]
        try:
            points += [Point(instrument, labels, _started_ns, now, value) for labels, value in callback()]
        except Exception as error:
            _guard.report(f"observe {name}", error)
    return points


_started_ns = time.time_ns()
