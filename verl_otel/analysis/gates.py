# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trajectories that phases of a step waited for: of those that a phase took, the one that ended last in it.

Only that one gates. That it began late is not laid upon another trajectory that ended then: nothing proves that one waited for the
other (tinker-cookbook#822 charged whole waits to stragglers that way).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Segment, Trajectory
from verl_otel.analysis.segments import PHASE_PREFIX
from verl_otel.analysis.traces import Node
from verl_otel.model import SpanRecord
from verl_otel.semconv.spans import SPANS

TOLERANCE_NS: Final = 10_000_000
"""By how much something that a span waited for may seem to outlive it: clocks of two hosts are aligned to milliseconds, no better."""

_GENERATION: Final = f"{PHASE_PREFIX}gen"
CONSUME: Final = SPANS["consume"].name


class Gate(NamedTuple):
    """The trajectory that a phase waited for."""

    trajectory: Trajectory
    end_ns: int
    taken_ns: int
    """When the trainer had noticed and began to take the samples; the end of the phase if it did not say."""


def clip(trajectory: Trajectory, begin: int, end: int, phase: str) -> Iterator[Segment]:
    """Yield a trajectory's path between two times without a gap; what its path does not cover is the trajectory itself."""
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


def find_gates(root: Node, trajectories: Mapping[int, Trajectory], consumed: Sequence[int]) -> dict[int, Gate]:
    """Return the trajectory that each phase waited for, by the phase's span id."""
    left = {trace_id: trajectories[trace_id] for trace_id in consumed if trace_id in trajectories}
    gates: dict[int, Gate] = {}
    waiting: list[Node] = []
    for phase in find_phases(root):
        takers = [child.span for child in phase.children if child.span.name == CONSUME]
        taken = [left.pop(link.trace_id) for span in takers for link in span.links if link.trace_id in left]
        if taken:
            # What was taken had ended: an end that seems to lie behind the phase is another host's clock.
            _add_gate(gates, phase, taken, takers, tolerance=max(each.end_ns for each in taken))
        elif phase.span.name == _GENERATION:
            waiting.append(phase)
    for phase in waiting:
        _add_gate(gates, phase, left.values(), [], tolerance=TOLERANCE_NS)
    return gates


def find_phases(root: Node) -> Iterator[Node]:
    """Yield the phases of a step, wherever its trainer has them."""
    nodes = list(root.children)
    while nodes:
        node = nodes.pop()
        if node.span.name.startswith(PHASE_PREFIX):
            yield node
        if node.process == root.process:
            nodes.extend(node.children)


def _add_gate(
    gates: dict[int, Gate], phase: Node, taken: Iterable[Trajectory], takers: Sequence[SpanRecord], *, tolerance: int
) -> None:
    begin, end = phase.span.start_ns, phase.span.end_ns
    inside = [each for each in taken if begin < each.end_ns <= end + tolerance]
    if inside:
        last = max(inside, key=lambda each: (each.end_ns, -each.start_ns, each.trace_id))
        seen = [span.start_ns for span in takers if span.start_ns >= last.end_ns]
        gates[phase.span.span_id] = Gate(last, last.end_ns, min(seen, default=end))
