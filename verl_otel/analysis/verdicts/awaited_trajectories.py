# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trajectories that phases of a step waited for: of those that a phase consumed, the one that ended last in it.

Only that one delays the phase. Its late start is not attributed to another trajectory that ended at that time: nothing proves
a dependency (tinker-cookbook#822 charged whole waits to stragglers that way). The exception is an own loop that runs its trajectories
one after the other in a process: there the phase waited for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.model import Segment, Trajectory
from verl_otel.analysis.traces.span_names import CONSUME, PHASE_PREFIX
from verl_otel.analysis.traces.submissions import is_derived
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
    begin_ns: int = 0
    """From when on the phase waited for rollouts; 0: from its start."""


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
) -> dict[int, tuple[AwaitedTrajectory, ...]]:
    """Return the trajectories that each phase waited for, in the order of time, by the phase's span id."""
    left = {trace_id: trajectories[trace_id] for trace_id in consumed if trace_id in trajectories}
    awaited: dict[int, tuple[AwaitedTrajectory, ...]] = {}
    waiting: list[Node] = []
    for phase in (root, *find_phases(root)):
        derived = next(filter(is_derived, phase.children), None)
        if derived is not None:
            submitted = [left.pop(link.trace_id) for link in derived.span.links if link.trace_id in left]
            awaited[phase.span.span_id] = tuple(_follow_submitted(submitted))
            continue
        if phase is root:
            continue
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


def _follow_submitted(submitted: Sequence[Trajectory]) -> Iterator[AwaitedTrajectory]:
    """Yield the trajectories that a phase of an own loop waited for.

    That is the one that ended last and, if its process ran one trajectory at a time, those that this process ran before it.
    """
    if not submitted:
        return
    first = min(trajectory.start_ns for trajectory in submitted)
    last = max(submitted, key=lambda trajectory: (trajectory.end_ns, -trajectory.start_ns, trajectory.trace_id))
    chain = sorted(
        (trajectory for trajectory in submitted if trajectory.instance == last.instance),
        key=lambda trajectory: (trajectory.start_ns, trajectory.end_ns),
    )
    if any(following.start_ns < trajectory.end_ns for trajectory, following in itertools.pairwise(chain)):
        chain = [last]
    for trajectory in chain:
        begin = first if trajectory is chain[0] else trajectory.start_ns
        yield AwaitedTrajectory(trajectory, trajectory.end_ns, trajectory.end_ns, begin)


def _add_awaited(
    awaited: dict[int, tuple[AwaitedTrajectory, ...]],
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
        awaited[phase.span.span_id] = (AwaitedTrajectory(last, last.end_ns, min(seen, default=end)),)
