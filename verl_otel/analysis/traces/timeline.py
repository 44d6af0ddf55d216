# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Builds trajectories with the parts that they spent time on, and finds which of them a step trained on."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from verl_otel.analysis.model import Activity, Part, Segment, Trajectory
from verl_otel.analysis.traces.span_names import (
    CONSUME,
    GENERATE,
    PHASE_PREFIX,
    REWARD,
    STEP,
    TOOL_PREFIX,
    TRAJECTORY,
    TURN,
)
from verl_otel.analysis.traces.tree import Node, walk
from verl_otel.model import SAMPLED, AttributeValue, LinkRecord, SpanRecord
from verl_otel.semconv import attributes as attr

_LLM_NAMES: Final = ("chat", "text_completion")
_KINDS: Final = {TRAJECTORY: "", TURN: "turn", GENERATE: "server", REWARD: "reward"}
"""Kinds of activity of spans whose name determines it."""
SUBMITTED_BY: Final = "submitted_by"
"""Type of the link from a trajectory to the span in which it began."""
_seconds: Final = attrgetter("seconds")
_new: Final = tuple.__new__


def build_trajectory(root: Node, orphans: Iterable[Node] = (), path: tuple[Segment, ...] = ()) -> Trajectory:
    """Return a trajectory without its parts.

    Without a score of its own it has that of its last reward. Where it is not recorded which tokens of the response the
    model wrote, it wrote all of them.

    Args:
        root: Its root span with all below it.
        orphans: Spans of its trace whose parent is missing.
        path: Its critical path.
    """
    activities: list[Activity] = []
    reward = _add_activities(activities, root)
    for orphan in orphans:
        _add_activities(activities, orphan)
    span, values = root.span, root.span.attributes
    score = values.get(attr.REWARD_SCORE)
    if not isinstance(score, (int, float)):
        score = reward
    finish = values.get(attr.GEN_AI_FINISH_REASONS)
    response = read_whole(values.get(attr.RESPONSE_TOKENS)) or 0
    generated = read_whole(values.get(attr.GENERATED_TOKENS))
    return Trajectory(
        span.trace_id,
        str(values.get(attr.SAMPLE_UID, "")),
        read_whole(values.get(attr.ROLLOUT_INDEX)) or 0,
        read_whole(values.get(attr.STEP_NUMBER)),
        bool(values.get(attr.VALIDATE, False)),
        span.start_ns,
        span.end_ns,
        float(score) if isinstance(score, (int, float)) else None,
        attr.ERROR_TYPE in values,
        bool(span.flags & SAMPLED),
        (),
        root.instance,
        str(values.get(attr.OUTCOME, "")),
        str(finish[-1]) if isinstance(finish, tuple) and finish else "",
        read_whole(values.get(attr.TURNS)) or 0,
        read_whole(values.get(attr.PROMPT_TOKENS)) or 0,
        response,
        response if generated is None else generated,
        path,
        tuple(activities),
        next((link.trace_id for link in span.links if link.attributes.get(attr.LINK_TYPE) == SUBMITTED_BY), 0),
    )


def _add_activities(activities: list[Activity], root: Node) -> AttributeValue | None:
    """Add the activities of a tree in its order; return the score of the reward that ended last, None if there is none."""
    last: tuple[int, int] = (0, 0)
    score: AttributeValue | None = None
    waiting: list[tuple[Node, int | None]] = [(root, None)]
    while waiting:
        node, turn = waiting.pop()
        span = node.span
        values = span.attributes
        kind, name = _classify(span.name, values)
        if kind == "turn":
            turn = read_whole(values.get(attr.TURN_INDEX))
        elif kind:
            activity = kind, name, node.instance, span.start_ns, span.end_ns, turn, attr.ERROR_TYPE in values
            activities.append(_new(Activity, activity))
            if kind == "reward" and attr.REWARD_SCORE in values and (span.end_ns, span.span_id) > last:
                last, score = (span.end_ns, span.span_id), values[attr.REWARD_SCORE]
        for child in reversed(node.children):
            waiting.append((child, turn))  # noqa: PERF401 - a third faster than making a list first
    return score


def _classify(name: str, values: Mapping[str, AttributeValue]) -> tuple[str, str]:
    """Return the kind of activity of a span, and its name; empty where it is none, ``turn`` for a turn.

    Example:
        ("tool", "search") for ``execute_tool search``
    """
    kind = _KINDS.get(name)
    if kind is not None:
        return kind, ""
    if attr.GEN_AI_TOOL in values:
        return "tool", str(values[attr.GEN_AI_TOOL])
    if attr.GEN_AI_MODEL in values or name.startswith(_LLM_NAMES):
        return "llm", str(values.get(attr.GEN_AI_MODEL, ""))
    return "", ""


def with_parts(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with the parts that it spent time on. The remainder counts as waiting only where all of its spans were kept."""
    start, end = trajectory.start_ns, trajectory.end_ns
    groups: dict[tuple[str, str], list[Activity]] = {}
    for activity in trajectory.activities:
        if activity.kind != "server":  # it is part of its call
            key = (activity.kind, activity.name)
            if key in groups:
                groups[key].append(activity)
            else:
                groups[key] = [activity]
    parts = []
    spent: list[tuple[int, int]] = []
    for (kind, name), members in groups.items():
        times = [(activity.start_ns, activity.end_ns) for activity in members]
        longest = (
            max(members, key=lambda activity: activity.end_ns - activity.start_ns) if len(members) > 1 else members[0]
        )
        parts.append(Part(kind, name, covered(times, start, end) / 1e9, len(members), longest.turn))
        spent += times
    parts.sort(key=_seconds, reverse=True)
    if trajectory.whole:
        parts.append(Part("wait", "", max(0, end - start - covered(spent, start, end)) / 1e9, 0, None))
    return trajectory._replace(parts=tuple(parts))


def covered(times: list[tuple[int, int]], begin: int, end: int) -> int:
    """Return how many nanoseconds between ``begin`` and ``end`` lie in at least one of some (start, end)."""
    total, reached = 0, begin
    for first, last in sorted(times):
        start, stop = max(first, reached), min(last, end)
        if stop > start:
            total += stop - start
            reached = stop
    return total


def name_call(name: str) -> str:
    """Return what the name of a span calls: ``tool search``, ``the reward``, ``model m``; empty for other spans."""
    if name.startswith(TOOL_PREFIX):
        return f"tool {name.removeprefix(TOOL_PREFIX)}"
    kind, _, model = name.partition(" ")
    return "the reward" if name == REWARD else f"model {model}".rstrip() if kind in _LLM_NAMES else ""


def find_consumed(root: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the trace ids of the trajectories that a step trained on, and of those that it filtered, each once."""
    linked: dict[object, dict[int, None]] = {"consumed": {}, "evicted": {}}
    for node in walk(root):
        if node.span.name == CONSUME:
            for link in node.span.links:
                linked.setdefault(link.attributes.get(attr.LINK_TYPE), {})[link.trace_id] = None
    taken, evicted = linked["consumed"], linked["evicted"]
    filtered = tuple(trace_id for trace_id in evicted if trace_id in taken)
    return tuple(trace_id for trace_id in taken if trace_id not in evicted), filtered


# -- The trajectories that a step of an own loop submitted, as samples that it consumed --
#
# verl's trainers record which trajectories a step trains on; the functions of `verl_otel` record what a step submitted.
# Without a recorded consumption a step is taken to train on the trajectories that began inside of it and ended before
# it did, except for those that failed or were cancelled: those it only waited for.

SUBMITTED: Final = "submitted"
"""Value of ``verl.step.lineage`` of a step that consumes what it submits, unless it says otherwise."""
UNLINKED: Final = "unlinked"
"""Name of unknown time of a phase while trajectories ran that are linked to no step."""
NOT_KEPT: Final = "not kept"
"""Name of unknown time of a trajectory of which only the root span was kept."""
TOLERANCE_NS: Final = 10_000_000
"""Tolerance for trajectories of other processes that seem to outlive the step: the precision of clocks that were aligned."""
_CONSUMED: Final = {attr.LINK_TYPE: "consumed"}
_EVICTED: Final = {attr.LINK_TYPE: "evicted"}
_DERIVED: Final = {attr.STEP_LINEAGE: SUBMITTED}


def is_open_step(root: Node) -> bool:
    """Return whether a root is a step that has not ended."""
    return root.span.name == STEP and attr.OPEN_AGE in root.span.attributes


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
        root: The root of a step of an own loop that recorded no consumption.
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


def add_workers(root: Node, workers: Iterable[Node]) -> list[Node]:
    """Add methods of workers to the innermost phases of a step that contain them; return those that end after the step.

    Args:
        root: The root of the step.
        workers: Methods of workers that no other span contains.
    """
    limit, later = root.span.end_ns + TOLERANCE_NS, []
    for worker in workers:
        if worker.span.end_ns > limit:
            later.append(worker)
        elif worker.span.start_ns >= root.span.start_ns - TOLERANCE_NS:
            insort(_find_phase(root, worker.span).children, worker, key=lambda node: node.span.start_ns)
    return later


def _find_phase(root: Node, trajectory: Trajectory | SpanRecord) -> Node:
    """Return the innermost phase in which a trajectory or a span began and ended; the step itself if there is none."""
    innermost = root
    while (inner := next(_phases_around(innermost, trajectory), None)) is not None:
        innermost = inner
    return innermost


def _phases_around(node: Node, trajectory: Trajectory | SpanRecord) -> Iterator[Node]:
    for child in node.children:
        span = child.span
        if (
            span.name.startswith(PHASE_PREFIX)
            and span.start_ns - TOLERANCE_NS <= trajectory.start_ns
            and trajectory.end_ns <= span.end_ns + TOLERANCE_NS
        ):
            yield child


def _make_consumption(node: Node, trajectories: Iterable[Trajectory]) -> Node:
    members = tuple(trajectories)
    links = tuple(LinkRecord(trajectory.trace_id, 0, _CONSUMED, "", 0) for trajectory in members)
    links += tuple(LinkRecord(trajectory.trace_id, 0, _EVICTED, "", 0) for trajectory in members if trajectory.stopped)
    end = node.span.end_ns
    span = SpanRecord(
        node.span.trace_id, 0, node.span.span_id, CONSUME, node.span.kind, end, end, _DERIVED, links, (), 0, "",
        node.span.flags, node.span.trace_state,
    )  # fmt: skip
    return Node(span, node.instance, node.process, [])


def read_whole(value: object) -> int | None:
    """Return a value as an integer; None where it is not a finite number."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return int(value) if is_whole else None  # type: ignore[call-overload]  # one of the two
