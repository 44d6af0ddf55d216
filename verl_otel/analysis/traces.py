# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whole traces out of spans that come from many files.

A trace is whole when its root has come and nothing of it can come any more: every process writes what ended within a second,
`LATE_NS` allows for more. What never gets a root, because a process was killed or a file is missing, is given up at the end, or
earlier when too much of it has gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from verl_otel.model import SpanRecord

LATE_NS: Final = 5_000_000_000
"""How much later than a span ended it may be written, or lie in the files."""
MAX_UNFINISHED: Final = 500_000
"""Spans of traces without a root that are kept, about a gigabyte. The oldest traces are given up first."""


class Node(NamedTuple):
    """One span in its trace, its times already on the trainer's clock."""

    span: SpanRecord
    instance: str
    """``<role>-<number>`` of the process that wrote it."""
    process: int
    """Index of the process."""
    children: list[Node]
    """Sorted by start; filled while the trace is assembled."""


class Trace(NamedTuple):
    """All that is known of one trace."""

    trace_id: int
    roots: tuple[Node, ...]
    """Sorted by start; more than one if parents are missing: orphans become roots."""
    spans: int

    @property
    def orphans(self) -> int:
        """Spans whose parent is in no file."""
        return sum(1 for root in self.roots if root.span.parent_id)


Written = tuple[SpanRecord, int]
"""A span and the number of the process that wrote it."""
Ahead = Callable[[int, int], int]
"""By how many nanoseconds the clock of a process, told by its number, is ahead of the trainer's at a time."""
_start: Final = attrgetter("span.start_ns", "span.span_id")


def assemble(
    trace_id: int,
    written: Sequence[Written],
    instances: Sequence[str],
    offset_of: Callable[[int, int], int] | None = None,
) -> Trace:
    """Return the tree of one trace. A span that was written twice counts once; one that ends before it begins has no length.

    Args:
        trace_id: Its id.
        written: Its spans, in any order.
        instances: Name of each process.
        offset_of: By how many nanoseconds the clock of a process is ahead of the trainer's at a time; None: of none.
    """
    nodes: dict[int, Node] = {}
    for span, process in written:
        kept = span if offset_of is None else _shift(span, offset_of(process, span.start_ns))
        if kept.end_ns < kept.start_ns:
            kept = kept._replace(end_ns=kept.start_ns)
        nodes.setdefault(kept.span_id, Node(kept, instances[process], process, []))
    roots = []
    for node in nodes.values():
        parent = nodes.get(node.span.parent_id)
        if parent is None or parent is node:
            roots.append(node)
        else:
            parent.children.append(node)
    for node in nodes.values():
        if len(node.children) > 1:
            node.children.sort(key=_start)
    if len(roots) != 1:
        roots = _reachable(roots, nodes)
    return Trace(trace_id, tuple(roots), len(nodes))


def _shift(span: SpanRecord, ahead: int) -> SpanRecord:
    return span._replace(start_ns=span.start_ns - ahead, end_ns=span.end_ns - ahead) if ahead else span


def _reachable(roots: list[Node], nodes: dict[int, Node]) -> list[Node]:
    """Return the roots and, where damaged ids made circles, one span of each circle, which is cut open there."""
    seen: set[int] = set()

    def follow(node: Node) -> None:
        waiting = [node]
        while waiting:
            each = waiting.pop()
            seen.add(each.span.span_id)
            each.children[:] = [child for child in each.children if child.span.span_id not in seen]
            waiting += each.children

    for root in roots:
        follow(root)
    for node in nodes.values():
        if node.span.span_id not in seen:
            roots.append(node)
            follow(node)
    return sorted(roots, key=_start)


def walk(node: Node) -> Iterator[Node]:
    """Return a node and all below it, parents before their children."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += reversed(each.children)


class Unfinished:
    """Spans of traces that are not whole yet, bounded."""

    def __init__(self, limit: int = MAX_UNFINISHED) -> None:
        self._limit = limit
        self._spans: dict[int, list[Written]] = {}
        self._root_ends: dict[int, int] = {}
        self._count = 0
        self.given_up = 0
        """Traces that had to be given up to stay within the bound."""

    def add(self, span: SpanRecord, process: int) -> None:
        """Take a span."""
        self._spans.setdefault(span.trace_id, []).append((span, process))
        self._count += 1
        if not span.parent_id:
            self._root_ends[span.trace_id] = max(span.end_ns, self._root_ends.get(span.trace_id, 0))

    def take_whole(self, watermark_ns: int) -> Iterator[tuple[int, list[Written]]]:
        """Return the traces whose root had ended well before ``watermark_ns``, and the oldest ones that do not fit."""
        whole = sorted((end, trace_id) for trace_id, end in self._root_ends.items() if end + LATE_NS <= watermark_ns)
        for _, trace_id in whole:
            yield trace_id, self._take(trace_id)
        while self._count > self._limit:
            trace_id = next(iter(self._spans))
            self.given_up += 1
            yield trace_id, self._take(trace_id)

    def take_rest(self) -> Iterator[tuple[int, list[Written]]]:
        """Return everything that is left, in the order in which the roots ended; what has none comes last."""
        for trace_id in sorted(self._spans, key=lambda trace_id: self._root_ends.get(trace_id, 1 << 64)):
            yield trace_id, self._take(trace_id)

    def _take(self, trace_id: int) -> list[Written]:
        self._root_ends.pop(trace_id, None)
        spans = self._spans.pop(trace_id)
        self._count -= len(spans)
        return spans
