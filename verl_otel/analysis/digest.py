# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One slice of a run, understood by itself as far as that goes: most trajectories begin and end in it and become facts here.

What crosses the slice's edges, and everything that is no trajectory, is handed on as spans. Slices do not depend on each other, so that
they can be digested in several processes; what comes back is small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from verl_otel.analysis import critical_path, packing, reader, traces
from verl_otel.analysis.clocks import Clock
from verl_otel.analysis.gaps import Tally
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.reader import Extent, Writers
from verl_otel.analysis.scalars import Columns
from verl_otel.analysis.shortcut import Shortcut
from verl_otel.analysis.sketches import Doubt, Sketch, pack_sketches, sketch, unpack_sketches
from verl_otel.analysis.slices import BEGINNING, END, Slice
from verl_otel.analysis.timeline import STEP, TRAJECTORY, build_root, find_activities, find_consumed
from verl_otel.analysis.traces import LATE_NS, Ahead, Trace, Written
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr

_NEVER: Final = 1 << 64
_KNOWN: Final = (TRAJECTORY, STEP)
_START: Final = itemgetter(SpanRecord._fields.index("start_ns"))
_END: Final = itemgetter(SpanRecord._fields.index("end_ns"))


class Context(NamedTuple):
    """What is known of the whole run before its slices are read."""

    engine: str = ""
    clocks: Mapping[str, Clock] = {}
    """By host; empty where there is only one."""
    open_traces: frozenset[int] = frozenset()
    """Traces of which something had not ended: they are handed on."""
    hosts: Mapping[str, str] = {}
    """Host of each process, by its instance."""

    @property
    def doubt(self) -> Doubt:
        """How far clocks may be apart."""
        return Doubt(self.clocks, self.hosts)

    @property
    def slack_ns(self) -> int:
        """How far from an edge of a slice a trace has to stay to lie in it with all its spans."""
        shifts = [shift for clock in self.clocks.values() for shift in clock.ahead_ns]
        return LATE_NS + max(shifts, default=0) - min(shifts, default=0)


class Digest(NamedTuple):
    """What one slice says."""

    processes: tuple[tuple[dict[str, AttributeValue], int], ...]
    """What wrote it: attributes, and the newest time."""
    trajectories: tuple[Packed, ...]
    spans: tuple[Written, ...]
    """Those of all other traces, by index into ``processes``."""
    tally: Tally
    read: int
    """Spans that became trajectories."""
    first_ns: int
    """When the first span began; `_NEVER` without any."""
    last_ns: int
    columns: Columns
    problems: tuple[str, ...]
    sketches: tuple[Sketch, ...] = ()
    """Of the steps that lie in the slice with all that they trained on."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel packed: a third of the time of a report would go into pickling named tuples otherwise."""
        rest = self._replace(trajectories=(), spans=(), sketches=())
        packed = pack_sketches(self.sketches)
        return _unpack, (
            tuple(rest),
            packing.pack_trajectories(self.trajectories),
            packing.pack_spans(self.spans),
            packed,
        )


def _unpack(rest: Iterable[Any], trajectories: bytes, spans: bytes, sketches: bytes) -> Digest:
    return Digest._make(rest)._replace(
        trajectories=tuple(packing.unpack_trajectories(trajectories)),
        spans=tuple(packing.unpack_spans(spans)),
        sketches=tuple(unpack_sketches(sketches)),
    )


def digest_spans(piece: Slice, context: Context) -> Digest:
    """Read the spans of a slice."""
    writers, problems = Writers(), list[str]()
    by_trace: defaultdict[int, list[Written]] = defaultdict(list)
    firsts: dict[int, int] = {}
    for process, spans in reader.read_spans(piece.extents, writers, problems):
        if spans:
            for span in spans:
                by_trace[span[0]].append((span, process))
            writers.saw(process, max(map(_END, spans)))
            first = min(map(_START, spans))
            firsts[process] = min(firsts.get(process, _NEVER), first)
    instances = [name_instance(values) for values in writers.resources]
    ahead = ahead_of(writers.resources, context.clocks)
    tally, trajectories, rest, read = Tally(context.engine), list[Packed](), list[Written](), 0
    shortcut = Shortcut(instances, ahead, tally)
    steps: list[tuple[int, list[Written]]] = []
    slack = context.slack_ns
    for trace_id, written in by_trace.items():
        name = _find_inside(written, piece, context, slack)
        if name != TRAJECTORY:
            rest += written
            if name == STEP:
                steps.append((trace_id, written))
            continue
        usual = shortcut.take(written)
        if usual is not None:
            trajectories.append(usual)
            read += len(written)
            continue
        trace = traces.assemble(trace_id, written, instances, ahead)
        tally.add(trace)
        trajectories += trajectories_of(trace)
        read += trace.spans
    first, last = _bounds(firsts, writers, ahead)
    processes = tuple(zip(writers.resources, writers.newest, strict=True))
    known = {each.trace_id: each for each in trajectories if not each.validate}
    drawn = (_sketch(traces.assemble(*step, instances, ahead), known, context.doubt) for step in steps)
    sketches = tuple(each for each in drawn if each is not None)
    return Digest(
        processes, tuple(trajectories), tuple(rest), tally, read, first, last, Columns(), tuple(problems), sketches
    )


def _sketch(trace: Trace, known: Mapping[int, Packed], doubt: Doubt) -> Sketch | None:
    """Return what a step says by itself; None where something of it is missing here."""
    if len(trace.roots) != 1:
        return None
    root = trace.roots[0]
    members = {trace_id: known.get(trace_id) for trace_id in find_consumed(root)}
    found = {trace_id: each for trace_id, each in members.items() if each is not None}
    return sketch(root, found, doubt)._replace(spans=trace.spans) if len(found) == len(members) else None


def _bounds(firsts: Mapping[int, int], writers: Writers, ahead: Ahead | None) -> tuple[int, int]:
    """Return when the first span began and the last one ended, on the trainer's clock."""
    begins = [(process, time) for process, time in firsts.items()]
    ends = [(process, writers.newest[process]) for process in firsts]
    if ahead is not None:
        begins, ends = ([(process, time - ahead(process, time)) for process, time in each] for each in (begins, ends))
    return min((time for _, time in begins), default=_NEVER), max((time for _, time in ends), default=0)


def digest_metrics(extents: Sequence[Extent]) -> Digest:
    """Read the scalars of a part of the files."""
    writers, problems, columns = Writers(), list[str](), Columns()
    for process, points in reader.read_points(extents, writers, problems):
        columns.add(points, name_instance(writers.resources[process]))
        writers.saw(process, max((point.time_ns for point in points), default=0))
    processes = tuple(zip(writers.resources, writers.newest, strict=True))
    return Digest(processes, (), (), Tally(), 0, _NEVER, 0, columns, tuple(problems))


def trajectories_of(trace: Trace) -> list[Packed]:
    """Return the trajectory that a trace is, if it is one; parts whose parent is missing count."""
    roots = [root for root in trace.roots if root.span.name == TRAJECTORY and not root.span.parent_id]
    orphans = [root for root in trace.roots if root.span.parent_id]
    return [
        packing.pack(
            build_root(root.span, root.instance),
            list(map(tuple, find_activities(root, orphans))),
            [(*each[:6], *each[7:]) for each in critical_path.of_trajectory(root)],
        )
        for root in roots[:1]
    ]


def name_instance(resource: Mapping[str, AttributeValue]) -> str:
    """Return ``<role>-<number>`` of a process."""
    return str(resource.get(attr.SERVICE_INSTANCE, "")).rpartition("/")[2]


def ahead_of(resources: Iterable[Mapping[str, AttributeValue]], clocks: Mapping[str, Clock]) -> Ahead | None:
    """Return how far the clock of a process is ahead at a time; None where all clocks are right."""
    if not any(any(clock.ahead_ns) for clock in clocks.values()):
        return None
    mine = [clocks.get(str(resource.get(attr.HOST_NAME))) for resource in resources]

    def ahead(process: int, time_ns: int) -> int:
        clock = mine[process]
        return 0 if clock is None else clock.ahead(time_ns)

    return ahead


def _find_inside(written: Sequence[Written], piece: Slice, context: Context, slack: int) -> str:
    """Return the name of the root of a trace that lies in a slice with all its spans; empty if it does not."""
    for root, _ in written:
        if not root.parent_id:
            break
    else:
        return ""
    if root.name not in _KNOWN or root.trace_id in context.open_traces:
        return ""
    begins = piece.begin_ns == BEGINNING or root.start_ns >= piece.begin_ns + slack
    return root.name if begins and (piece.end_ns == END or root.end_ns + slack <= piece.end_ns) else ""
