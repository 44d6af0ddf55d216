# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the traces of a run piece by piece, and returns each when it is whole, as a tree, with the times of the trainer's clock.

A trace is whole when its root has been read and no more spans of it can follow: every process writes spans within a second,
`tree.LATE_NS` allows for more where nothing shows that it has. Traces that never get a root, because a process was killed or a file is missing, are
released at the end, or earlier when they hold too many spans.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from verl_otel._internal import rotated_files
from verl_otel.analysis.io import otlp_json, run_files
from verl_otel.analysis.io.followed_files import ORDER_NS, FollowedFiles, Piece
from verl_otel.analysis.io.run_files import Extent, Writers, name_host, name_instance
from verl_otel.analysis.model import OpenSpan
from verl_otel.analysis.traces.clocks import Bounds, Context, ahead_of
from verl_otel.analysis.traces.tree import Ahead, Node, Trace, Written
from verl_otel.analysis.windows import find_restarts
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.run_state import DRAIN_INTERVAL
from verl_otel.semconv.spans import CLIENT

AHEAD_BYTES: Final = 16 << 20
"""Bytes of a run on several hosts that are searched for bounds on clock offsets before it is read, beside a chunk of each file."""
_START: Final = itemgetter(SpanRecord._fields.index("start_ns"))
_ID: Final = itemgetter(SpanRecord._fields.index("span_id"))
_END: Final = itemgetter(SpanRecord._fields.index("end_ns"))


# -- Traces of which spans are missing --

MAX_UNFINISHED: Final = 500_000
"""Maximum number of spans of incomplete traces, about a gigabyte. The oldest traces are released first."""


@dataclass
class IncompleteTraces:
    """The spans of incomplete traces, in bounded memory."""

    _limit: int = MAX_UNFINISHED
    _spans: dict[int, list[Written]] = field(default_factory=dict)
    _root_ends: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    discarded: int = 0
    """Number of traces that were released early to stay within the limit."""

    def add(self, spans: Sequence[SpanRecord], process: int, offset_of: Ahead | None = None) -> None:
        """Add spans of a process; ``offset_of`` as of `assemble`."""
        waiting = self._spans
        for span in spans:
            trace_id = span.trace_id
            if trace_id in waiting:
                waiting[trace_id].append((span, process))
            else:
                waiting[trace_id] = [(span, process)]
            if not span.parent_id:
                self.end(trace_id, span.end_ns - (offset_of(process, span.end_ns) if offset_of else 0))
        self._count += len(spans)

    def end(self, trace_id: int, time_ns: int) -> None:
        """Note that no span of a trace follows that ends after a time, although its root has not ended."""
        self._spans.setdefault(trace_id, [])
        self._root_ends[trace_id] = max(time_ns, self._root_ends.get(trace_id, 0))

    def take_whole(
        self, known_ns: int, written_ns: int = 0, awaited: Container[int] = ()
    ) -> Iterator[tuple[int, list[Written]]]:
        """Return the traces that are whole in the order of their ends, and the oldest ones beyond the limit.

        Args:
            known_ns: What ended up to this time is known, however late it was written.
            written_ns: What ended up to this time was written by every process that is not late.
            awaited: Traces with a span that a process has not ended yet. They, and what ended after them, wait until ``known_ns``.
        """
        ends = self._root_ends
        written_ns = min([written_ns, *(end - 1 for trace_id, end in ends.items() if trace_id in awaited)])
        limit_ns = max(known_ns, written_ns)
        whole = sorted((end, trace_id) for trace_id, end in ends.items() if end <= limit_ns)
        for _, trace_id in whole:
            yield trace_id, self._take(trace_id)
        while self._count > self._limit:
            trace_id = next(iter(self._spans))
            self.discarded += 1
            yield trace_id, self._take(trace_id)

    def take_rest(self) -> Iterator[tuple[int, list[Written]]]:
        """Return all remaining traces in the order of the ends of their roots; traces without a root come last."""
        for trace_id in sorted(self._spans, key=lambda trace_id: self._root_ends.get(trace_id, 1 << 64)):
            yield trace_id, self._take(trace_id)

    def _take(self, trace_id: int) -> list[Written]:
        self._root_ends.pop(trace_id, None)
        spans = self._spans.pop(trace_id)
        self._count -= len(spans)
        return spans


# -- Traces as they become whole --


class WholeTraces(msgspec.Struct, dict=True):
    """The traces of one run. Its fields are what is saved."""

    files: FollowedFiles
    manifest: dict[str, Any]
    """The run's manifest (``run.json``)."""
    context: Context = Context()
    writers: Writers = msgspec.field(default_factory=Writers)
    problems: list[str] = []
    """What could not be read of the run."""
    end_ns: int = 0
    """End of what was read."""
    count: int = 0
    """Spans that have ended, of the traces that were returned."""
    opened: list[OpenSpan] = []
    """Spans that never ended."""
    _bounds: Bounds = msgspec.field(default_factory=Bounds)
    """What whole traces tell of the clocks of several hosts."""
    _sampled: bool = False
    """Whether the beginning was searched for bounds."""
    _unfinished: IncompleteTraces = msgspec.field(default_factory=IncompleteTraces)
    _open_spans: dict[int, list[OpenSpan]] = {}
    """Spans that will never end and whose traces are not complete, by trace."""
    _awaited: dict[int, int] = {}
    """The trace of each span that the processes last wrote as open, by its id."""
    _ended: frozenset[int] = frozenset()
    """Those of them that have ended since."""
    _given_up: set[int] = msgspec.field(default_factory=set)
    """Those of attempts that are over."""

    def __post_init__(self) -> None:
        """Begin before the first piece."""
        self.restarts = find_restarts(self.manifest)
        self.first_ns = 0
        """First start of the spans that were read last; 0: there were none."""
        self.known_ns = 0
        """What ended up to this time is in the traces that were returned."""

    # -- the files --

    def look(self) -> None:
        """Look for new files and new lines; register processes from the first and the last line of each new file.

        Resources are complete in the last line.
        """
        by_file: dict[Path, list[Path]] = {}
        for path in self.files.look():
            by_file.setdefault(path.parent / rotated_files.whole_name(path), []).append(path)
        for parts in by_file.values():
            ends = [*run_files.find_ends(parts[0])[:1], *run_files.find_ends(parts[-1])[-1:]]
            for process, spans in run_files.read_spans(ends, self.writers, []):
                self.writers.note_alive(process, max((span.end_ns for span in spans), default=0))

    def look_for_open(self, problems: list[str]) -> None:
        """Look for the spans that have not ended; ``problems`` receives what cannot be read of them.

        Those of an attempt that is over end with it. Of the others what is read next may contain that they have ended.
        """
        opened = self.read_open(problems)
        self._awaited = {open_span.span.span_id: open_span.span.trace_id for open_span in opened}
        for open_span in opened:
            span = open_span.span
            if self._is_over(open_span) and span.span_id not in self._given_up:
                self._given_up.add(span.span_id)
                self._open_spans.setdefault(span.trace_id, []).append(open_span)
                self._unfinished.end(span.trace_id, self._find_end(open_span))

    def read_open(self, problems: list[str]) -> list[OpenSpan]:
        """Return the spans that had not ended when they were last written."""
        return run_files.read_open(self.files.folders, self.writers, problems)

    # -- traces --

    def read(self, budget: int | None) -> Iterator[Trace]:
        """Read new lines of about this many bytes; yield the traces that are whole now, in the order of their ends.

        Args:
            budget: None: what follows the last whole line of each file, when no more lines come.
        """
        self._look_ahead()
        piece = self.files.take_rest() if budget is None else self.files.take(budget)
        times = self._add_spans(piece)
        self.known_ns = piece.watermark_ns - self.context.slack_ns
        late = {trace_id for span_id, trace_id in self._awaited.items() if span_id not in self._ended}
        yield from self._assemble(self._unfinished.take_whole(self.known_ns, self._find_written(piece), late))
        self.files.note(times)
        self._estimate_clocks()

    def take_rest(self) -> Iterator[Trace]:
        """Return all other traces, with spans that have not ended: no more lines follow."""
        self.first_ns = 0
        for open_span in self.read_open([]):
            if open_span.span.span_id not in self._ended | self._given_up:
                self._open_spans.setdefault(open_span.span.trace_id, []).append(open_span)
        unended = [open_span for open_spans in self._open_spans.values() for open_span in open_spans]
        if not self.end_ns:  # no span has ended yet: the run starts with its open spans
            starts = [self.set_clock(open_span.process, open_span.span.start_ns) for open_span in unended]
            self.first_ns = min(starts, default=0)
        written = [self.set_clock(open_span.process, open_span.written_ns) for open_span in unended]
        self.end_ns = max([self.end_ns, *written])
        yield from self._assemble(self._unfinished.take_rest())
        yield from self._assemble((trace_id, []) for trace_id in list(self._open_spans))
        if self._unfinished.discarded:
            self.problems.append(
                f"{self._unfinished.discarded} traces without an end were given up: too many are open at once"
            )

    def _add_spans(self, piece: Piece) -> dict[Extent, tuple[int, int]]:
        """Take the spans of a piece; return first start and last end of each part of a file, on the clock of its host."""
        times: dict[Extent, tuple[int, int]] = {}
        groups = list(
            run_files.read_placed(otlp_json.read_spans, piece.extents, self.writers, self.problems)
        )  # a writer that is not known has no clock
        ahead = self._ahead()
        firsts: dict[int, int] = {}
        lasts: dict[int, int] = {}
        ended: set[int] = set()
        awaited = frozenset(self._awaited)
        for extent, process, spans in groups:
            if spans:
                self._unfinished.add(spans, process, ahead)
                first, last = min(map(_START, spans)), max(map(_END, spans))
                firsts[process] = min(firsts.get(process, first), first)
                lasts[process] = max(lasts.get(process, last), last)
                known = times.get(extent, (first, last))
                times[extent] = min(known[0], first), max(known[1], last)
                self.writers.note_alive(process, last)
                if awaited:
                    ended.update(awaited.intersection(map(_ID, spans)))
        self._ended = (self._ended & awaited) | ended
        self.first_ns = min(_set_clocks(firsts, ahead), default=0)
        self.end_ns = max([self.end_ns, *_set_clocks(lasts, ahead)])
        return times

    def _find_written(self, piece: Piece) -> int:
        """Return until when every process has written what had ended; 0 while that is unknown.

        It is found from what each host has written since: a process in which nothing ends writes nothing, so the newest
        record of any process of its host counts.
        """
        if not piece.is_last or self.manifest.get(DRAIN_INTERVAL):
            return 0
        latest: dict[str, int] = {}
        begin_ns = max(self.restarts, default=0)
        for values, _, newest_ns in self.list_processes():
            if newest_ns >= begin_ns:
                host = name_host(values)
                latest[host] = max(latest.get(host, 0), newest_ns)
        written_ns = min(latest.values(), default=0) - ORDER_NS
        return max(written_ns, piece.watermark_ns) if len(latest) == 1 else written_ns

    def _assemble(self, traces: Iterable[tuple[int, list[Written]]]) -> Iterator[Trace]:
        """Return traces as trees; open spans are part of them, and note what the traces tell of clocks."""
        instances = [name_instance(values) for values in self.writers.resources]
        hosts = list(map(name_host, self.writers.resources))
        is_spread = len(set(hosts)) > 1
        ahead = self._ahead()
        for trace_id, written in traces:
            if is_spread:
                self._bounds.add_trace(written, hosts)
            known = self._with_open(trace_id, written) if trace_id in self._open_spans else written
            trace = assemble(trace_id, known, instances, ahead)
            self.count += trace.spans - (len(known) - len(written))
            yield trace

    def _with_open(self, trace_id: int, written: list[Written]) -> list[Written]:
        """Return the spans of a trace with its open spans, which end now, or when a killed attempt wrote them."""
        opened = self._open_spans.pop(trace_id)
        ended = {span.span_id for span, _ in written}
        unended = [open_span for open_span in opened if open_span.span.span_id not in ended]
        self.opened += unended
        return [
            *written,
            *((open_span.span._replace(end_ns=self._find_end(open_span)), open_span.process) for open_span in unended),
        ]

    def _is_over(self, open_span: OpenSpan) -> bool:
        return any(open_span.written_ns < restart for restart in self.restarts)

    def _find_end(self, open_span: OpenSpan) -> int:
        return self.set_clock(open_span.process, open_span.written_ns) if self._is_over(open_span) else self.end_ns

    # -- clocks --

    def set_clock(self, process: int, time_ns: int) -> int:
        """Convert a process's timestamp to the trainer's clock."""
        (converted,) = _set_clocks({process: time_ns}, self._ahead())
        return converted

    def list_processes(self) -> Iterator[tuple[dict[str, AttributeValue], int, int]]:
        """Yield the attributes of each process, and the times of its first and its last record, 0: unknown."""
        ahead = self._ahead()
        for index, (values, *times) in enumerate(self.writers.processes()):
            oldest_ns, newest_ns = (
                time_ns - ahead(index, time_ns) if ahead and time_ns else time_ns for time_ns in times
            )
            yield values, oldest_ns, newest_ns

    def _ahead(self) -> Ahead | None:
        return ahead_of(self.writers.resources, self.context.clocks)

    def _look_ahead(self) -> None:
        """Search the beginning of a run on several hosts for bounds on the offsets of clocks."""
        if self._sampled or not self.files.is_behind:
            return
        self._sampled = True
        if len(self._list_hosts()) > 1:
            ahead = FollowedFiles(self.files.folders, "traces")
            ahead.look()
            writers = Writers()
            extents = ahead.take(AHEAD_BYTES + ahead.round_bytes).extents
            self._bounds.add(
                (span, name_host(writers.resources[process]))
                for process, spans in run_files.read_spans(extents, writers, [])
                for span in spans
            )
            self._estimate_clocks()

    def _list_hosts(self) -> set[str]:
        return set(map(name_host, self.writers.resources))

    def _estimate_clocks(self) -> None:
        """Estimate the clock of each host again, if there are new bounds or hosts."""
        hosts, resources = self._list_hosts(), self.writers.resources
        is_spread = len(hosts) > 1
        if not is_spread or (not self._bounds.are_new and hosts <= self.context.clocks.keys()):
            return
        trainers = [values for values in resources if values.get(attr.ROLE) == "trainer"]
        reference = name_host((trainers or resources)[0])
        self.context = Context(
            self._bounds.estimate(reference, hosts),
            {name_instance(values): str(values.get(attr.HOST_NAME)) for values in resources},
        )


def _set_clocks(times_ns: Mapping[int, int], ahead: Ahead | None) -> Sequence[int]:
    """Return a time of each process on the trainer's clock."""
    return [time_ns - ahead(process, time_ns) if ahead else time_ns for process, time_ns in times_ns.items()]


# -- The tree of one trace --

_start: Final = attrgetter("span.start_ns", "span.span_id")


def assemble(
    trace_id: int,
    written: Sequence[Written],
    instances: Sequence[str],
    offset_of: Callable[[int, int], int] | None = None,
) -> Trace:
    """Return the tree of one trace. Repeated spans count once; spans that end before they start have no length.

    Args:
        trace_id: Its id.
        written: Its spans, in any order.
        instances: Name of each process.
        offset_of: Offset of the clock of a process from the trainer's at a time, in nanoseconds; None: no offsets.
    """
    nodes: dict[int, Node] = {}
    for span, process in written:
        kept = span if offset_of is None else _shift(span, offset_of(process, span.start_ns))
        if kept.end_ns < kept.start_ns:
            kept = kept._replace(end_ns=kept.start_ns)
        nodes.setdefault(kept.span_id, Node(kept, instances[process], process, []))
    roots: list[Node] = []
    calls: list[Node] = []
    for node in nodes.values():
        span = node.span
        if span.kind == CLIENT:
            calls.append(node)
        parent = nodes.get(span.parent_id)
        if parent is None or parent is node:
            roots.append(node)
        else:
            parent.children.append(node)
    for node in nodes.values():
        if len(node.children) > 1:
            node.children.sort(key=_start)
    if len(roots) != 1:
        roots = _reachable(roots, nodes)
    return Trace(trace_id, tuple(roots), len(nodes), tuple(calls))


def _shift(span: SpanRecord, ahead: int) -> SpanRecord:
    return span._replace(start_ns=span.start_ns - ahead, end_ns=span.end_ns - ahead) if ahead else span


def _reachable(roots: list[Node], nodes: dict[int, Node]) -> list[Node]:
    """Return the roots and, where damaged ids form cycles, one span of each cycle, which is cut there."""
    seen: set[int] = set()

    def follow(node: Node) -> None:
        waiting = [node]
        while waiting:
            current = waiting.pop()
            seen.add(current.span.span_id)
            current.children[:] = [child for child in current.children if child.span.span_id not in seen]
            waiting += current.children

    for root in roots:
        follow(root)
    for node in nodes.values():
        if node.span.span_id not in seen:
            roots.append(node)
            follow(node)
    return sorted(roots, key=_start)
