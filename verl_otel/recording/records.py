# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From ended spans to the frozen records that exporting takes: the drain's part of what a kept span costs.

There may be a hundred thousand spans in a drain, so this is written for speed: tuples are made without the constructor of their
class (a third of its cost), ids by the chunk under one lock, and what is noted of durations once for each name.
"""

from __future__ import annotations

from typing import Any, Final

from verl_otel import _guard
from verl_otel.model import NONE_DROPPED, SAMPLED, Exemplar, SpanRecord
from verl_otel.recording import identity, ids, marks, progress
from verl_otel.recording.identity import Ids, shorten
from verl_otel.recording.measures import measure
from verl_otel.recording.sampling import Policy
from verl_otel.recording.span import BareSpan, Span
from verl_otel.recording.store import Store
from verl_otel.semconv.spans import SERVER, SPANS, STATUS_UNSET

AT_ONCE: Final = 32
"""Spans whose ids are made under one hold of the lock: a caller who asks for an id waits for some 30 µs at most."""
_PLAIN: Final = SPANS["span"]
_new = tuple.__new__
_whole = float.__trunc__  # `int`, at half its price


class Ended:
    """How many spans have ended in this process."""

    count = 0


def end_all(ended: list[Span]) -> list[SpanRecord]:
    """Return the records of the spans that are kept, in the order in which they ended; one that is broken costs itself only.

    They are measured on the way, their exemplars offered and their durations noted. Call under the drain lock.
    """
    kept: list[SpanRecord] = []
    Ended.count += len(ended)
    with _guard.swallowed("marks"):
        marks.look_ahead(ended, Store.begun[:])
    notes = progress.Notes() if progress.is_on() else None
    for begin in range(0, len(ended), AT_ONCE):
        chunk = ended[begin : begin + AT_ONCE]
        if not Policy.leaves:
            chunk = _leave_out(chunk, notes)
        _identify(chunk)
        _end_chunk(chunk, notes, kept)
    if notes is not None:
        progress.note_all(notes)
    return kept


def _leave_out(chunk: list[Span], notes: progress.Notes | None) -> list[Span]:
    """Return the spans without those that say least: no failed one, none with anything below it, none whose ids were asked for.

    What is left out is noted all the same: work below which nothing else ends is no stall.
    """
    doubtful = {span for span in chunk if _says_least(span)}
    _identify([span for span in chunk if span not in doubtful])  # makes the ids of what is around them, too
    kept = []
    outer, parent_id = None, 0
    for span in chunk:
        if span not in doubtful or span.ids is not None:
            kept.append(span)
        elif notes is not None:
            try:
                if span.outer is not outer:
                    above = span._parent()
                    parent_id = above.resolve().span_id if above is not None else 0
                    outer = span.outer
                notes.add(span.name, span.stop - span.start, parent_id)
            except Exception as error:
                _guard.report("record", error)
    Policy.left_out += len(chunk) - len(kept)
    return kept


def _says_least(span: Span) -> bool:
    """Return whether a span may be left out: one of the user's own, nothing opened in it, and nothing said but attributes."""
    detail = span._detail
    return (
        span.site.spec is _PLAIN
        and span.site.series is None
        and span.ids is None
        and span.last is None
        and (detail is None or not (detail.error or detail.status or detail.events or detail.links))
    )


def _identify(chunk: list[Span]) -> None:
    """Make the ids of all roots, and of all spans directly below one that has ids; `Span.resolve` makes those of the others."""
    waiting, roots = [], []
    for span in chunk:
        if span.ids is None:
            outer = span.outer
            if not outer or span.site.spec.root:  # nothing around it, or nothing that counts
                roots.append(span)
            elif type(outer) is BareSpan and (type(outer.ids) is Ids or _is_known(outer)):
                waiting.append(span)
    drawn = ids.make_span_ids(len(waiting))
    with identity._ids_lock:
        for span, span_id in zip(waiting, drawn, strict=True):
            if span.ids is None:
                span.ids = (span.outer.ids, span_id or 1)
    if roots:
        identity.make_roots(roots)


def _is_known(span: BareSpan) -> bool:
    """Return whether a span has ids, made now if need be."""
    with _guard.swallowed("record"):
        span.resolve()
    return type(span.ids) is Ids


def _end_chunk(chunk: list[Span], notes: progress.Notes | None, kept: list[SpanRecord]) -> None:
    last: Ids | None = None
    for span in chunk:
        try:
            found: Any = span.ids
            if type(found) is tuple:
                above, span_id = found
                if above is not last:
                    trace_id, parent_id, _, flags, state, offset = last = above
                    flags &= SAMPLED
            else:
                last = None
                trace_id, span_id, parent_id, flags, state, offset = found or span.resolve()
            outer = span.outer
            if type(outer) is BareSpan and outer.stop:
                shorten(span)
            start, stop, site, detail = span.start, span.stop, span.site, span._detail
            start_ns, end_ns, spec = _whole(start * 1e9) + offset, _whole(stop * 1e9) + offset, site.spec
            if spec is not _PLAIN or site.series is not None:  # of a plain span there is nothing to measure
                _measure(span, end_ns, trace_id, span_id, sampled=flags & SAMPLED)
            if notes is not None:
                served_ns = end_ns if spec.kind == SERVER else 0
                notes.add(site.name if detail is None else span.name, stop - start, parent_id, served_ns)
            if not flags & SAMPLED and spec.verb != "trajectory":
                continue
            own = span._attributes
            said = {**site.attributes, **own} if own else site.attributes
            if detail is None:
                fields: tuple[object, ...] = (
                    trace_id, span_id, parent_id, site.name, spec.kind, start_ns, end_ns, said, (), (), 0, "",
                    flags, state, None, NONE_DROPPED,
                )  # fmt: skip
            else:
                fields = (
                    trace_id, span_id, parent_id, detail.name or site.name, spec.kind, start_ns, end_ns, said,
                    tuple(detail.links or ()), tuple(detail.events or ()), detail.status, detail.message,
                    flags, state, None, NONE_DROPPED,
                )  # fmt: skip
            kept.append(_new(SpanRecord, fields))
        except Exception as error:
            _guard.report("record", error)


def _measure(span: Span, end_ns: int, trace_id: int, span_id: int, *, sampled: int) -> None:
    """Measure a span, and show it in its histogram if it is kept and the slowest of its bucket.

    Of trajectories a tail sampler keeps few: only those are shown that speak for themselves, and no bucket goes without one for long.
    """
    seconds = span.stop - span.start
    series = measure(span, seconds)
    if series is None or not sampled or not Policy.exemplars or not series.wants(seconds, end_ns):
        return
    if span.site.spec is marks.TRAJECTORY and not marks.show(span, needed=series.lacks(seconds, end_ns)):
        return
    series.offer(Exemplar(seconds, end_ns, trace_id, span_id))


def record_open(span: Span) -> SpanRecord:
    """Return the record of a span that is still open."""
    made, detail = span.resolve(), span._detail
    return SpanRecord(
        made.trace_id,
        made.span_id,
        made.parent_id,
        span.name,
        span.site.spec.kind,
        span.start_ns,
        0,
        span.attributes,
        tuple(detail.links or ()) if detail is not None else (),
        tuple(detail.events or ()) if detail is not None else (),
        detail.status if detail is not None else STATUS_UNSET,
        detail.message if detail is not None else "",
        made.flags,
        made.state,
    )
