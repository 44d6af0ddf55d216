# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Collection (the drain): turns buffers and ended spans into the batch of the exporters, and lists open spans.

Only one thread drains at a time, under `RECORDER.drain_lock`: two would take the same buffer twice. Threads of the
session wait for the lock; other callers only try it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import (
    NONE_DROPPED,
    SAMPLED,
    TRACE_FLAGS,
    Attributes,
    AttributeValue,
    Batch,
    Exemplar,
    Labels,
    OpenSpan,
    Point,
    SpanRecord,
)
from verl_otel.recording import convention_aliases, own_loop, sampled_timers, series, state
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import SpanIds
from verl_otel.recording.duration_stats import DURATIONS, DurationLog
from verl_otel.recording.sampling import MARKS, POLICY
from verl_otel.recording.series import bound_labels, bound_point
from verl_otel.recording.span import Span, clock, create_child_ids, create_root_ids
from verl_otel.recording.span_metrics import measure
from verl_otel.recording.state import RECORDER
from verl_otel.semconv.spans import SERVER, SPANS, STATUS_UNSET

MAX_PENDING: Final = 20_000
"""Points that may wait for a drain; reached only if nothing drains."""

Observation = tuple[Labels, float]
Observe = Callable[[], Iterable[Observation]]
"""Callback of a collection: returns labels and numbers. It must take no lock that recording takes, and record
nothing."""

Measurement = tuple[str, Labels, float]
"""Metric, labels, number."""


class Observed(NamedTuple):
    """Measurements of one moment."""

    time_ns: int
    """Unix time."""
    measurements: Sequence[Measurement]


class _Callback(NamedTuple):
    """The callback of a metric; see `observe`."""

    read: Observe
    removes: bool


_callbacks: dict[str, _Callback] = {}
"""By the name of the metric."""
_observed: dict[tuple[str, Labels], float] = {}
"""What each callback has returned last in this session."""


def collect(*, wait: float = -1) -> Batch | None:
    """Take what was recorded since the last drain.

    The stages run in this order, because each one needs, or adds to, what the ones before it have left:

    1. Take the ended spans, also those that sampled timers keep.
    2. Look ahead (`MARKS`): whether a trajectory is marked depends on the durations of the others of its step.
    3. Of each chunk of spans: create ids, then add conversations, which need ids. Of each span: record its metrics,
       which may add attributes to it and mark it; release its ended parents; note its duration; make its record.
    4. Report an own loop: measurements of steps whose trajectories stage 3 has seen.
    5. Fold measurements, those of 3 and 4 among them, into points and values.
    6. Take complete points, such as scalars of a step.
    7. Without the lock: copies of points and values under the names of conventions, and the rows of the open spans.

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
        kept = end_all(state.take_ended(sampled_timers.take_all()))
        with error_boundary.suppress_errors("own trajectories"):
            own_loop.report()
        points = series.fold_all(wait if wait < 0 else max(0.0, begin + wait - time.monotonic()))
        values = series.take_values()
        scalars = state.take(RECORDER.pending_points)
    finally:
        lock.release()
    if RECORDER.convention_aliases:
        points.extend(convention_aliases.make_aliases(points))
        values.extend(convention_aliases.make_aliases(values))
    # what is complete first: a gauge may have been set again since, and the last value counts
    return Batch(now, tuple(kept), (*scalars, *points), read_open(), values=tuple(values))


def collect_observed(batch: Batch, metrics: frozenset[str] = frozenset(), hardware: Iterable[Observed] = ()) -> Batch:
    """Return a batch of the observables that have changed, to be exported after one that did not wait for them.

    Args:
        batch: The drained batch, whose open spans it repeats.
        metrics: Metrics of the hardware.
        hardware: Their values. Other series of these metrics are removed.
    """
    now = time.time_ns()
    own: list[Measurement] = []
    asked = set(metrics)
    for metric, (read, removes) in list(_callbacks.items()):
        with error_boundary.suppress_errors(f"observe {metric}"):
            read_now = [(metric, labels, value) for labels, value in read()]
            own += [each for each in read_now if removes or _observed.get(each[:2]) != each[2]]
            _observed.update({(metric, labels): value for _, labels, value in read_now})
        if removes:
            asked.add(metric)
    points = tuple(
        Point(series.INSTRUMENTS[metric], bound_labels(labels), _started_ns, time_ns, value)
        for time_ns, measurements in (Observed(now, own), *hardware)
        for metric, labels, value in measurements
    )
    return Batch(now, points=points, open_spans=batch.open_spans, asked=frozenset(asked))


def add_points(points: Iterable[Point]) -> None:
    """Add complete points to the next drain. What exceeds `MAX_PENDING` is dropped and counted."""
    bounded = list(map(bound_point, points))
    room = max(0, MAX_PENDING - len(RECORDER.pending_points))
    RECORDER.pending_points.extend(bounded[:room])
    if len(bounded) > room:
        RECORDER.dropped_points += len(bounded) - room


def observe(metric: str, callback: Observe, *, removes: bool = False) -> None:
    """Register the callback of a metric of the catalogue. A second one replaces the first.

    Args:
        metric: Its name.
        callback: Returns labels and numbers.
        removes: Whether a series that it does not return any more is removed.
    """
    _callbacks[metric] = _Callback(callback, removes)


def observed() -> frozenset[str]:
    """Return the metrics that have a callback."""
    return frozenset(_callbacks)


def stop_observing() -> None:
    """Remove every callback of `observe`: the session that registered them ends."""
    _callbacks.clear()
    _observed.clear()


process_state.register(clear=_observed.clear, reset=stop_observing)


_started_ns = time.time_ns()


# -- Ended spans become the immutable records that exporters consume. A drain may have a hundred thousand spans, so this
# is written for speed: records are created without the constructor of their class (a third of the cost), ids by the
# chunk under one lock, and durations are added once for each name --

AT_ONCE: Final = 32
"""Spans whose ids are created while the lock is held once: a caller that needs an id waits for 30 µs at most."""
_PLAIN: Final = SPANS["span"]
_new = tuple.__new__
_whole = float.__trunc__  # `int` at half the cost


def end_all(ended: list[Span]) -> list[SpanRecord]:
    """Return the records of the sampled spans, as they ended. A span that cannot be converted is left out.

    Also records their metrics, offers exemplars and adds durations. Call under the drain lock.

    A span is measured before its attributes are read: measuring a trajectory may add attributes to it.
    """
    kept: list[SpanRecord] = []
    RECORDER.ended_count += len(ended)
    with error_boundary.suppress_errors("marks"):
        MARKS.look_ahead(ended, RECORDER.opened)
    notes = DurationLog() if DURATIONS.on else None
    for begin in range(0, len(ended), AT_ONCE):
        chunk = ended[begin : begin + AT_ONCE]
        _identify(chunk)
        if RECORDER.convention_aliases:
            convention_aliases.add_conversations(chunk)
        _end_chunk(chunk, notes, kept)
    if notes is not None:
        DURATIONS.add(notes)
    return kept


def _identify(chunk: list[Span]) -> None:
    """Create the ids of roots and of children of spans that have ids; `Span.resolve` creates those of the others."""
    waiting, roots = [], []
    for span in chunk:
        if span.ids is None:
            outer = span.outer
            if type(outer) is Span and not span.site.spec.root:
                ids: Any = outer.ids
                if type(ids) is SpanIds or (ids := _find_ids(outer)):
                    if ids.flags & SAMPLED:
                        waiting.append(span)
                    else:
                        span.ids = (ids, 0)  # nothing shows it, so it needs no id of its own
            elif not outer or span.site.spec.root:
                roots.append(span)
    create_child_ids(waiting)
    if roots:
        create_root_ids(roots)


def _find_ids(span: Span) -> SpanIds | None:
    """Return the ids of a span, which are created if it has none; None if that fails."""
    try:
        return span.resolve()
    except Exception as error:
        error_boundary.record_internal_error("record", error)
        return None


def _end_chunk(chunk: list[Span], notes: DurationLog | None, kept: list[SpanRecord]) -> None:
    last_parent: SpanIds | None = None
    for span in chunk:
        try:
            ids: Any = span.ids
            if type(ids) is tuple:
                parent_ids, span_id = ids
                if parent_ids is not last_parent:
                    trace_id, parent_id, _, flags, state, offset = last_parent = parent_ids
                    flags &= TRACE_FLAGS
            else:
                last_parent = None
                trace_id, span_id, parent_id, flags, state, offset = ids or span.resolve()
            start, stop, site, detail = span.start, span.stop, span.site, span._detail
            end_ns, spec, seconds = _whole(stop * 1e9) + offset, site.spec, stop - start
            has_metrics = spec is not _PLAIN or site.series is not None  # a plain span has none
            histogram = measure(span, seconds, state) if has_metrics else None
            if histogram is not None and flags & SAMPLED and POLICY.exemplars and histogram.wants(seconds, end_ns):
                _offer_exemplar(histogram, span, Exemplar(seconds, end_ns, trace_id, span_id))
            outer = span.outer
            while type(outer) is Span and outer.stop:  # a chain of tasks would keep all ended ones alive
                outer = outer.outer
            if notes is not None:
                served_ns = end_ns * (spec.kind == SERVER)
                notes.add(site.name if detail is None else span.name, seconds, parent_id, served_ns)
                notes.parents.add(parent_id if outer is span.outer else 0)
            span.outer = outer
            if not flags & SAMPLED and spec.verb != "trajectory":
                continue
            start_ns, own = _whole(start * 1e9) + offset, span._attributes
            attributes: Attributes = {**site.attributes, **own} if own else site.attributes
            if detail is None:
                fields: tuple[object, ...] = (
                    trace_id, span_id, parent_id, site.name, spec.kind, start_ns, end_ns, attributes, (), (), 0, "",
                    flags, state, None, NONE_DROPPED,
                )  # fmt: skip
            else:
                fields = (
                    trace_id, span_id, parent_id, detail.name or site.name, spec.kind, start_ns, end_ns, attributes,
                    tuple(detail.links or ()), tuple(detail.events or ()), detail.status, detail.message,
                    flags, state, None, detail.dropped,
                )  # fmt: skip
            kept.append(_new(SpanRecord, fields))
        except Exception as error:
            error_boundary.record_internal_error("record", error)


def _offer_exemplar(histogram: series.Histogram, span: Span, exemplar: Exemplar) -> None:
    """Offer an exemplar, which is the slowest of its bucket.

    A tail sampler keeps few trajectories: exemplars lead to marked ones and what lies in them only, and a bucket
    without a recent exemplar marks one for it.
    """
    if MARKS.allows_exemplar(span, needed=histogram.lacks(exemplar.value, exemplar.time_ns)):
        histogram.offer(exemplar)


def record_open(span: Span) -> SpanRecord:
    """Return the record of an open span; its end is 0."""
    trace_id, span_id, parent_id, flags, state, offset = span.resolve()
    detail, site, start_ns = span._detail, span.site, _whole(span.start * 1e9) + offset
    if detail is None:
        fields: tuple[object, ...] = (
            trace_id, span_id, parent_id, site.name, site.spec.kind, start_ns, 0, span.attributes, (), (), STATUS_UNSET,
            "", flags, state, None, NONE_DROPPED,
        )  # fmt: skip
    else:
        fields = (
            trace_id, span_id, parent_id, span.name, site.spec.kind, start_ns, 0, span.attributes,
            tuple(detail.links or ()), tuple(detail.events or ()), detail.status, detail.message,
            flags, state, None, detail.dropped,
        )  # fmt: skip
    return _new(SpanRecord, fields)


def list_open_above(given: Any) -> list[SpanRecord]:
    """Return the records of the open spans from the root to a given one; none: it is not ours, or not sampled.

    Args:
        given: A current span, of whichever library.
    """
    chain: list[Span] = []
    span = given if isinstance(given, Span) else None
    while span is not None:
        merged = span._detail.merged_parent if span._detail is not None else None
        if merged is None and span in RECORDER.open_spans:
            chain.append(span)
        span = merged if merged is not None else span._parent()
    return [record for record in map(record_open, reversed(chain)) if record.flags & SAMPLED]


# -- The table of open spans that every batch has. A worker may have thousands of spans open, and a drain comes every
# second: the row of an open span is made when the span enters the table and when it has changed. The more spans are
# open, the older is what enters --

OPEN_AFTER: Final = 1.0
"""Age in seconds from which an open span is in the table; younger ones usually end before the next drain."""
MAX_OPEN: Final = 500
"""Spans of the table, the oldest: enough to see what hangs."""
PER_SECOND: Final = 16.0
"""Spans that enter the table in a second, at most, while few are open; of many those enter that are open for longer."""
ENTER_AFTER: Final = 8.0
"""Age in seconds at which a span enters the table, however many are open."""


class _Entry(NamedTuple):
    """A row of the table, and what of its span it shows."""

    row: OpenSpan
    last: CallSite | None
    own: dict[str, AttributeValue] | None
    rare: tuple[object, ...] | None

    def shows(self, span: Span) -> bool:
        """Return whether the span has not changed. Its start distinguishes it from another one with the same `id`."""
        return (
            self.row.start == span.start
            and self.last is span.last
            and self.own == span._attributes
            and self.rare == _read_rare(span)
        )


class _Table:
    """The rows that were made last, by the `id` of the span."""

    entries: dict[int, _Entry] = {}


def read_open() -> tuple[OpenSpan, ...]:
    """Return the oldest open spans; the row of an unchanged one is the same object. For one thread at a time."""
    now, known, opened = clock(), _Table.entries, RECORDER.opened
    entry_age = min(ENTER_AFTER, OPEN_AFTER * max(1.0, len(opened) / PER_SECOND))
    entries: dict[int, _Entry] = {}
    for span in opened:  # in order of opening, so the first young one ends the search
        entry, age = known.get(id(span)), now - span.start
        if len(entries) >= MAX_OPEN or age < OPEN_AFTER or (age < entry_age and entry is None):
            break
        try:
            entries[id(span)] = entry if entry is not None and entry.shows(span) else _make_entry(span)
        except Exception as error:
            error_boundary.record_internal_error("open span", error)
    _Table.entries = entries
    return tuple([entry.row for entry in entries.values()])


def _read_rare(span: Span) -> tuple[object, ...] | None:
    detail = span._detail
    return None if detail is None else (detail.name, detail.status, len(detail.links or ()), len(detail.events or ()))


def _make_entry(span: Span) -> _Entry:
    own, last, rare = span._attributes, span.last, _read_rare(span)
    # Before the row is made: what another thread writes meanwhile is a change.
    shown = own and own.copy()
    last_child = last.name if last is not None else ""
    return _Entry(OpenSpan(record_open(span), span.start, last_child, span.site.spec.verb), last, shown, rare)


def clear_open() -> None:
    """Remove every row: what was recorded is discarded."""
    _Table.entries = {}


process_state.register(clear=clear_open, after_fork=clear_open)
