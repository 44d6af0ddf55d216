# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes packets of a Perfetto trace, in Perfetto's own schema (package ``perfetto``, ``perfetto_trace.proto``).

A trace is a sequence of packets: descriptors of tracks, which form a tree, and events on them. Events may be written in any order of
time; those with the same timestamp on one track must be in the order in which they nest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent

_SEQUENCE: Final = 1
_REALTIME: Final = 1
_BOOTTIME: Final = 6
"""Numbers of `BuiltinClock`. Timestamps are of BOOTTIME by default; both clocks are set equal, so that wall-clock time is shown."""

Value = object
"""Value of an argument of a slice: bool, int, float, or anything else as text."""


class TraceFile:
    """A Perfetto trace that is being written.

    Args:
        stream: Binary stream to write to.
        start_ns: Start of the run, in nanoseconds since 1970.
    """

    def __init__(self, stream: IO[bytes], start_ns: int) -> None:
        self._stream = stream
        self._tracks = 0
        clocks = Trace()
        packet = clocks.packet.add(trusted_packet_sequence_id=_SEQUENCE)
        for clock in (_REALTIME, _BOOTTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=start_ns)
        self._write(clocks)

    def add_track(self, name: str, parent: int = 0, *, rank: int = 0, unit: str | None = None) -> int:
        """Declare a track.

        Args:
            name: Shown name.
            parent: Track that it is shown below; 0: none.
            rank: Position among its siblings.
            unit: Unit of a counter; None: the track holds slices.

        Returns:
            Its number, for the other methods.
        """
        self._tracks += 1
        trace = Trace()
        descriptor = trace.packet.add(trusted_packet_sequence_id=_SEQUENCE).track_descriptor
        descriptor.uuid = self._tracks
        descriptor.name = name
        descriptor.sibling_order_rank = rank
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        descriptor.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        if parent:
            descriptor.parent_uuid = parent
        if unit is not None:
            descriptor.counter.unit_name = unit
        self._write(trace)
        return self._tracks

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        arguments: Mapping[str, Value] | None = None,
        *,
        category: str = "",
        flows: Iterable[int] = (),
        ends_flows: Iterable[int] = (),
    ) -> None:
        """Begin a slice.

        Args:
            track: Track that it is drawn on.
            time_ns: Its start.
            name: Shown name.
            arguments: Shown in its details.
            category: Category, for queries.
            flows: Numbers of arrows that begin at it.
            ends_flows: Numbers of arrows that end at it.
        """
        event = self._event(track, time_ns, TrackEvent.TYPE_SLICE_BEGIN, name, arguments)
        if category:
            event.packet[0].track_event.categories.append(category)
        event.packet[0].track_event.flow_ids.extend(flows)
        event.packet[0].track_event.terminating_flow_ids.extend(ends_flows)
        self._write(event)

    def end(self, track: int, time_ns: int) -> None:
        """End the innermost slice of a track."""
        self._write(self._event(track, time_ns, TrackEvent.TYPE_SLICE_END))

    def instant(self, track: int, time_ns: int, name: str, arguments: Mapping[str, Value] | None = None) -> None:
        """Mark a moment."""
        self._write(self._event(track, time_ns, TrackEvent.TYPE_INSTANT, name, arguments))

    def count(self, track: int, time_ns: int, value: float) -> None:
        """Add a value of a counter; what is not finite is left out."""
        if math.isfinite(value):
            event = self._event(track, time_ns, TrackEvent.TYPE_COUNTER)
            event.packet[0].track_event.double_counter_value = value
            self._write(event)

    def _event(
        self, track: int, time_ns: int, kind: int, name: str = "", arguments: Mapping[str, Value] | None = None
    ) -> Any:
        trace = Trace()
        packet = trace.packet.add(timestamp=time_ns, trusted_packet_sequence_id=_SEQUENCE)
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        if name:
            event.name = name
        for key, value in (arguments or {}).items():
            _annotate(event.debug_annotations.add(name=key), value)
        return trace

    def _write(self, trace: Any) -> None:
        self._stream.write(trace.SerializeToString())


def _annotate(annotation: Any, value: Value) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, (tuple, list)):
        for item in value:
            _annotate(annotation.array_values.add(), item)
    else:
        annotation.string_value = str(value)
