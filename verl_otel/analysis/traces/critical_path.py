# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The critical path: for every moment of a step, the one thing that everything else waited for.

Backwards from the end, the child that finished last is what its parent waited for, from its start; before that, the child that
had finished last by then; what no child covers is the parent's own time. As in CRISP (Zhang et al., "CRISP: Critical Path Analysis
of Large-Scale Microservice Architectures", USENIX ATC 2022) and Jaeger's critical path. Pictures and corners:
``docs/explanation/critical-path.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from verl_otel.analysis.model import Segment, Trajectory
from verl_otel.analysis.traces.segments import NOWHERE, Place, find_place, is_engine, split_engine
from verl_otel.analysis.traces.span_names import CALL_PREFIX, PHASE_PREFIX
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.what_if import (
    TOLERANCE_NS,
    AwaitedTrajectory,
    clip,
    find_awaited_trajectories,
)
from verl_otel.semconv import attributes as attr

_STRUCTURAL: Final = (PHASE_PREFIX, CALL_PREFIX)
_Child = tuple[int, int, Node]
"""End, start and span of a child, clipped to its parent."""
_Frame = list[Any]
"""State of one span on the stack: node, place, begin, time reached so far (backwards), remaining children."""


def walk(node: Node, begin_ns: int, end_ns: int) -> list[Segment]:
    """Return the critical path through a span and its descendants, from ``begin_ns`` to ``end_ns`` without a gap."""
    return _walk(node, begin_ns, end_ns, {})


def of_trajectory(root: Node) -> tuple[Segment, ...]:
    """Return the critical path of a trajectory, from its start to its end."""
    return tuple(_walk(root, root.span.start_ns, max(root.span.start_ns, root.span.end_ns), {}))


def of_step(root: Node, trajectories: Mapping[int, Trajectory], consumed: Sequence[int]) -> tuple[Segment, ...]:
    """Return the critical path of a step, from its start to its end.

    Args:
        root: The root span of the step.
        trajectories: By trace id, each with its own path.
        consumed: Trace ids of those that the step took. Where a phase waited for them, the path leads through the one
            that ended last in it.
    """
    awaited = find_awaited_trajectories(root, trajectories, consumed)
    return tuple(_walk(root, root.span.start_ns, max(root.span.start_ns, root.span.end_ns), awaited))


def group(path: Iterable[Segment]) -> tuple[tuple[str, str, int], ...]:
    """Return the sums of a path by kind and name: kind, name, nanoseconds; the longest first."""
    sums: dict[tuple[str, str], int] = {}
    for segment in path:
        key = (segment.kind, segment.name)
        sums[key] = sums.get(key, 0) + segment.end_ns - segment.start_ns
    return tuple(sorted(((*key, total) for key, total in sums.items()), key=lambda item: (-item[2], item[0], item[1])))


def _walk(root: Node, begin_ns: int, end_ns: int, awaited: Mapping[int, Sequence[AwaitedTrajectory]]) -> list[Segment]:
    """Walk from the end to the start, with a stack instead of recursion: users nest spans deeper than Python allows calls."""
    segments: list[Segment] = []
    first = min(max(root.span.start_ns, begin_ns), end_ns)
    last = max(min(_find_end(root), end_ns), first)
    _add(segments, root, NOWHERE, last, end_ns)
    stack: list[_Frame | Segment] = []
    _enter(stack, segments, root, find_place(root.span, NOWHERE), first, last, awaited)
    while stack:
        frame = stack[-1]
        if isinstance(frame, Segment):
            segments.append(frame)
            stack.pop()
            continue
        node, place, begin, reached, children = frame
        while children and children[-1][0] > reached:
            children.pop()  # it ran in parallel to the awaited one
        if not children:
            _add(segments, node, place, begin, reached)
            stack.pop()
            continue
        end, start, child = children.pop()
        _add(segments, node, place, end, reached)
        frame[3] = start
        _enter(stack, segments, child, find_place(child.span, place), start, end, awaited)
    _add(segments, root, NOWHERE, begin_ns, first)
    segments.reverse()
    return segments


def _enter(
    stack: list[_Frame | Segment],
    segments: list[Segment],
    node: Node,
    place: Place,
    begin: int,
    end: int,
    awaited: Mapping[int, Sequence[AwaitedTrajectory]],
) -> None:
    """Push a span between two times onto the stack, or add its own time where no child of it can be on the path."""
    if awaited and node.span.span_id in awaited:
        stack.extend(_splice(node, place, begin, end, awaited[node.span.span_id]))
    elif not node.children or (place.kind == "server" and is_engine(node.span.attributes)):
        _add(segments, node, place, begin, end)
    else:
        stack.append([node, place, begin, end, _find_waited(node, begin, end)])


def _find_waited(node: Node, begin: int, end: int) -> list[_Child]:
    """Return the children that their parent may have waited for, clipped to it; the one that ended last is at the end."""
    limit = _find_end(node)
    ends: Mapping[int, int] | None = None
    waited: list[_Child] = []
    for child in node.children:
        span, tolerated = child.span, 0
        child_end = span.end_ns
        if span.name.startswith(_STRUCTURAL):
            if ends is None:
                ends = _cut_phases(node)
            child_end = ends.get(id(child), child_end) if ends else child_end
            if _is_open(child):
                child_end, tolerated = _find_end(child), TOLERANCE_NS
        if child_end - limit > tolerated and child.process == node.process:
            continue  # on the same clock it outlived its parent, so the parent did not wait for it
        start = max(begin, span.start_ns)
        stop = min(end, child_end)
        if stop > start:
            waited.append((stop, start, child))
    if len(waited) > 1:
        waited.sort(key=lambda child: (child[0], -child[1]))
    return waited


def _cut_phases(node: Node) -> dict[int, int]:
    """Return the ends of phases, by identity, that were still open when the next phase of their process started.

    A trainer is in one phase at a time. A phase that continues is a background task, as ``generate_async`` of verl's
    one-step-off trainer.
    """
    phases = [
        child for child in node.children if child.process == node.process and child.span.name.startswith(PHASE_PREFIX)
    ]
    following = dict(itertools.pairwise(sorted({phase.span.start_ns for phase in phases})))
    return {
        id(phase): following[phase.span.start_ns]
        for phase in phases
        if following.get(phase.span.start_ns, phase.span.end_ns) < phase.span.end_ns
    }


def _is_open(node: Node) -> bool:
    """Return whether a span is a call that returned before its workers had finished."""
    return node.span.attributes.get(attr.CALL_BLOCKING) is False and node.span.name.startswith(CALL_PREFIX)


def _find_end(node: Node) -> int:
    """Return the end of a span; a non-blocking call ends with the last worker that it called."""
    span = node.span
    latest = max(span.start_ns, span.end_ns)
    calls = [(node, span.start_ns)] if _is_open(node) else []
    while calls:
        call, begin = calls.pop()
        for child in call.children:
            start = max(begin, child.span.start_ns)
            if child.span.end_ns > start:
                latest = max(latest, child.span.end_ns)
            if _is_open(child):
                calls.append((child, start))
    return latest


def _add(segments: list[Segment], node: Node, place: Place, begin: int, end: int) -> None:
    """Append a span's own time; ``segments`` is in reverse order of time."""
    if end <= begin:
        return
    kind, name, phase, trace_id, turn, span_id = place
    if kind == "server" and is_engine(node.span.attributes):
        for state, start, stop in reversed(list(split_engine(node.span, begin, end))):
            segments.append(Segment(start, stop, state, name, phase, node.instance, trace_id, turn, span_id))
        return
    if segments:
        last = segments[-1]
        if last.span_id == span_id and last.kind == kind and last.instance == node.instance:
            segments[-1] = last._replace(start_ns=begin)
            return
    segments.append(Segment(begin, end, kind, name, phase, node.instance, trace_id, turn, span_id))


def _splice(
    node: Node, place: Place, begin: int, end: int, awaited: Sequence[AwaitedTrajectory]
) -> Iterator[_Frame | Segment]:
    """Yield the parts of a phase that waited for trajectories: for each the time before its start, the trajectory and the poll; then the rest."""
    reached = begin
    for trajectory, end_ns, taken_ns, begin_ns in awaited:
        waits = max(reached, min(begin_ns, end))
        here = max(waits, min(trajectory.start_ns, end))
        there = max(here, min(end_ns, end))
        if there == here:
            continue
        yield _frame(node, place, reached, waits)
        yield _frame(node, place._replace(kind="start", name=""), waits, here)
        yield from clip(trajectory, here, there, place.phase)
        reached = max(there, min(taken_ns, end))
        yield _frame(node, place._replace(kind="poll", name=""), there, reached)
    yield _frame(node, place, reached, end)


def _frame(node: Node, place: Place, begin: int, end: int) -> _Frame:
    return [node, place, begin, end, _find_waited(node, begin, end)]
