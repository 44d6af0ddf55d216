# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories and spans as bytes on their way from one process to another, and trajectories whose detail stays packed.

Of a run's trajectories few are shown: the others only lend their numbers to sums. So what they did and their critical path stay plain
tuples, or marshal's bytes, until somebody asks; named tuples through pickle would take a third of a report's time. Both ends are the same
interpreter, so that marshal's format, which is its own business, does not matter.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import msgspec

from verl_otel.analysis.facts import Activity, Part, Segment, Trajectory
from verl_otel.analysis.timeline import sum_parts
from verl_otel.analysis.traces import Written
from verl_otel.analysis.usage import Use, find_use
from verl_otel.model import LinkRecord, SpanRecord

Plain = Sequence[Any]
"""The values of a named tuple."""
_Detail = tuple[Sequence[Plain], Sequence[Plain]]
"""Activities, and the path."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder()
_LINKS: Final = SpanRecord._fields.index("links")
_EVENTS: Final = SpanRecord._fields.index("events")
_make_activity: Final = partial(tuple.__new__, Activity)
_PARTS: Final = Trajectory._fields.index("parts")
_PATH: Final = Trajectory._fields.index("path")
_ACTIVITIES: Final = Trajectory._fields.index("activities")


class Packed(Trajectory):
    """A trajectory of which parts, path and activities are made when somebody asks for them.

    Its tuple holds something else in their places: how often it did what, the detail, and what it used (`usage.Use`).
    """

    __slots__ = ()

    @property
    def parts(self) -> tuple[Part, ...]:  # type: ignore[override]  # a field of the tuple there
        """What it spent time on."""
        return sum_parts(self.start_ns, self.end_ns, self.activities, whole=self.whole)

    @property
    def path(self) -> tuple[Segment, ...]:  # type: ignore[override]  # as above
        """Its own critical path."""
        trace_id = self.trace_id
        return tuple([Segment._make((*each[:6], trace_id, *each[6:])) for each in self.detail()[1]])

    @property
    def activities(self) -> tuple[Activity, ...]:  # type: ignore[override]  # as above
        """What was done for it elsewhere."""
        return tuple(map(_make_activity, self.detail()[0]))

    @property
    def calls(self) -> dict[str, int]:
        """How many activities of each kind it has."""
        return cast("dict[str, int]", self[_PARTS])

    @property
    def use(self) -> Use:
        """What it used, and when."""
        return cast("Use", self[_ACTIVITIES])

    def detail(self) -> _Detail:
        """What it did and its path, as plain values."""
        detail: Any = self[_PATH]
        return cast("_Detail", _DECODER.decode(detail) if type(detail) is bytes else detail)


def pack(head: Trajectory, activities: Sequence[Plain], path: Sequence[Plain]) -> Packed:
    """Return a trajectory that is known but for its parts, its activities and its path."""
    values: list[Any] = list(head)
    calls: dict[str, int] = {}
    for activity in activities:
        calls[activity[0]] = calls.get(activity[0], 0) + 1
    values[_PARTS] = calls
    values[_PATH] = activities, path
    values[_ACTIVITIES] = find_use(head.start_ns, head.end_ns, activities, validate=head.validate, whole=head.whole)
    return tuple.__new__(Packed, values)


def unpack(trajectory: Packed) -> Trajectory:
    """Return a trajectory with all its detail."""
    values: list[Any] = list(trajectory)
    values[_PARTS], values[_PATH], values[_ACTIVITIES] = trajectory.parts, trajectory.path, trajectory.activities
    return Trajectory._make(values)


def plain_path(trajectory: Packed) -> Sequence[Plain]:
    """Return a critical path as values of segments, without the trace id that all of them have."""
    return trajectory.detail()[1]


def find_served(trajectory: Packed) -> Iterable[tuple[str, int, int]]:
    """Return which replica worked for a trajectory, from when, to when."""
    return trajectory.use[0]


def pack_trajectories(trajectories: Iterable[Packed]) -> bytes:
    """Return trajectories as bytes."""
    plain, encode = [], _ENCODER.encode
    for each in trajectories:
        values: list[Any] = list(each)
        if type(values[_PATH]) is not bytes:
            with suppress(OverflowError):  # numbers of more than 64 bits: left as they are
                values[_PATH] = encode(values[_PATH])
        plain.append(values)
    return marshal.dumps(plain)


def unpack_trajectories(packed: bytes) -> list[Packed]:
    """Return the trajectories that were packed."""
    return [tuple.__new__(Packed, values) for values in marshal.loads(packed)]  # noqa: S302 - as above


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
