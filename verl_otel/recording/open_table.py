# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of open spans that every batch has.

A worker may have thousands of spans open, and a drain comes every second: the row of an open span is made when the span enters the table,
and made again, for its attributes and its age change, less often the more there are. A span that has ended leaves the table at once.
"""

from __future__ import annotations

import time
from typing import Final, Union

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import OpenSpan
from verl_otel.recording import span_records
from verl_otel.recording.span import Span, clock
from verl_otel.recording.state import RECORDER

OPEN_AFTER: Final = 1.0
"""Age in seconds from which an open span is in the table; younger ones usually end before the next drain."""
MAX_OPEN: Final = 500
"""Spans of the table, the oldest: enough to see what hangs."""
FEW: Final = 64
"""Rows up to which all of them are made again at each drain."""
PER_SECOND: Final = 62.5
"""Of more, so many are made again a second: those of a full table every 8 s."""

_Entry = tuple[float, Union[OpenSpan, None]]
"""The start of a span, which distinguishes it from another one with the same `id`, and its row."""
_NONE: Final[_Entry] = (0.0, None)


class _Table:
    """The rows that were made last, by the `id` of their span."""

    entries: dict[int, _Entry] = {}
    due = 0.0
    """When all rows are made again, by `clock`."""


def read() -> tuple[OpenSpan, ...]:
    """Return the oldest open spans. Call on one thread at a time."""
    now, now_ns = clock(), time.time_ns()
    known = _Table.entries if now < _Table.due and len(RECORDER.open_spans) > FEW else {}
    entries: dict[int, _Entry] = {}
    rows: list[OpenSpan] = []
    for span in RECORDER.opened:  # in order of opening, so the first young one ends the search
        age = now - span.start
        if len(rows) >= MAX_OPEN or age < OPEN_AFTER:
            break
        entry = known.get(id(span), _NONE)
        row = entry[1]
        if row is None or entry[0] != span.start:
            row = None
            with error_boundary.suppress_errors("open span"):
                row = _make_row(span, age, now_ns)
            entry = (span.start, row)
        if row is not None:
            entries[id(span)] = entry
            rows.append(row)
    if known is not _Table.entries:
        _Table.due = now + len(rows) / PER_SECOND if len(rows) > FEW else 0.0
    _Table.entries = entries
    return tuple(rows)


def _make_row(span: Span, age: float, now_ns: int) -> OpenSpan:
    last_child = span.last.name if span.last is not None else ""
    return OpenSpan(span_records.record_open(span), age, last_child, span.site.spec.verb, now_ns)


def clear() -> None:
    """Remove every row: what was recorded is discarded."""
    _Table.entries, _Table.due = {}, 0.0


process_state.register(clear=clear, after_fork=clear)
