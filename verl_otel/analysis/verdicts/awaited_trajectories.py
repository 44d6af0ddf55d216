# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trajectories that phases of a step waited for: of those that a phase consumed, the one that ended last in it.

Only that one delays the phase. Its late start is not attributed to another trajectory that ended at that time: nothing proves
a dependency (tinker-cookbook#822 charged whole waits to stragglers that way).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.model import Segment, Trajectory
from verl_otel.analysis.traces.span_names import CONSUME, PHASE_PREFIX
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import SpanRecord

TOLERANCE_NS: Final = 10_000_000
"""Tolerance for spans that seem to outlive what waited for them: clocks of two hosts are aligned to milliseconds, no better."""

_GENERATION: Final = f"{PHASE_PREFIX}gen"


class AwaitedTrajectory(NamedTuple):
    """The trajectory that a phase waited for."""

    trajectory: Trajectory
    end_ns: int
    taken_ns: int
    """When the trainer started to consume the samples; the end of the phase if that is unknown."""


def clip(trajectory: Trajectory, begin: int, end: int, phase: str) -> Iterator[Segment]:
    """Yield a trajectory's path between two times without a gap; gaps are filled with the trajectory itself."""
    whole = Segment(begin, end, "trajectory", "", phase, trajectory.instance, trajectory.trace_id)
    reached = begin
    for segment in trajectory.path:
        start, stop = max(segment.start_ns, reached), min(segment.end_ns, end)
        if stop > start:
            if start > reached:
                yield whole._replace(start_ns=reached, end_ns=start)
            yield segment._replace(start_ns=start, end_ns=stop, phase=phase)
            reached = stop
    if end > reached:
        yield whole._replace(start_ns=reached)


def find_awaited_trajectories(
    root: Node, trajectories: Mapping[int, Trajectory], consumed: Sequence[int]
) -> dict[int, AwaitedTrajectory]:
    """Return the trajectory that each phase waited for, by the phase's span id."""
    left = {trace_id: trajectories[trace_id] for trace_id in consumed if trace_id in trajectories}
    awaited: dict[int, AwaitedTrajectory] = {}
    waiting: list[Node] = []
    for phase in find_phases(root):
        takers = [child.span for child in phase.children if child.span.name == CONSUME]
        taken = [left.pop(link.trace_id) for span in takers for link in span.links if link.trace_id in left]
        if taken:
            # Consumed trajectories had ended: an end that seems to lie after the phase is an offset of clocks.
            _add_awaited(awaited, phase, taken, takers, tolerance=max(trajectory.end_ns for trajectory in taken))
        elif phase.span.name == _GENERATION:
            waiting.append(phase)
    for phase in waiting:
        _add_awaited(awaited, phase, left.values(), [], tolerance=TOLERANCE_NS)
    return awaited


def find_phases(root: Node) -> Iterator[Node]:
    """Yield the phases of a step, at any depth below its trainer's spans."""
    nodes = list(root.children)
    while nodes:
        node = nodes.pop()
        if node.span.name.startswith(PHASE_PREFIX):
            yield node
        if node.process == root.process:
            nodes.extend(node.children)


def _add_awaited(
    awaited: dict[int, AwaitedTrajectory],
    phase: Node,
    taken: Iterable[Trajectory],
    takers: Sequence[SpanRecord],
    *,
    tolerance: int,
) -> None:
    begin, end = phase.span.start_ns, phase.span.end_ns
    inside = [trajectory for trajectory in taken if begin < trajectory.end_ns <= end + tolerance]
    if inside:
        last = max(inside, key=lambda trajectory: (trajectory.end_ns, -trajectory.start_ns, trajectory.trace_id))
        seen = [span.start_ns for span in takers if span.start_ns >= last.end_ns]
        awaited[phase.span.span_id] = AwaitedTrajectory(last, last.end_ns, min(seen, default=end))
