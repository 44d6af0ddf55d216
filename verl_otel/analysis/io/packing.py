# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Serializes trajectories for transfer between processes, and keeps their detail packed until it is accessed.

Of a run's trajectories few are shown: the others only contribute to sums. So their activities and critical paths stay plain tuples,
or bytes, until they are accessed. Sending and receiving them takes 1.9 µs of CPU time a span; pickled as named tuples they would take
3.9 µs, and the receiver a quarter more memory. Both ends run the same interpreter, so marshal's version-dependent format can be used.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import msgspec

from verl_otel.analysis.gpu.trajectory_usage import Use, find_use
from verl_otel.analysis.model import Activity, Part, Segment, Trajectory
from verl_otel.analysis.traces.timeline import sum_parts

Plain = Sequence[Any]
"""The values of a named tuple."""
_Detail = tuple[Sequence[Plain], Sequence[Plain]]
"""Activities and path."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder()
_make_activity: Final = partial(tuple.__new__, Activity)
_PARTS: Final = Trajectory._fields.index("parts")
_PATH: Final = Trajectory._fields.index("path")
_ACTIVITIES: Final = Trajectory._fields.index("activities")


class Packed(Trajectory):
    """A trajectory whose parts, path and activities are created on access.

    Its tuple holds other data in their slots: the calls by kind, the packed detail, and its usage (`trajectory_usage.Use`).
    """

    __slots__ = ()

    @property
    def parts(self) -> tuple[Part, ...]:  # type: ignore[override]  # a field of the tuple there
        """The parts that it spent time on."""
        return sum_parts(self.start_ns, self.end_ns, self.activities, whole=self.whole)

    @property
    def path(self) -> tuple[Segment, ...]:  # type: ignore[override]  # as above
        """Its own critical path."""
        trace_id = self.trace_id
        return tuple([Segment._make((*segment[:6], trace_id, *segment[6:])) for segment in self.detail()[1]])

    @property
    def activities(self) -> tuple[Activity, ...]:  # type: ignore[override]  # as above
        """Its activities."""
        return tuple(map(_make_activity, self.detail()[0]))

    @property
    def calls(self) -> dict[str, int]:
        """Number of activities by kind."""
        return cast("dict[str, int]", self[_PARTS])

    @property
    def use(self) -> Use:
        """Its GPU usage."""
        return cast("Use", self[_ACTIVITIES])

    def detail(self) -> _Detail:
        """Return activities and path as plain values."""
        detail: Any = self[_PATH]
        return cast("_Detail", _DECODER.decode(detail) if type(detail) is bytes else detail)


def pack(head: Trajectory, activities: Sequence[Plain], path: Sequence[Plain]) -> Packed:
    """Return a trajectory in packed form."""
    values: list[Any] = list(head)
    calls: dict[str, int] = {}
    for activity in activities:
        calls[activity[0]] = calls.get(activity[0], 0) + 1
    values[_PARTS] = calls
    values[_PATH] = activities, path
    values[_ACTIVITIES] = find_use(head.start_ns, head.end_ns, activities, validate=head.validate, whole=head.whole)
    return tuple.__new__(Packed, values)


def compact(trajectory: Packed) -> Packed:
    """Return a trajectory with its detail as bytes, a fifth of the size; unchanged if it has numbers of more than 64 bits."""
    detail: Any = trajectory[_PATH]
    if type(detail) is bytes:
        return trajectory
    values: list[Any] = list(trajectory)
    with suppress(OverflowError):
        values[_PATH] = _ENCODER.encode(detail)
    return tuple.__new__(Packed, values)


def unpack(trajectory: Packed) -> Trajectory:
    """Return a trajectory with all its detail."""
    values: list[Any] = list(trajectory)
    values[_PARTS], values[_PATH], values[_ACTIVITIES] = trajectory.parts, trajectory.path, trajectory.activities
    return Trajectory._make(values)


def plain_path(trajectory: Packed) -> Sequence[Plain]:
    """Return a critical path as values of segments, without their common trace id."""
    return trajectory.detail()[1]


def find_served(trajectory: Packed) -> Iterable[tuple[str, int, int]]:
    """Return the replicas that served a trajectory: instance, start, end."""
    return trajectory.use[0]


def pack_trajectories(trajectories: Iterable[Packed]) -> bytes:
    """Serialize trajectories."""
    return marshal.dumps([list(compact(trajectory)) for trajectory in trajectories])


def unpack_trajectories(packed: bytes) -> list[Packed]:
    """Deserialize trajectories."""
    return [tuple.__new__(Packed, values) for values in marshal.loads(packed)]  # noqa: S302 - as above
