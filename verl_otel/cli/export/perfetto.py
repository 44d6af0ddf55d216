# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write a run as a trace for Perfetto: a timeline of nodes, processes, steps and trajectories.

Open the file in https://ui.perfetto.dev (nothing is uploaded) or query it with Perfetto's trace processor. It holds the steps with their verdicts,
the critical path, the GPU time of each step, every span, stalls, and metrics as counters.

A run with more spans than --spans is cut: steps are complete, and of the trajectories the slowest are. The command reports what is left out.

Examples:
  verl-otel export perfetto
  verl-otel export perfetto RUN --steps 10-20 --output steps.pftrace
"""

from __future__ import annotations

import argparse
import heapq
import math
import struct
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple

from verl_otel._internal.printable import counted, show
from verl_otel.analysis.model import Explanation, Process, Step
from verl_otel.analysis.run import FOREVER
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.cli import options, run_selection
from verl_otel.cli.wording import describe_verdict
from verl_otel.exporting.otlp.protobuf import field, text, varint
from verl_otel.model import SpanRecord, in_64_bits
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import TRACESTATE_STEP

DEFAULT_SPANS: Final = 250_000
"""Spans of an export: 400 bytes each in the file, and the viewer stays quick."""
_BATCH: Final = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the format."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=options.count, metavar="N", help="export this step only")
    which.add_argument("--steps", type=options.step_range, metavar="N-M", help="export these steps only")
    parser.add_argument(
        "--spans",
        type=options.positive,
        default=DEFAULT_SPANS,
        metavar="N",
        help=f"maximum number of spans ({DEFAULT_SPANS:,})",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (<run id>.pftrace in the current folder)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the trace. Returns 1 when the run has no spans."""
    asked = arguments.steps if arguments.step is None else range(arguments.step, arguments.step + 1)
    recorded = run_selection.open_run(arguments.folders, "export", steps=frozenset(asked or ()))
    explanation = recorded.explanation
    steps, begin_ns, end_ns = list(explanation.steps), 0, FOREVER
    if asked is not None:
        steps = run_selection.choose_steps(explanation, options.Steps(0, asked), arguments.step)
        begin_ns, end_ns = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
    selection = Selection(arguments.spans)
    selection.add_all(recorded.spans(begin_ns, end_ns))
    path: Path = arguments.output or Path(f"{explanation.run_id}.pftrace")
    with path.open("wb", buffering=_BATCH) as stream:
        file = TraceFile(stream, explanation.start_ns)
        timeline = Timeline(file)
        timeline.draw_steps(explanation, steps)
        timeline.draw_events(explanation, begin_ns, end_ns)
        timeline.draw_spans(selection.traces)
        left_out = timeline.draw_metrics(explanation, begin_ns, end_ns)
    spans = sum(map(len, selection.traces.values()))
    size = path.stat().st_size / 1e6
    print(f"{show(path, 2_000)}: {counted(len(steps), 'step')}, {counted(spans, 'span')}, {size:.1f} MB")
    print("open it in https://ui.perfetto.dev; the page reads it locally")
    _say_left_out(selection, left_out)
    return 0 if spans else 1


def _say_left_out(selection: Selection, counters: int) -> None:
    parts = []
    if selection.thinned:
        parts.append(f"of {counted(selection.thinned, 'fast trajectory', 'fast trajectories')} all but the root span")
    if selection.removed:
        parts.append(counted(selection.removed, "fast trajectory", "fast trajectories"))
    if counters:
        parts.append(f"{counted(counters, 'metric series', 'metric series')}")
    if parts:
        print(f"left out: {', '.join(parts)}; use --steps or --spans for more of them", file=sys.stderr)


# -- The spans that an export holds, in bounded memory: steps always, of trajectories the slowest --


class Written(NamedTuple):
    """A span and the process that wrote it."""

    process: Process
    span: SpanRecord


class Selection:
    """Collects spans by trace. Beyond the limit the fastest trajectories keep their root only; then they are removed.

    Args:
        limit: Maximum number of spans. Traces other than trajectories are kept in any case.
    """

    def __init__(self, limit: int) -> None:
        self.traces: dict[int, list[Written]] = {}
        self.thinned = 0
        """Number of trajectories of which only the root was kept."""
        self.removed = 0
        """Number of trajectories that were left out."""
        self._limit = limit
        self._count = 0
        self._whole: list[tuple[int, int]] = []
        """Heap of trajectories with all spans: duration, trace id."""
        self._roots: list[tuple[int, int]] = []
        """Heap of trajectories of which only the root is left."""
        self._dropped: set[int] = set()
        self._fastest = [-1, -1]
        """Durations up to which trajectories are thinned, and left out: those of earlier ones that were."""

    def add_all(self, spans: Iterable[tuple[Process, SpanRecord]]) -> None:
        """Add spans in the order in which they were written."""
        for process, span in spans:
            self._add(Written(process, span))

    def _add(self, written: Written) -> None:
        span = written.span
        is_root = span.name == TRAJECTORY and not span.parent_id
        if span.trace_id in self._dropped and not is_root:
            return
        self.traces.setdefault(span.trace_id, []).append(written)
        self._count += 1
        if is_root:
            heapq.heappush(self._whole, (span.end_ns - span.start_ns, span.trace_id))
        self._shrink()

    def _shrink(self) -> None:
        """Leave out spans of the fastest trajectories until the rest fits; one as fast as these is never kept instead."""
        while self._whole and (self._count > self._limit or self._whole[0][0] <= self._fastest[0]):
            self._thin(*heapq.heappop(self._whole))
        while self._roots and (self._count > self._limit or self._roots[0][0] <= self._fastest[1]):
            self._remove(*heapq.heappop(self._roots))

    def _thin(self, duration: int, trace_id: int) -> None:
        members = self.traces[trace_id]
        roots = self.traces[trace_id] = [one for one in members if not one.span.parent_id]
        self._count -= len(members) - len(roots)
        self._fastest[0] = max(self._fastest[0], duration)
        self._dropped.add(trace_id)
        self.thinned += 1
        heapq.heappush(self._roots, (duration, trace_id))

    def _remove(self, duration: int, trace_id: int) -> None:
        self._count -= len(self.traces.pop(trace_id))
        self._fastest[1] = max(self._fastest[1], duration)
        self.thinned -= 1
        self.removed += 1


# -- Places spans on tracks. The slices of one Perfetto track must nest; spans of concurrent work do not --

Row = list[SpanRecord]


def split_rows(spans: Iterable[SpanRecord]) -> list[Row]:
    """Divide the spans of one trace in one process into rows within which they nest.

    Two spans of a row are disjoint, or one contains the other. Each span is placed in the first row that has room, so that sequential
    work stays below its parent.

    Returns:
        Rows in the order of their first span; each sorted by start, outer spans first.
    """
    rows: list[Row] = []
    stacks: list[list[SpanRecord]] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns, bool(span.parent_id), span.span_id)):
        for row, stack in zip(rows, stacks, strict=True):
            while stack and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            if not stack or stack[-1].end_ns >= span.end_ns:
                row.append(span)
                stack.append(span)
                break
        else:
            rows.append([span])
            stacks.append([span])
    return rows


def walk(row: Row) -> Iterator[tuple[SpanRecord, bool]]:
    """Return the begins (True) and ends (False) of the spans of a row in the order in which Perfetto must read them."""
    stack: list[SpanRecord] = []
    for span in row:
        while stack and stack[-1].end_ns <= span.start_ns:
            yield stack.pop(), False
        stack.append(span)
        yield span, True
    while stack:
        yield stack.pop(), False


class Lanes:
    """Numbers of lanes such that the intervals of one lane are disjoint (first fit)."""

    def __init__(self) -> None:
        self._lanes: list[list[tuple[int, int]]] = []

    def place(self, begin_ns: int, end_ns: int) -> int:
        """Return the first lane with room for an interval, and occupy it. Intervals of one lane do not touch."""
        for number, intervals in enumerate(self._lanes):
            place = bisect_left(intervals, (begin_ns, end_ns))
            after_previous = place == 0 or intervals[place - 1][1] < begin_ns
            if after_previous and (place == len(intervals) or end_ns < intervals[place][0]):
                intervals.insert(place, (begin_ns, end_ns))
                return number
        self._lanes.append([(begin_ns, end_ns)])
        return len(self._lanes) - 1


# -- The timeline. Arrows lead from a call to the worker or server that executes it, from a step to the trajectories
# that it submitted, and from a trajectory to the step that trained on it.
#
#     Steps                    step 7, with its verdicts
#       critical path          what the step waited for, without a gap
#       GPU time: <device>     one slice a step, with the seconds of each cause
#       stalls and crashes
#     <node>
#       <process>
#         steps, trajectories  one lane for each that runs at the same time
#     Metrics
#       <series>               a counter

MAX_COUNTERS: Final = 500
"""Counters beyond this number are left out: the viewer draws a row for each."""


class Arrows(NamedTuple):
    """Numbers of the arrows that begin and end at spans, by span id."""

    begins: Mapping[int, list[int]]
    ends: Mapping[int, list[int]]


def find_arrows(traces: Mapping[int, list[Written]]) -> Arrows:
    """Return the arrows between spans: from parents to children in other processes, and from linked spans to those that link to them.

    A link to a span that is not there has no arrow.
    """
    begins: defaultdict[int, list[int]] = defaultdict(list)
    ends: defaultdict[int, list[int]] = defaultdict(list)
    processes = {one.span.span_id: one.process.instance for written in traces.values() for one in written}
    number = 0
    for written in traces.values():
        for process, span in written:
            sources = [span.parent_id] if processes.get(span.parent_id, process.instance) != process.instance else []
            sources += [link.span_id for link in span.links if link.span_id in processes]
            for source in sources:
                number += 1
                begins[source].append(number)
                ends[span.span_id].append(number)
    return Arrows(begins, ends)


class Timeline:
    """Draws the parts of a run.

    Args:
        file: The trace to write.
    """

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._nodes: dict[str, int] = {}
        self._processes: dict[tuple[str, str], int] = {}
        self._lanes: dict[tuple[int, str], tuple[Lanes, list[int]]] = {}

    # -- what the analysis found --

    def draw_steps(self, run: Explanation, steps: Iterable[Step]) -> None:
        """Draw steps with their verdicts, critical path and GPU time."""
        file = self._file
        track = file.add_track("Steps", rank=0)
        path = file.add_track("critical path", track, rank=0)
        devices: dict[str, int] = {}
        chosen = sorted(steps, key=lambda step: step.start_ns)
        ends = [step.start_ns for step in run.steps if step.start_ns]
        for step in chosen:
            self._slice(track, step.start_ns, step.end_ns, f"step {step.number}", _describe_step(step))
            for segment in step.path:
                details = {"kind": segment.kind, "phase": segment.phase, "process": segment.instance}
                details |= {"trace_id": f"{segment.trace_id:032x}"} if segment.trace_id else {}
                self._slice(path, segment.start_ns, segment.end_ns, segment.name or segment.kind, details)
            end = min((start for start in ends if start > step.start_ns), default=step.end_ns)
            for device in step.devices:
                if device.device not in devices:
                    devices[device.device] = file.add_track(f"GPU time: {device.device}", track, rank=1 + len(devices))
                causes = {cause: length / 1e9 for cause, length in device.nanoseconds.items() if length}
                name = max(causes, key=lambda cause: causes[cause], default="unknown")
                share = causes.get(name, 0.0) / max(1e-9, sum(causes.values()))
                self._slice(devices[device.device], step.start_ns, end, f"{name} {share:.0%}", causes)

    def draw_events(self, run: Explanation, begin_ns: int, end_ns: int) -> None:
        """Mark stalls, crashes, stops by guards and alerts."""
        events = [event for event in run.events if begin_ns <= event.time_ns < end_ns]
        if events:
            track = self._file.add_track("events", rank=1)
            for event in events:
                self._file.instant(track, event.time_ns, event.kind, {"text": event.text})

    def draw_metrics(self, run: Explanation, begin_ns: int, end_ns: int) -> int:
        """Draw gauges and counters of the run; return how many series were left out."""
        root, drawn, left_out = 0, 0, 0
        for series in run.series:
            values = [
                (time_ns, value)
                for time_ns, value in zip(series.times_ns, series.values, strict=True)
                if begin_ns <= time_ns < end_ns
            ]
            if not values:
                continue
            drawn += 1
            if drawn > MAX_COUNTERS:
                left_out += 1
                continue
            root = root or self._file.add_track("Metrics", rank=1_000_000)
            labels = ", ".join(f"{key}={value}" for key, value in series.labels)
            track = self._file.add_track(f"{series.name} {labels}".strip(), root, rank=drawn, unit="")
            for time_ns, value in values:
                self._file.count(track, time_ns, value)
        return left_out

    def _slice(self, track: int, start_ns: int, end_ns: int, name: str, arguments: Mapping[str, Value]) -> None:
        if end_ns > start_ns:
            self._file.begin(track, start_ns, name, arguments)
            self._file.end(track, end_ns)

    # -- spans --

    def draw_spans(self, traces: Mapping[int, list[Written]]) -> None:
        """Draw the spans of traces in their processes. The order in which they were read changes nothing."""
        traces = {
            trace_id: sorted(written, key=lambda one: (one.span.start_ns, one.span.span_id))
            for trace_id, written in sorted(traces.items())
        }
        arrows = find_arrows(traces)
        parts: list[tuple[int, Process, str, Row]] = []
        for written in traces.values():
            by_process: dict[tuple[str, str], tuple[Process, list[SpanRecord]]] = {}
            for process, span in written:
                by_process.setdefault(_key(process), (process, []))[1].append(span)
            for process, spans in by_process.values():
                group = _find_group(spans)
                parts += [(row[0].start_ns, process, group, row) for row in split_rows(spans)]
        for _, process, group, row in sorted(parts, key=lambda part: part[0]):
            self._draw_row(self._find_track(process, group, row), row, arrows)

    def _draw_row(self, track: int, row: Row, arrows: Arrows) -> None:
        for span, begins in walk(row):
            if not begins:
                self._file.end(track, span.end_ns)
                continue
            self._file.begin(
                track,
                span.start_ns,
                span.name,
                {**span.attributes, "trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"},
                category="failed" if attr.ERROR_TYPE in span.attributes else "",
                flows=arrows.begins.get(span.span_id, ()),
                ends_flows=arrows.ends.get(span.span_id, ()),
            )

    def _find_track(self, process: Process, group: str, row: Row) -> int:
        """Return the lane on which a row is drawn."""
        owner = self._find_process(process)
        lanes, tracks = self._lanes.setdefault((owner, group), (Lanes(), []))
        number = lanes.place(row[0].start_ns, max(span.end_ns for span in row))
        if number == len(tracks):
            tracks.append(self._file.add_track(group, owner, rank=number if group == "steps" else 1_000 + number))
        return tracks[number]

    def _find_process(self, process: Process) -> int:
        key = _key(process)
        if key not in self._processes:
            host = process.resource.text(attr.HOST_NAME, "unknown host")
            if host not in self._nodes:
                self._nodes[host] = self._file.add_track(host, rank=10 + len(self._nodes))
            role = process.resource.text(attr.ROLE)
            rank = (0 if role == "trainer" else 1_000) + len(self._processes)
            self._processes[key] = self._file.add_track(process.label, self._nodes[host], rank=rank)
        return self._processes[key]


def _key(process: Process) -> tuple[str, str]:
    return process.resource.text(attr.HOST_NAME), process.label


def _find_group(spans: Iterable[SpanRecord]) -> str:
    """Return what the lanes of a trace are called in a process."""
    first = next(iter(spans))
    if first.trace_state.startswith(TRACESTATE_STEP):
        return "steps"
    return "trajectories" if first.trace_state or first.name == TRAJECTORY else "other traces"


def _describe_step(step: Step) -> dict[str, Value]:
    details: dict[str, Value] = {"seconds": step.seconds, "trajectories": step.members}
    details |= {f"verdict {number}": describe_verdict(one) for number, one in enumerate(step.verdicts, 1)}
    details |= {f"phase {phase.key}": phase.seconds for phase in step.phases}
    return details | ({"error": step.error} if step.error else {})


# -- The file: packets of Perfetto's schema (``perfetto_trace.proto``), written directly. Numbers of fields are beside what they hold; the tests parse the
# bytes by the schema of the package ``perfetto`` --

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
"""Values of `TrackEvent.Type`."""
_EXPLICIT: Final = 3
"""Value of `TrackDescriptor.ChildTracksOrdering`: children are ordered by their rank."""
_NOT_MERGED: Final = 2
"""Value of `TrackDescriptor.SiblingMergeBehavior`."""

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
        clocks = (_number(1, clock) + _number(2, start_ns) for clock in (_REALTIME, _BOOTTIME))
        self._write(field(6, b"".join(field(1, clock) for clock in clocks)))

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
        descriptor = _number(1, self._tracks) + field(2, text(name)) + _number(11, _EXPLICIT) + _number(12, rank)
        descriptor += _number(15, _NOT_MERGED)
        if parent:
            descriptor += _number(5, parent)
        if unit is not None:
            descriptor += field(8, field(6, text(unit)))
        self._write(field(60, descriptor))
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
        more = field(22, text(category)) if category else b""
        more += b"".join(b"\xf9\x02" + _FIXED(flow) for flow in flows)  # 47
        more += b"".join(b"\x81\x03" + _FIXED(flow) for flow in ends_flows)  # 48
        self._event(track, time_ns, _BEGIN, name, arguments, more)

    def end(self, track: int, time_ns: int) -> None:
        """End the innermost slice of a track."""
        self._event(track, time_ns, _END)

    def instant(self, track: int, time_ns: int, name: str, arguments: Mapping[str, Value] | None = None) -> None:
        """Mark a moment."""
        self._event(track, time_ns, _INSTANT, name, arguments)

    def count(self, track: int, time_ns: int, value: float) -> None:
        """Add a value of a counter; what is not finite is left out."""
        if math.isfinite(value):
            self._event(track, time_ns, _COUNTER, more=b"\xe1\x02" + _DOUBLE(value))  # 44

    def _event(
        self,
        track: int,
        time_ns: int,
        kind: int,
        name: str = "",
        arguments: Mapping[str, Value] | None = None,
        more: bytes = b"",
    ) -> None:
        event = _number(9, kind) + _number(11, track) + (field(23, text(name)) if name else b"") + more
        for key, value in (arguments or {}).items():
            event += field(4, field(10, text(key)) + _annotate(value))
        self._write(_number(8, time_ns) + field(11, event))

    def _write(self, packet: bytes) -> None:
        self._stream.write(field(1, packet + _number(10, _SEQUENCE)))


_DOUBLE: Final = struct.Struct("<d").pack
_FIXED: Final = struct.Struct("<Q").pack


def _number(number: int, value: int) -> bytes:
    """Return a field with an integer; a negative one takes ten bytes."""
    return varint(number << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _annotate(value: Value) -> bytes:
    """Return the value of a ``DebugAnnotation``."""
    if isinstance(value, bool):
        return _number(2, value)
    if isinstance(value, int) and in_64_bits(value):
        return _number(4, value)
    if isinstance(value, float):
        return b"\x29" + _DOUBLE(value)  # 5
    if isinstance(value, (tuple, list)):
        return b"".join(field(12, _annotate(item)) for item in value)
    return field(6, text(str(value)))
