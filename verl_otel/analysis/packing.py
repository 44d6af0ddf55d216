# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories and spans as bytes on their way from one process to another.

Plain tuples through marshal: named tuples through pickle take three times as long, and that would be a third of a report's time.
Both ends are the same interpreter, so that marshal's format, which is its own business, does not matter.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from verl_otel.analysis.facts import Activity, Part, Segment, Trajectory
from verl_otel.analysis.traces import Written
from verl_otel.model import LinkRecord, SpanRecord

_PARTS: Final = Trajectory._fields.index("parts")
_PATH: Final = Trajectory._fields.index("path")
_ACTIVITIES: Final = Trajectory._fields.index("activities")
_LINKS: Final = SpanRecord._fields.index("links")
_EVENTS: Final = SpanRecord._fields.index("events")
_make_part: Final = partial(tuple.__new__, Part)
_make_segment: Final = partial(tuple.__new__, Segment)
_make_activity: Final = partial(tuple.__new__, Activity)


def pack_trajectories(trajectories: Iterable[Trajectory]) -> bytes:
    """Return trajectories as bytes."""
    plain = []
    for each in trajectories:
        values: list[Any] = list(each)
        values[_PARTS] = list(map(tuple, each.parts))
        values[_PATH] = list(map(tuple, each.path))
        values[_ACTIVITIES] = list(map(tuple, each.activities))
        plain.append(values)
    return marshal.dumps(plain)


def unpack_trajectories(packed: bytes) -> list[Trajectory]:
    """Return the trajectories that were packed."""
    found = []
    for values in marshal.loads(packed):  # noqa: S302 - made by our own worker process a moment ago
        values[_PARTS] = tuple(map(_make_part, values[_PARTS]))
        values[_PATH] = tuple(map(_make_segment, values[_PATH]))
        values[_ACTIVITIES] = tuple(map(_make_activity, values[_ACTIVITIES]))
        found.append(tuple.__new__(Trajectory, values))
    return found


def pack_spans(spans: Iterable[Written]) -> bytes:
    """Return spans, as they are read from files, as bytes."""
    plain = []
    for span, process in spans:
        values: list[Any] = list(span)
        values[_LINKS] = list(map(tuple, span.links))
        values[_EVENTS] = ()  # files' events are not read
        plain.append((values, process))
    return marshal.dumps(plain)


def unpack_spans(packed: bytes) -> list[Written]:
    """Return the spans that were packed."""
    found = []
    for values, process in marshal.loads(packed):  # noqa: S302 - as above
        values[_LINKS] = tuple(map(LinkRecord._make, values[_LINKS]))
        found.append((SpanRecord._make(values), process))
    return found
