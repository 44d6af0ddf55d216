# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The critical path between two steps: logging, validation, checkpoint, data loading, and the trainer's own code around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from verl_otel.analysis.traces.span_names import BETWEEN, STEP, VALIDATION
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import SpanRecord

_SPAN_ID: Final = 1
"""Id of the span that stands for the time between two steps; those of real spans are random numbers of 64 bits."""


def make_root(step: Node, roots: Iterable[Node], begin_ns: int, end_ns: int) -> Node:
    """Return a tree of what the trainer did between two steps.

    Args:
        step: Root span of the step before.
        roots: Roots of all traces that overlap this time.
        begin_ns: End of that step.
        end_ns: Start of the next step.
    """
    span = SpanRecord(step.span.trace_id, _SPAN_ID, 0, BETWEEN, 1, begin_ns, end_ns, {}, (), (), 0, "", 1, "")
    children = sorted(_find_inside(roots, step.process, begin_ns, end_ns), key=lambda node: node.span.start_ns)
    return Node(span, step.instance, step.process, children)


def _find_inside(roots: Iterable[Node], process: int, begin_ns: int, end_ns: int) -> Iterator[Node]:
    """Yield the outermost spans of a process that lie between two times; spans around a whole training are entered.

    A validation that another process makes is one of them: the trainer of fully asynchronous training waits for that of the rollouter.
    """
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        span = node.span
        if span.name == STEP or span.end_ns <= begin_ns or span.start_ns >= end_ns:
            continue
        if node.process != process and span.name != VALIDATION:
            continue
        if begin_ns <= span.start_ns and span.end_ns <= end_ns:
            yield node
        else:
            waiting += node.children
