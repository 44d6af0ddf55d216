# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one slice of a run independently of the others: most trajectories lie completely in one slice and are analysed here.

Spans of traces that cross the edges of the slice, or that are no trajectory, are passed on. Slices are independent of each
other, so they can be read by several processes; the results are small.
"""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.run_files import BEGINNING, END, Extent, Slice, Writers
from verl_otel.analysis.model import Activity, Segment, Trajectory
from verl_otel.analysis.scalars import Columns
from verl_otel.analysis.traces import critical_path, tree
from verl_otel.analysis.traces.clocks import Clock
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.analysis.traces.timeline import (
    build_trajectory,
)
from verl_otel.analysis.traces.tree import LATE_NS, Ahead, Trace, Written
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr

_NEVER: Final = 1 << 64
_START: Final = itemgetter(SpanRecord._fields.index("start_ns"))
_END: Final = itemgetter(SpanRecord._fields.index("end_ns"))
_PATH, _ACTIVITIES = Trajectory._fields.index("path"), Trajectory._fields.index("activities")
_segment, _activity = partial(tuple.__new__, Segment), partial(tuple.__new__, Activity)


class Context(NamedTuple):
    """Data about the whole run that is known before its slices are read."""

    engine: str = ""
    clocks: Mapping[str, Clock] = {}
    """By host; empty where there is only one."""
    open_traces: frozenset[int] = frozenset()
    """Traces with open spans: they are passed on unchanged."""
    hosts: Mapping[str, str] = {}
    """Host of each process, by its instance."""

    @property
    def slack_ns(self) -> int:
        """Minimum distance in nanoseconds between a trace and the edge of its slice, so that the slice has all its spans."""
        shifts = [shift for clock in self.clocks.values() for shift in clock.ahead_ns]
        return LATE_NS + max(shifts, default=0) - min(shifts, default=0)

    def find_uncertainty(self, path: Iterable[Segment]) -> float:
        """Return by how many seconds the clocks on a path may differ: infinite where one of them has no bound."""
        if not self.clocks:
            return 0.0
        passed = {self.hosts.get(segment.instance, "") for segment in path}
        return max((self.clocks[host].uncertainty for host in passed if host in self.clocks), default=0.0)


class SliceSummary(NamedTuple):
    """The summary of one slice."""

    processes: tuple[tuple[dict[str, AttributeValue], int, int], ...]
    """The processes that wrote it: attributes, oldest and newest time."""
    trajectories: tuple[Trajectory, ...]
    spans: tuple[Written, ...]
    """Spans of all other traces, with the index into ``processes``."""
    tally: Tally
    read: int
    """Number of spans that became trajectories."""
    first_ns: int
    """Start of the first span; `_NEVER` if there is none."""
    last_ns: int
    columns: Columns
    problems: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle trajectories as plain tuples, in half the time. Both ends run the same interpreter, so that marshal can be used."""
        rows: list[list[Any]] = [list(trajectory) for trajectory in self.trajectories]
        for row in rows:
            row[_PATH], row[_ACTIVITIES] = list(map(tuple, row[_PATH])), list(map(tuple, row[_ACTIVITIES]))
        return _receive, (tuple(self._replace(trajectories=())), marshal.dumps(rows))


def _receive(values: Iterable[Any], trajectories: bytes) -> SliceSummary:
    rows = marshal.loads(trajectories)  # noqa: S302 - from a process of this one
    for row in rows:
        row[_PATH], row[_ACTIVITIES] = tuple(map(_segment, row[_PATH])), tuple(map(_activity, row[_ACTIVITIES]))
    return SliceSummary._make(values)._replace(trajectories=tuple(map(Trajectory._make, rows)))


def summarise_spans(piece: Slice, context: Context) -> SliceSummary:
    """Read the spans of a slice."""
    writers, problems = Writers(), list[str]()
    by_trace: defaultdict[int, list[Written]] = defaultdict(list)
    firsts: dict[int, int] = {}
    for process, spans in run_files.read_spans(piece.extents, writers, problems):
        if spans:
            for span in spans:
                by_trace[span[0]].append((span, process))
            writers.note_alive(process, max(map(_END, spans)))
            first = min(map(_START, spans))
            firsts[process] = min(firsts.get(process, _NEVER), first)
    instances = [name_instance(values) for values in writers.resources]
    ahead = ahead_of(writers.resources, context.clocks)
    tally, trajectories, rest, read = Tally(context.engine), list[Trajectory](), list[Written](), 0
    slack = context.slack_ns
    for trace_id, written in by_trace.items():
        if not _is_inside(written, piece, context, slack):
            rest += written
            continue
        trace = tree.assemble(trace_id, written, instances, ahead)
        tally.add(trace)
        trajectory = find_trajectory(trace)
        if trajectory is not None:
            trajectories.append(trajectory)
        read += trace.spans
    first, last = _bounds(firsts, writers, ahead)
    return SliceSummary(
        writers.processes(), tuple(trajectories), tuple(rest), tally, read, first, last, Columns(), tuple(problems)
    )


def _bounds(firsts: Mapping[int, int], writers: Writers, ahead: Ahead | None) -> tuple[int, int]:
    """Return the start of the first and the end of the last span, on the trainer's clock."""
    begins = [(process, time) for process, time in firsts.items()]
    ends = [(process, writers.newest[process]) for process in firsts]
    if ahead is not None:
        begins, ends = ([(process, time - ahead(process, time)) for process, time in times] for times in (begins, ends))
    return min((time for _, time in begins), default=_NEVER), max((time for _, time in ends), default=0)


def summarise_metrics(extents: Sequence[Extent]) -> SliceSummary:
    """Read scalars from parts of the metrics files."""
    writers, problems, columns = Writers(), list[str](), Columns()
    for process, points in run_files.read_points(extents, writers, problems):
        columns.add(points, name_instance(writers.resources[process]))
        writers.note_alive(process, max((point.time_ns for point in points), default=0))
    return SliceSummary(writers.processes(), (), (), Tally(), 0, _NEVER, 0, columns, tuple(problems))


def find_trajectory(trace: Trace) -> Trajectory | None:
    """Return the trajectory of a trace, with spans whose parent is missing; None if it has none."""
    orphans = [root for root in trace.roots if root.span.parent_id]
    for root in trace.roots:
        if root.span.name == TRAJECTORY and not root.span.parent_id:
            return build_trajectory(root, orphans)._replace(path=critical_path.of_trajectory(root))
    return None


def name_instance(resource: Mapping[str, AttributeValue]) -> str:
    """Return ``<role>-<number>`` of a process."""
    return str(resource.get(attr.SERVICE_INSTANCE, "")).rpartition("/")[2]


def ahead_of(resources: Iterable[Mapping[str, AttributeValue]], clocks: Mapping[str, Clock]) -> Ahead | None:
    """Return a function that gives the offset of a process's clock at a time; None where no clock has an offset."""
    if not any(any(clock.ahead_ns) for clock in clocks.values()):
        return None
    clock_of_process = [clocks.get(str(resource.get(attr.HOST_NAME))) for resource in resources]

    def ahead(process: int, time_ns: int) -> int:
        clock = clock_of_process[process]
        return 0 if clock is None else clock.ahead(time_ns)

    return ahead


def _is_inside(written: Sequence[Written], piece: Slice, context: Context, slack: int) -> bool:
    """Return whether a trace is that of a trajectory and lies completely in a slice."""
    root = next((span for span, _ in written if not span.parent_id), None)
    if root is None or root.name != TRAJECTORY or root.trace_id in context.open_traces:
        return False
    begins = piece.begin_ns == BEGINNING or root.start_ns >= piece.begin_ns + slack
    return begins and (piece.end_ns == END or root.end_ns + slack <= piece.end_ns)
