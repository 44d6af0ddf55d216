# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The spans of a trace as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from verl_otel.model import SpanRecord

LATE_NS: Final = 5_000_000_000
"""How much later than a span ended it may be written, or lie in the files."""


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


def walk(node: Node) -> Iterator[Node]:
    """Return a node and its descendants, parents before their children."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(current.children)
