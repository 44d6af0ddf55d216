# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The critical path: for every moment of a step, the one thing that everything else waited for.

Backwards from the end, the child that finished last is what its parent waited for, from its start; before that, the child that
had finished last by then; what no child covers is the parent's own time. As in CRISP (Zhang et al., "CRISP: Critical Path Analysis
of Large-Scale Microservice Architectures", USENIX ATC 2022) and Jaeger's critical path. Pictures and corners:
``docs/guide/critical-path.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from verl_otel.analysis.facts import Segment, Trajectory
from verl_otel.analysis.gates import TOLERANCE_NS, Gate, clip, find_gates
from verl_otel.analysis.segments import CALL_PREFIX, NOWHERE, PHASE_PREFIX, Place, find_place, is_engine, split_engine
from verl_otel.analysis.traces import Node
from verl_otel.semconv import attributes as attr

_STRUCTURAL: Final = (PHASE_PREFIX, CALL_PREFIX)
_Child = tuple[int, int, Node]
"""End, start and span of a child, clipped to its parent."""
_Frame = list[Any]
"""A span that is being walked through: span, place, begin, how far back the walk has come, and children that are left."""


def walk(node: Node, begin_ns: int, end_ns: int) -> list[Segment]:
    """Return the critical path through a span and everything below it, from ``begin_ns`` to ``end_ns`` without a gap."""
    return _walk(node, begin_ns, end_ns, {})


def of_trajectory(root: Node) -> tuple[Segment, ...]:
    """Return the critical path of a trajectory, from its start to its end."""
    return tuple(_walk(root, root.span.start_ns, max(root.span.start_ns, root.span.end_ns), {}))


def of_step(root: Node, trajectories: Mapping[int, Trajectory], consumed: Sequence[int]) -> tuple[Segment, ...]:
    """Return the critical path of a step, from its start to its end.

    Args:
        root: The step.
        trajectories: By trace id, each with its own path.
        consumed: Trace ids of those that the step trained on. Where a phase waited for them, the path leads through the one
            that ended last in it.
    """
    gates = find_gates(root, trajectories, consumed)
    return tuple(_walk(root, root.span.start_ns, max(root.span.start_ns, root.span.end_ns), gates))


def group(path: Iterable[Segment]) -> tuple[tuple[str, str, int], ...]:
    """Return a path summed up: kind, name, nanoseconds; the longest first."""
    sums: dict[tuple[str, str], int] = {}
    for segment in path:
        key = (segment.kind, segment.name)
        sums[key] = sums.get(key, 0) + segment.end_ns - segment.start_ns
    return tuple(sorted(((*key, total) for key, total in sums.items()), key=lambda each: (-each[2], each[0], each[1])))


def _walk(root: Node, begin_ns: int, end_ns: int, gates: Mapping[int, Gate]) -> list[Segment]:
    """Walk from the end to the begin. A stack and no recursion: users nest spans deeper than Python nests calls."""
    found: list[Segment] = []
    first = min(max(root.span.start_ns, begin_ns), end_ns)
    last = max(min(_find_end(root), end_ns), first)
    _add(found, root, NOWHERE, last, end_ns)
    stack: list[_Frame | Segment] = []
    _enter(stack, found, root, find_place(root.span, NOWHERE), first, last, gates)
    while stack:
        frame = stack[-1]
        if isinstance(frame, Segment):
            found.append(frame)
            stack.pop()
            continue
        node, place, begin, reached, children = frame
        while children and children[-1][0] > reached:
            children.pop()  # it went on beside the one that was waited for
        if not children:
            _add(found, node, place, begin, reached)
            stack.pop()
            continue
        end, start, child = children.pop()
        _add(found, node, place, end, reached)
        frame[3] = start
        _enter(stack, found, child, find_place(child.span, place), start, end, gates)
    _add(found, root, NOWHERE, begin_ns, first)
    found.reverse()
    return found


def _enter(
    stack: list[_Frame | Segment],
    found: list[Segment],
    node: Node,
    place: Place,
    begin: int,
    end: int,
    gates: Mapping[int, Gate],
) -> None:
    """Put a span between two times onto the stack, or its own time where nothing below it can count."""
    if gates and node.span.span_id in gates:
        stack.extend(_splice(node, place, begin, end, gates[node.span.span_id]))
    elif not node.children or (place.kind == "server" and is_engine(node.span)):
        _add(found, node, place, begin, end)
    else:
        stack.append([node, place, begin, end, _find_waited(node, begin, end)])


def _find_waited(node: Node, begin: int, end: int) -> list[_Child]:
    """Return the children that their parent may have waited for, clipped, the one that ended last at the end."""
    limit = _find_end(node)
    ends: Mapping[int, int] | None = None
    found: list[_Child] = []
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
            continue  # on one clock it went on after its parent had ended: nobody waited for it
        start = max(begin, span.start_ns)
        stop = min(end, child_end)
        if stop > start:
            found.append((stop, start, child))
    if len(found) > 1:
        found.sort(key=_order)
    return found


def _order(child: _Child) -> tuple[int, int]:
    return child[0], -child[1]


def _cut_phases(node: Node) -> dict[int, int]:
    """Return when phases ended, by identity, for those that were still open when the next one of their process began.

    A trainer is in one phase at a time. One that goes on is a task in the background, as ``generate_async`` of verl's
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
    """Return whether a span is a call that returned before its workers had."""
    return node.span.attributes.get(attr.CALL_BLOCKING) is False and node.span.name.startswith(CALL_PREFIX)


def _find_end(node: Node) -> int:
    """Return when a span and what it stands for ended: a call that returns at once ends with the last worker that it called."""
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


def _add(found: list[Segment], node: Node, place: Place, begin: int, end: int) -> None:
    """Append a span's own time; ``found`` goes backwards in time."""
    if end <= begin:
        return
    kind, name, phase, trace_id, turn, span_id = place
    if kind == "server" and is_engine(node.span):
        for state, start, stop in reversed(list(split_engine(node.span, begin, end))):
            found.append(Segment(start, stop, state, name, phase, node.instance, trace_id, turn, span_id))
        return
    if found:
        last = found[-1]
        if last.span_id == span_id and last.kind == kind and last.instance == node.instance:
            found[-1] = last._replace(start_ns=begin)
            return
    found.append(Segment(begin, end, kind, name, phase, node.instance, trace_id, turn, span_id))


def _splice(node: Node, place: Place, begin: int, end: int, gate: Gate) -> Iterator[_Frame | Segment]:
    """Yield what covers a phase that waited for a trajectory: until it began, itself, until the trainer noticed, and the rest."""
    here = max(begin, min(gate.trajectory.start_ns, end))
    there = max(here, min(gate.end_ns, end))
    taken = max(there, min(gate.taken_ns, end)) if there > here else begin
    if there > here:
        yield [node, place._replace(kind="start", name=""), begin, here, _find_waited(node, begin, here)]
        yield from clip(gate.trajectory, here, there, place.phase)
        yield [node, place._replace(kind="poll", name=""), there, taken, _find_waited(node, there, taken)]
    yield [node, place, taken, end, _find_waited(node, taken, end)]
