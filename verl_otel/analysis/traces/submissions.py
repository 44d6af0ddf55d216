# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trajectories that a step of an own loop submitted, as samples that it consumed.

verl's trainers record which trajectories a step trains on; the functions of `verl_otel` record what a step submitted. Without a recorded
consumption a step is taken to train on the trajectories that began inside of it and ended before it did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from verl_otel.analysis.model import Segment, Trajectory
from verl_otel.analysis.traces.span_names import CONSUME, PHASE_PREFIX
from verl_otel.analysis.traces.timeline import find_consumed
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import LinkRecord, SpanRecord
from verl_otel.semconv import attributes as attr

SUBMITTED: Final = "submitted"
"""Value of ``verl.step.lineage`` of a step that consumes what it submits, unless it says otherwise."""
UNLINKED: Final = "unlinked"
"""Name of unknown time of a phase while trajectories ran that are linked to no step."""
TOLERANCE_NS: Final = 10_000_000
"""Tolerance for trajectories of other processes that seem to outlive the step: the precision of clocks that were aligned."""
_CONSUMED: Final = {attr.LINK_TYPE: "consumed"}
_DERIVED: Final = {attr.STEP_LINEAGE: SUBMITTED}


def consumes_submitted(root: Node) -> bool:
    """Return whether a step trains on the trajectories that it submitted: it is of an own loop, and recorded no consumption."""
    return root.span.attributes.get(attr.STEP_LINEAGE) == SUBMITTED and not find_consumed(root)


def is_submitted(root: Node, trajectory: Trajectory) -> bool:
    """Return whether a trajectory belongs to a step by its link, or without one by the number of the step and its time."""
    if trajectory.submitter:
        return trajectory.submitter == root.span.trace_id
    return (
        trajectory.step is not None
        and trajectory.step == root.span.attributes.get(attr.STEP_NUMBER)
        and root.span.start_ns - TOLERANCE_NS <= trajectory.start_ns
        and trajectory.end_ns <= root.span.end_ns + TOLERANCE_NS
    )


def mark_unlinked(path: Sequence[Segment], trajectories: Iterable[Trajectory]) -> tuple[Segment, ...]:
    """Return the path of a step without trajectories in which the time of a phase is unknown while trajectories ran that no step is linked to.

    Args:
        path: The critical path.
        trajectories: Those that no step has consumed so far.
    """
    begins = [one.start_ns for one in trajectories if not one.submitter and one.step is None and not one.validate]
    return tuple(
        segment._replace(kind="unknown", name=UNLINKED)
        if segment.kind == "phase" and any(segment.start_ns <= begin < segment.end_ns for begin in begins)
        else segment
        for segment in path
    )


def is_derived(node: Node) -> bool:
    """Return whether a consumption was derived by `add_consumption`, and not recorded."""
    return node.span.name == CONSUME and attr.STEP_LINEAGE in node.span.attributes


def add_consumption(root: Node, trajectories: Iterable[Trajectory]) -> None:
    """Add to the tree of a step the consumption of the trajectories that it submitted, at the innermost phases that contain them.

    Args:
        root: The root of a step for which `consumes_submitted` is true.
        trajectories: The trajectories for which `is_submitted` is true.
    """
    limit = root.span.end_ns + TOLERANCE_NS
    members: dict[int, list[Trajectory]] = defaultdict(list)
    nodes: dict[int, Node] = {}
    for trajectory in trajectories:
        if not trajectory.validate and trajectory.end_ns <= limit:
            node = _find_phase(root, trajectory)
            nodes[id(node)] = node
            members[id(node)].append(trajectory)
    for key, node in nodes.items():
        node.children.append(_make_consumption(node, members[key]))


def _find_phase(root: Node, trajectory: Trajectory) -> Node:
    """Return the innermost phase in which a trajectory began and ended; the step itself if there is none."""
    innermost = root
    while (inner := next(_phases_around(innermost, trajectory), None)) is not None:
        innermost = inner
    return innermost


def _phases_around(node: Node, trajectory: Trajectory) -> Iterator[Node]:
    for child in node.children:
        span = child.span
        if (
            span.name.startswith(PHASE_PREFIX)
            and span.start_ns - TOLERANCE_NS <= trajectory.start_ns
            and trajectory.end_ns <= span.end_ns + TOLERANCE_NS
        ):
            yield child


def _make_consumption(node: Node, trajectories: Iterable[Trajectory]) -> Node:
    links = tuple(LinkRecord(trajectory.trace_id, 0, _CONSUMED, "", 0) for trajectory in trajectories)
    end = node.span.end_ns
    span = SpanRecord(
        node.span.trace_id, 0, node.span.span_id, CONSUME, node.span.kind, end, end, _DERIVED, links, (), 0, "",
        node.span.flags, node.span.trace_state,
    )  # fmt: skip
    return Node(span, node.instance, node.process, [])
