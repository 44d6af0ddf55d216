# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Critical paths: every nanosecond once, on what everything else waited for, as a search tick by tick finds it, too."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import forests as f
from verl_otel.analysis.traces import critical_path
from verl_otel.analysis.verdicts.what_if import TOLERANCE_NS

LAW = settings(max_examples=200, deadline=None)


def said(path):
    """A path as (kind, name, start, end)."""
    return [(each.kind, each.name, each.start_ns, each.end_ns) for each in path]


def assert_gapless(path, begin, end):
    """The segments follow each other from begin to end."""
    bounds = [begin, *(each.end_ns for each in path)]
    assert [each.start_ns for each in path] == bounds[:-1]
    assert bounds[-1] == max(begin, end)
    assert all(each.end_ns > each.start_ns for each in path)


# -- laws --


@pytest.mark.full
@LAW
@given(f.forests(), st.integers(-5, 30), st.integers(0, 30))
def test_a_path_covers_any_time_exactly_once(seed, begin, length):
    """Whatever the spans say, the path through them goes from begin to end without a gap or an overlap."""
    assert_gapless(critical_path.walk(f.plant(seed), begin, begin + length), begin, begin + length)


def find_end(node):
    """When a call that returned at once was really through, said once more and simply."""
    ends = [max(node.span.start_ns, node.span.end_ns)]
    if is_open(node):
        ends += [find_end(each) for each in node.children if find_length(each, node.span.start_ns) > 0]
    return max(ends)


def find_length(node, begin):
    return find_end(node) - max(node.span.start_ns, begin)


def is_open(node):
    return node.span.name.startswith("verl.call") and not node.span.attributes["verl.call.blocking"]


def search(node, begin, end, owners):
    """Go back tick by tick: a tick belongs to the child that ended with it, or else to the span itself."""
    phases = [
        each for each in node.children if each.span.name.startswith("verl.phase.") and each.process == node.process
    ]
    tick = end
    while tick > begin:
        fitting = []
        for child in node.children:
            child_end = find_end(child)
            if child in phases:
                later = [each.span.start_ns for each in phases if each.span.start_ns > child.span.start_ns]
                child_end = min([child_end, *later])
            outlives = child_end > find_end(node) and child.process == node.process and not is_open(child)
            start = max(child.span.start_ns, begin)
            if min(child_end, end) == tick and start < tick and not outlives:
                fitting.append((start, -node.children.index(child), child))  # of twins, one of the two
        if fitting:
            start, _, child = min(fitting, key=lambda each: each[:2])
            search(child, start, tick, owners)
            tick = start
        else:
            tick -= 1
            owners[tick] = node.span.span_id


OWNERS = ("load", "verl.call m", "verl.worker W.m", "verl.weight_sync", "verl.phase.p")
"""Spans whose time is their own."""


@pytest.mark.full
@LAW
@given(f.forests(OWNERS))
def test_a_search_tick_by_tick_finds_the_same(seed):
    """The walk over ends finds for every tick the span that a search over all ticks finds."""
    root = f.plant(seed)
    owners = {}
    search(root, 0, 24, owners)
    path = critical_path.walk(root, 0, 24)
    found = {tick: each.span_id for each in path for tick in range(each.start_ns, each.end_ns)}
    assert found == owners


@pytest.mark.full
@LAW
@given(f.forests(), st.integers(-(10**18), 10**18), st.permutations((0, 1, 2)))
def test_names_of_processes_and_the_time_of_day_do_not_matter(seed, shift, rename):
    """The path is the same, shifted, when all clocks are, and when processes are called otherwise."""
    usual = critical_path.walk(f.plant(seed), 0, 24)
    other = critical_path.walk(f.plant(seed, shift=shift, rename=rename), shift, 24 + shift)
    assert [(k, n, a + shift, b + shift) for k, n, a, b in said(usual)] == said(other)


def mark(node, on_path):
    """Ids of the spans that are on the path or have something below them that is."""
    below = [mark(child, on_path) for child in node.children]
    here = {node.span.span_id} if node.span.span_id in on_path or any(below) else set()
    return here.union(*below)


@pytest.mark.full
@LAW
@given(f.forests([name for name in OWNERS if "phase" not in name]), st.data())
def test_what_is_not_on_the_path_can_be_taken_away(seed, data):
    """Without a span that nobody waited for, below one that somebody did, the path is what it was.

    Unless an open call lasts until that span, and both are beyond what waited for the call.
    """
    root = f.plant(seed)
    before = critical_path.walk(root, 0, 24)
    marked = mark(root, {each.span_id for each in before})
    idle = [
        (parent, child)
        for parent in f.walk(root)
        if parent.span.span_id in marked
        for child in parent.children
        if child.span.span_id not in marked and not (is_open(parent) and find_end(child) == find_end(parent))
    ]
    if idle:
        parent, child = data.draw(st.sampled_from(idle))
        parent.children.remove(child)
        assert critical_path.walk(root, 0, 24) == before


def test_deep_trees_are_walked():
    """Spans nest deeper than Python nests calls."""
    node = f.span("s0", 0, 20_000)
    for depth in range(1, 5000):
        node = f.span(f"s{depth}", 0, 20_000 + depth, node)
    path = critical_path.walk(node, 0, 30_000)
    assert_gapless(path, 0, 30_000)
    assert len(path) == 5001


def test_a_sum_is_what_the_segments_were():
    """A path summed up holds every nanosecond, the longest first."""
    root = f.step(0, 10, f.phase("adv", 1, 3), f.phase("ref", 3, 9), f.phase("adv", 9, 10))
    assert critical_path.group(critical_path.walk(root, 0, 10)) == (
        ("phase", "ref", 6),
        ("phase", "adv", 3),
        ("step", "", 1),
    )


# -- corners --


def test_calls_that_return_at_once_last_as_long_as_their_workers():
    """Two calls go out together and are awaited together: the worker that ended last was waited for, transport is the call's."""
    fast = f.call("update_weights", 1, 2, f.worker("update_weights", 4, 6), blocking=False)
    slow = f.call("update_weights", 2, 3, f.worker("update_weights", 5, 9, at=3), blocking=False)
    root = f.span("verl.weight_sync", 0, 10, fast, slow)
    found = [(each.kind, each.instance, each.start_ns, each.end_ns) for each in critical_path.walk(root, 0, 10)]
    assert found == [
        ("weight_sync", "trainer-0", 0, 2),
        ("call", "trainer-0", 2, 5),
        ("worker", "llm_server-0", 5, 9),
        ("weight_sync", "trainer-0", 9, 10),
    ]


def test_a_call_that_nobody_awaited_held_nobody():
    """A call is left running for longer than clocks may differ: its phase did not wait for it."""
    late = 10 + 2 * TOLERANCE_NS
    root = f.phase("p", 0, 10, f.call("m", 1, 2, f.worker("m", 2, late), blocking=False))
    assert said(critical_path.walk(root, 0, 10)) == [("phase", "p", 0, 10)]


def test_clocks_of_other_hosts_may_be_ahead_or_behind():
    """A worker that seems to begin before its call or to end after it is clipped to it."""
    early = f.call("a", 0, 5, f.worker("a", -4, 3))
    late = f.call("b", 5, 10, f.worker("b", 7, 14))
    assert said(critical_path.walk(f.step(0, 10, early, late), 0, 10)) == [
        ("worker", "a", 0, 3),
        ("call", "a", 3, 5),
        ("call", "b", 5, 7),
        ("worker", "b", 7, 10),
    ]


def test_what_outlives_its_parent_on_one_clock_was_not_awaited():
    """A task in the background of the same process goes on after its parent: it held nobody, the work beside it did."""
    root = f.step(0, 10, f.span("prefetch", 1, 15), f.phase("ref", 2, 9))
    assert said(critical_path.walk(root, 0, 10)) == [("step", "", 0, 2), ("phase", "ref", 2, 9), ("step", "", 9, 10)]


def test_phases_follow_each_other():
    """``generate_async`` of the one-step-off trainer is open while other phases run: the trainer was in those."""
    root = f.step(0, 20, f.phase("generate_async", 1, 12), f.phase("ref", 2, 8), f.phase("adv", 8, 11))
    assert said(critical_path.walk(root, 0, 20)) == [
        ("step", "", 0, 1),
        ("phase", "generate_async", 1, 2),
        ("phase", "ref", 2, 8),
        ("phase", "adv", 8, 11),
        ("step", "", 11, 20),
    ]


def test_of_parallel_tools_the_last_was_waited_for():
    """Three tools at once: only the one that ended last lies on the path, with its turn."""
    calls = [f.tool("a", 1, 4), f.tool("b", 1, 9), f.tool("c", 2, 8)]
    path = f.roll(0, 12, f.turn(3, 0, 10, *calls)).path
    assert [(each.kind, each.name, each.turn, each.start_ns, each.end_ns) for each in path] == [
        ("trajectory", "", 3, 0, 1),
        ("tool", "b", 3, 1, 9),
        ("trajectory", "", 3, 9, 10),
        ("trajectory", "", None, 10, 12),
    ]


# -- steps and their trajectories --


def path_of(root, *members):
    ids = [each.trace_id for each in members]
    return critical_path.of_step(root, {each.trace_id: each for each in members}, ids)


def test_a_step_leads_through_the_trajectory_that_ended_last():
    """Until it started, itself, until the trainer looked, and the taking: each has its name."""
    slow = f.roll(3, 15, f.tool("search", 4, 14))
    quick = f.roll(2, 8)
    root = f.step(0, 20, f.phase("gen", 1, 19, f.consume(18, slow, quick)))
    path = path_of(root, slow, quick)
    assert said(path) == [
        ("step", "", 0, 1),
        ("start", "", 1, 3),
        ("trajectory", "", 3, 4),
        ("tool", "search", 4, 14),
        ("trajectory", "", 14, 15),
        ("poll", "", 15, 18),
        ("phase", "gen", 18, 19),
        ("step", "", 19, 20),
    ]
    assert [each.phase for each in path] == ["", *["gen"] * 6, ""]
    assert {each.trace_id for each in path if each.kind in ("tool", "trajectory")} == {slow.trace_id}


def test_only_the_last_one_is_followed():
    """That it started late is not laid upon the one that ended just then: nobody knows that it waited for it."""
    before, late = f.roll(0, 9, f.tool("t", 0, 9)), f.roll(9, 12)
    path = path_of(f.step(0, 15, f.phase("gen", 0, 14, f.consume(13, before, late))), before, late)
    assert said(path)[:2] == [("start", "", 0, 9), ("trajectory", "", 9, 12)]


def test_trajectories_of_long_ago_hold_nobody():
    """In asynchronous training they had ended before the phase began: its time is its own."""
    old = [f.roll(-90, -50), f.roll(-80, 2)]
    path = path_of(f.step(0, 10, f.phase("gen", 2, 9, f.consume(8, *old))), *old)
    assert said(path) == [("step", "", 0, 2), ("phase", "gen", 2, 9), ("step", "", 9, 10)]


def test_one_that_began_earlier_counts_from_the_phase_on():
    """A trajectory that was under way when the phase began is clipped to it."""
    ahead = f.roll(-20, 6, f.tool("t", -10, 5))
    path = path_of(f.step(0, 10, f.phase("gen", 2, 9, f.consume(7, ahead))), ahead)
    assert said(path)[1:3] == [("tool", "t", 2, 5), ("trajectory", "", 5, 6)]


def test_each_phase_waits_for_its_own():
    """The separate trainer takes samples twice in a step: each time it waits for those that it takes."""
    first, second = f.roll(0, 4), f.roll(1, 13)
    ahead = f.roll(0, 8)
    phases = [f.phase("gen", 0, 5, f.consume(5, first)), f.phase("adv", 5, 10)]
    last = f.phase("gen", 10, 14, f.consume(14, second, ahead))
    path = path_of(f.step(0, 15, *phases, last), first, second, ahead)
    assert [(each.trace_id, each.start_ns) for each in path if each.trace_id] == [
        (first.trace_id, 0),
        (second.trace_id, 10),
    ]


def test_samples_that_are_taken_after_the_phase_gate_gen():
    """The one-step-off trainer takes its samples after ``gen`` and outside of it: that is the phase which waited."""
    member = f.roll(1, 5)
    path = path_of(f.step(0, 10, f.phase("gen", 0, 6), f.consume(7, member), f.phase("ref", 8, 9)), member)
    assert said(path)[:3] == [("start", "", 0, 1), ("trajectory", "", 1, 5), ("poll", "", 5, 6)]


def test_what_was_taken_had_ended():
    """An agent loop whose clock is ahead seems to end after the phase that took its samples; it held it to its end."""
    ahead = f.roll(2, 12, f.tool("t", 3, 11))
    path = path_of(f.step(0, 10, f.phase("gen", 1, 9, f.consume(8, ahead))), ahead)
    assert said(path)[-2:] == [("tool", "t", 3, 9), ("step", "", 9, 10)]


def test_a_trajectory_without_a_path_is_one_segment():
    """Of a trajectory that nobody looked into it is only known that it ran."""
    bare = f.roll(1, 5)._replace(path=())
    path = path_of(f.step(0, 6, f.phase("gen", 0, 6, f.consume(5, bare))), bare)
    assert said(path)[1] == ("trajectory", "", 1, 5)


def test_a_call_before_the_rollouts_is_not_their_start():
    """Waking the servers up comes first: only what is left of the wait is a start."""
    member = f.roll(5, 8)
    root = f.step(0, 10, f.phase("gen", 0, 9, f.call("wake_up", 0, 3), f.consume(9, member)))
    assert said(path_of(root, member))[:3] == [("call", "wake_up", 0, 3), ("start", "", 3, 5), ("trajectory", "", 5, 8)]


def test_a_step_that_never_ended_has_no_path():
    """Times that contradict each other make no path, and no error."""
    assert path_of(f.step(10, 5, f.phase("gen", 6, 7))) == ()


@pytest.mark.full
@LAW
@given(st.data())
def test_spliced_steps_are_gapless_too(data):
    """With trajectories of any times, taken by any phases, the path still covers the step exactly, one of them to a phase."""
    members = [
        f.roll(start, start + length, *[f.plant(each) for each in below])
        for start, length, below in data.draw(
            st.lists(
                st.tuples(st.integers(-10, 30), st.integers(-1, 20), st.lists(f.seeds(leaves=3), max_size=2)),
                max_size=5,
            )
        )
    ]
    bounds = sorted(data.draw(st.lists(st.integers(0, 24), min_size=4, max_size=4)))
    phases, left = [], list(members)
    for begin, end in itertools.pairwise(bounds):
        taken = [left.pop() for _ in range(data.draw(st.integers(0, len(left))))]
        below = [f.plant(each) for each in data.draw(st.lists(f.seeds(leaves=3), max_size=2))]
        consumed = [f.consume(data.draw(st.integers(begin, end)), *taken)] if taken else []
        phases.append(f.phase("gen", begin, end, *below, *consumed))
    path = path_of(f.step(0, 24, *phases), *members)
    assert_gapless(path, 0, 24)
    for begin, end in itertools.pairwise(bounds):
        gates = {each.trace_id for each in path if each.trace_id and begin <= each.start_ns < end}
        assert len(gates) <= 1


@pytest.mark.parametrize("length", [0, -3])
def test_a_trajectory_without_a_length_has_no_path(length):
    """It ended when it began, or before."""
    assert f.roll(5, 5 + length).path == ()
