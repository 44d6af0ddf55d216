# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one piece of the lines of a run: most trajectories lie completely in one piece and are analysed here.

Spans of traces that cross the edges of the piece, or that are no trajectory, are passed on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.followed_files import Piece
from verl_otel.analysis.io.run_files import Writers
from verl_otel.analysis.model import Segment, Trajectory
from verl_otel.analysis.traces import critical_path, tree
from verl_otel.analysis.traces.clocks import Clock
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.analysis.traces.timeline import build_trajectory
from verl_otel.analysis.traces.tree import LATE_NS, Ahead, Trace, Written
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr

_START: Final = itemgetter(SpanRecord._fields.index("start_ns"))
_ID: Final = itemgetter(SpanRecord._fields.index("span_id"))
_END: Final = itemgetter(SpanRecord._fields.index("end_ns"))


class Context(NamedTuple):
    """Data about the whole run that is known before its pieces are read."""

    engine: str = ""
    clocks: Mapping[str, Clock] = {}
    """By host; empty where there is only one."""
    hosts: Mapping[str, str] = {}
    """Host of each process, by its instance."""

    @property
    def slack_ns(self) -> int:
        """Minimum distance in nanoseconds between a trace and the edge of its piece, so that the piece has all its spans."""
        shifts = [shift for clock in self.clocks.values() for shift in clock.ahead_ns]
        return LATE_NS + max(shifts, default=0) - min(shifts, default=0)

    def find_uncertainty(self, path: Iterable[Segment]) -> float:
        """Return by how many seconds the clocks on a path may differ: infinite where one of them has no bound."""
        if not self.clocks:
            return 0.0
        passed = {self.hosts.get(segment.instance, "") for segment in path}
        return max((self.clocks[host].uncertainty for host in passed if host in self.clocks), default=0.0)


class PieceSummary(NamedTuple):
    """The summary of one piece."""

    trajectories: tuple[Trajectory, ...]
    spans: tuple[Written, ...]
    """Spans of all other traces."""
    read: int
    """Number of spans that became trajectories."""
    times: tuple[int, int] | None
    """Start of the first and end of the last span, on the trainer's clock; None: there is none."""
    ended: frozenset[int]
    """Those of the awaited spans that it contains."""


def summarise(
    piece: Piece, context: Context, awaited: frozenset[int], writers: Writers, tally: Tally, problems: list[str]
) -> PieceSummary:
    """Read the spans of a piece.

    Args:
        piece: The piece.
        context: Data about the whole run.
        awaited: Ids of spans that were open when they were last written.
        writers: Receives the processes that wrote it.
        tally: Receives what is missing in its trajectories.
        problems: Receives a message for each line that cannot be read.
    """
    by_trace: defaultdict[int, list[Written]] = defaultdict(list)
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    ended: set[int] = set()
    for process, spans in run_files.read_spans(piece.extents, writers, problems):
        if spans:
            for span in spans:
                by_trace[span[0]].append((span, process))
            first, last = min(map(_START, spans)), max(map(_END, spans))
            firsts[process] = min(firsts.get(process, first), first)
            lasts[process] = max(lasts.get(process, last), last)
            writers.note_alive(process, last)
            if awaited:
                ended.update(awaited.intersection(map(_ID, spans)))
    instances = [name_instance(values) for values in writers.resources]
    ahead = ahead_of(writers.resources, context.clocks)
    trajectories, rest, read = list[Trajectory](), list[Written](), 0
    slack = context.slack_ns
    for trace_id, written in by_trace.items():
        if not _is_inside(written, piece, slack):
            rest += written
            continue
        trace = tree.assemble(trace_id, written, instances, ahead)
        tally.add(trace)
        trajectory = find_trajectory(trace)
        if trajectory is not None:
            trajectories.append(trajectory)
        read += trace.spans
    return PieceSummary(tuple(trajectories), tuple(rest), read, _find_times(firsts, lasts, ahead), frozenset(ended))


def _find_times(firsts: Mapping[int, int], lasts: Mapping[int, int], ahead: Ahead | None) -> tuple[int, int] | None:
    """Return the first and the last time of all processes, on the trainer's clock."""
    if not firsts:
        return None
    if ahead is None:
        return min(firsts.values()), max(lasts.values())
    begins, ends = ([time - ahead(process, time) for process, time in times.items()] for times in (firsts, lasts))
    return min(begins), max(ends)


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


def _is_inside(written: Sequence[Written], piece: Piece, slack: int) -> bool:
    """Return whether a trace is that of a trajectory and lies completely in a piece."""
    root = next((span for span, _ in written if not span.parent_id), None)
    if root is None or root.name != TRAJECTORY:
        return False
    return root.start_ns >= piece.begin_ns + slack and root.end_ns + slack <= piece.watermark_ns
