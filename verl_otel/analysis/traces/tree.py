# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Assembles whole traces from spans that come from many files.

A trace is whole when its root has been read and no more spans of it can follow: every process writes spans within a second,
`LATE_NS` allows for more where nothing shows that it has. Traces that never get a root, because a process was killed or a file is missing, are released at the
end, or earlier when they hold too many spans.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from verl_otel.model import SpanRecord
from verl_otel.semconv.spans import CLIENT

LATE_NS: Final = 5_000_000_000
"""How much later than a span ended it may be written, or lie in the files."""
MAX_UNFINISHED: Final = 500_000
"""Maximum number of spans of incomplete traces, about a gigabyte. The oldest traces are released first."""


@dataclass(slots=True)
class Node:
    """One span in its trace; times are on the trainer's clock. With a tuple a reader is 3 % slower."""

    span: SpanRecord
    instance: str
    """``<role>-<number>`` of the process that wrote it."""
    process: int
    """Index of the process."""
    children: list[Node]
    """Sorted by start; filled while the trace is assembled."""


class Trace(NamedTuple):
    """All spans of one trace."""

    trace_id: int
    roots: tuple[Node, ...]
    """Sorted by start; more than one if parents are missing: orphans become roots."""
    spans: int
    calls: tuple[Node, ...] = ()
    """Those of kind client."""

    @property
    def orphans(self) -> int:
        """Number of spans whose parent is in no file."""
        return sum(1 for root in self.roots if root.span.parent_id)


Written = tuple[SpanRecord, int]
"""A span and the index of the process that wrote it."""
Ahead = Callable[[int, int], int]
"""Offset of the clock of a process (by its index) from the trainer's at a time, in nanoseconds."""
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


def walk(node: Node) -> Iterator[Node]:
    """Return a node and its descendants, parents before their children."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(current.children)


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
