# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans in any order become trees; what is not whole waits, within bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.analysis.traces.tree import walk
from verl_otel.analysis.traces.whole_traces import IncompleteTraces, assemble
from verl_otel.model import SpanRecord


def span(number, parent=0, begin=0, end=10, trace=1):
    """A span of which only ids and times matter."""
    return SpanRecord(trace, number, parent, f"s{number}", 1, begin, end, {}, (), (), 0, "", 1, "")


PARENTS = st.lists(st.integers(0, 12), min_size=1, max_size=12)


@pytest.mark.full
@given(PARENTS, st.integers())
def test_every_span_is_in_the_tree_once(parents, seed):
    """Whatever the parents, circles and missing ones among them, each span is found once, below its parent where that is possible."""
    spans = [span(number, parent, number * 7 % 5) for number, parent in enumerate(parents, 1)]
    written = [(each, each.span_id % 2) for each in spans]
    random.Random(seed).shuffle(written)
    trace = assemble(1, written, ["a-0", "b-0"])
    nodes = [node for root in trace.roots for node in walk(root)]
    if len(trace.roots) != 1:  # beside a single root a circle can be, which nothing leads to
        assert sorted(node.span.span_id for node in nodes) == [each.span_id for each in spans]
    assert trace.spans == len(spans)
    for node in nodes:
        assert node.instance == ("a-0", "b-0")[node.process]
        assert all(child.span.parent_id == node.span.span_id for child in node.children)
        starts = [child.span.start_ns for child in node.children]
        assert starts == sorted(starts)


def test_orphans_become_roots_and_are_counted():
    """A span whose parent is missing, or is itself by a damaged id, stands beside the root, with all below it."""
    trace = assemble(1, [(span(3, 2), 0), (span(1), 0), (span(2, 9, 5), 0), (span(4, 4, 6), 0)], ["a-0"])
    assert [root.span.span_id for root in trace.roots] == [1, 2, 4]
    assert [[child.span.span_id for child in root.children] for root in trace.roots] == [[], [3], []]
    assert trace.orphans == 2


def test_a_span_that_was_written_twice_counts_once():
    """A line that stands in two files does not double anything."""
    trace = assemble(1, [(span(1), 0), (span(2, 1), 0), (span(2, 1), 0)], ["a-0"])
    assert (trace.spans, len(trace.roots[0].children)) == (2, 1)


def test_times_are_brought_to_one_clock():
    """Spans of a process whose clock is ahead are moved back, by what that is at their begin; order follows."""
    trace = assemble(
        1,
        [(span(1, begin=100, end=200), 0), (span(2, 1, 150, 160), 1), (span(3, 1, 140, 150), 0)],
        ["a-0", "b-0"],
        lambda process, time: 30 + time // 150 if process else 0,
    )
    (root,) = trace.roots
    assert [(child.span.span_id, child.span.start_ns, child.span.end_ns) for child in root.children] == [
        (2, 119, 129),
        (3, 140, 150),
    ]


def test_a_span_that_ends_before_it_begins_has_no_length():
    """Contradictory times are not handed on."""
    trace = assemble(1, [(span(1, begin=50, end=3), 0)], ["a-0"])
    assert (trace.roots[0].span.start_ns, trace.roots[0].span.end_ns) == (50, 50)


def test_parents_come_before_their_children():
    """A walk through a tree is in the order in which a reader of it would go."""
    trace = assemble(1, [(span(1), 0), (span(2, 1, 1), 0), (span(3, 2, 2), 0), (span(4, 1, 3), 0)], ["a-0"])
    assert [node.span.span_id for node in walk(trace.roots[0])] == [1, 2, 3, 4]


def test_a_very_deep_tree_is_no_problem():
    """Users may nest their spans as deep as they like."""
    deep = [(span(number, number - 1, number), 0) for number in range(1, 5000)]
    trace = assemble(1, deep, ["a-0"])
    assert sum(1 for _ in walk(trace.roots[0])) == 4999


def test_a_trace_waits_for_its_root_and_for_latecomers():
    """A trace is taken when its root has ended long enough ago; one without root is kept to the end."""
    waiting = IncompleteTraces()
    waiting.add([span(2, 1, trace=7, end=5)], 3)
    waiting.add([span(1, trace=7, end=10)], 4)
    waiting.add([span(2, 1, trace=8)], 3)
    assert list(waiting.take_whole(9)) == []
    ((trace_id, written),) = waiting.take_whole(10)
    assert (trace_id, [(each.span_id, process) for each, process in written]) == (7, [(2, 3), (1, 4)])
    assert [trace_id for trace_id, _ in waiting.take_rest()] == [8]
    assert list(waiting.take_rest()) == []


def test_whole_traces_are_taken_in_the_order_of_their_ends():
    """What ended first comes first, whenever it was read."""
    waiting = IncompleteTraces()
    for trace, end in ((1, 30), (2, 10), (3, 20)):
        waiting.add([span(1, trace=trace, end=end)], 0)
    assert [trace_id for trace_id, _ in waiting.take_whole(100)] == [2, 3, 1]


def test_of_too_much_the_oldest_is_given_up():
    """Traces without an end do not fill the memory: the oldest are let go, counted."""
    waiting = IncompleteTraces(10)
    for trace in range(1, 9):
        for number in (2, 3):
            waiting.add([span(number, 1, trace=trace)], 0)
    assert [trace_id for trace_id, _ in waiting.take_whole(0)] == [1, 2, 3]
    assert waiting.discarded == 3
    assert [trace_id for trace_id, _ in waiting.take_rest()] == [4, 5, 6, 7, 8]
