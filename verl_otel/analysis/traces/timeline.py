# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Builds steps with their phases, and trajectories with the parts that they spent time on, from traces."""

from __future__ import annotations

import math
from array import array
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Final

from verl_otel._internal.quantiles import pick_quantiles
from verl_otel.analysis.model import CANCELLED, Activity, Failure, Part, Phase, Segment, ShortRank, Step, Trajectory
from verl_otel.analysis.traces.span_names import (
    CALL_PREFIX,
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
_UPDATE: Final = "update_"
"""Begin of the names of methods that train; those of weights, which begin so, too, have no samples."""
_CALLS: Final = ("llm", "tool", "reward")
"""Kinds of activities whose failure may be why the score says nothing of the answer."""
_KINDS: Final = {TRAJECTORY: "", TURN: "turn", GENERATE: "server", REWARD: "reward"}
"""Kinds of activity of spans whose name determines it."""
SUBMITTED_BY: Final = "submitted_by"
"""Type of the link from a trajectory to the span in which it began."""
_seconds: Final = attrgetter("seconds")
_new: Final = tuple.__new__


def build_trajectory(root: Node, orphans: Iterable[Node] = (), path: tuple[Segment, ...] = ()) -> Trajectory:
    """Return a trajectory without its parts.

    Without a score of its own it has that of its last reward. Without a count of what the model wrote, as in runs of
    earlier versions, it wrote the whole response.

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


def pack_lifetimes(members: Iterable[Trajectory], start_ns: int) -> bytes:
    """Return begin and end of trajectories in seconds from a start, those that ended first before the others, as an array of C floats."""
    ordered = sorted(members, key=lambda one: one.end_ns)
    return array("f", [(at - start_ns) / 1e9 for one in ordered for at in (one.start_ns, one.end_ns)]).tobytes()


def build_step(root: Node, trained: Mapping[int, Trajectory | None], submitted: Iterable[Trajectory] = ()) -> Step:
    """Return one step without its path, verdicts, GPU time and cost.

    Args:
        root: Its root span with all below it.
        trained: Those that it trained on, by trace id; None: not found.
        submitted: Those that it submitted. It waited for those that failed or were cancelled before the end of gen, too.
    """
    span = root.span
    error, (line, instance, dead_child) = _find_error(span), _find_raised(root)
    phases = [child.span for child in root.children if child.span.name.startswith(PHASE_PREFIX)]
    total = max(1, span.end_ns - span.start_ns)
    by_key: dict[str, int] = defaultdict(int)
    for phase in phases:
        key = phase.name.removeprefix(PHASE_PREFIX)
        by_key[key] += max(0, min(phase.end_ns, span.end_ns) - max(phase.start_ns, span.start_ns))
    members = [member for member in trained.values() if member is not None]
    generations = [phase for phase in phases if phase.name == f"{PHASE_PREFIX}gen"]
    stopped = [one for one in submitted if one.stopped and generations and one.end_ns <= generations[-1].end_ns]
    awaited = {one.trace_id: one for one in (*members, *submitted)}.values()
    rollouts_end_ns = max((one.end_ns for one in (*members, *stopped)), default=0)
    noticing = [phase for phase in generations if phase.end_ns >= rollouts_end_ns > 0] or generations[-1:]
    return Step(
        number=read_whole(span.attributes.get(attr.STEP_NUMBER)),
        trace_id=span.trace_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        failed=bool(error),
        phases=tuple(Phase(key, ns / 1e9, ns / total) for key, ns in by_key.items()),
        no_phase=(total - covered([(phase.start_ns, phase.end_ns) for phase in phases], span.start_ns, span.end_ns))
        / 1e9,
        trajectories=tuple(trained),
        gen_start_ns=noticing[0].start_ns if noticing else 0,
        rollouts_end_ns=rollouts_end_ns,
        gen_end_ns=noticing[0].end_ns if noticing else 0,
        quantiles=pick_quantiles(sorted(member.seconds for member in members)),
        lifetimes=pack_lifetimes(members, span.start_ns),
        members=len(trained),
        error=error,
        error_line=line,
        error_instance=instance,
        dead_child=dead_child,
        failures=_find_failures(awaited),
        short_ranks=tuple(_find_short_ranks(root)),
    )


def _find_short_ranks(root: Node) -> Iterator[ShortRank]:
    """Yield the ranks that were given at most half as many samples for an update as the others: verl gives all of them the same number."""
    for node in walk(root):
        method = node.span.name.removeprefix(CALL_PREFIX)
        if method == node.span.name or not method.startswith(_UPDATE):
            continue
        samples: dict[int, tuple[int, str]] = {}
        for child in node.children:
            rank, size = (read_whole(child.span.attributes.get(key)) for key in (attr.RANK, attr.BATCH_SIZE))
            if rank is not None and size is not None:
                samples[rank] = size, child.instance
        for rank, (size, instance) in samples.items():
            others = [other for key, (other, _) in samples.items() if key != rank]
            usual = median(others) if others else 0.0
            if 2 * size <= usual and size < usual:
                yield ShortRank(method, rank, instance, size, usual)


def _find_failures(members: Iterable[Trajectory]) -> tuple[Failure, ...]:
    """Return what failed in the trajectories of a step, most calls first."""
    calls: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    unrewarded = set()
    for member in members:
        if member.score == 0 or member.failed:
            unrewarded.add(member.trace_id)
        for activity in member.activities:
            if activity.failed and activity.kind in _CALLS:
                calls[activity.kind, activity.name][member.trace_id] += 1
                if activity.kind == "reward" and member.score is None:
                    unrewarded.add(member.trace_id)
    found = [
        Failure(*key, counts.total(), len(counts), len(unrewarded & counts.keys())) for key, counts in calls.items()
    ]
    return tuple(sorted(found, key=lambda failure: (-failure.calls, failure.kind, failure.name)))


def _find_error(step: SpanRecord) -> str:
    """Return why a step did not end by itself: the type of its exception, or `CANCELLED`; empty if it did.

    A step of verl that was cancelled is the last one, in which its trainer found no more samples.
    """
    attributes = step.attributes
    if attr.ERROR_TYPE in attributes:
        return str(attributes[attr.ERROR_TYPE])
    is_cancelled = attributes.get(attr.OUTCOME) == CANCELLED and attr.STEP_LINEAGE in attributes
    return CANCELLED if is_cancelled else ""


def _find_raised(root: Node) -> tuple[str, str, str]:
    """Return where the exception of a step was raised, in which other process than that of the step, and which child died; empty: unknown.

    Where is the line of the innermost span that it left, or else the name of that span.
    """
    error = root.span.attributes.get(attr.ERROR_TYPE)
    inner, line, dead_child = root, "", ""
    left: Node | None = root if error is not None else None
    while left is not None:
        inner, line = left, str(left.span.attributes.get(attr.ERROR_LINE, line))
        dead_child = str(left.span.attributes.get(attr.ERROR_CHILD, dead_child))
        failed = [child for child in left.children if child.span.attributes.get(attr.ERROR_TYPE) == error]
        left = max(failed, key=lambda child: child.span.end_ns, default=None)
    instance = "" if inner.instance == root.instance else inner.instance
    return line or ("" if inner is root else inner.span.name), instance, dead_child


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
                linked.setdefault(link.attributes.get(attr.LINK_TYPE, "consumed"), {})[link.trace_id] = None
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


def consumes_submitted(root: Node) -> bool:
    """Return whether a step trains on the trajectories that it submitted: it is of an own loop, and recorded no consumption."""
    return root.span.attributes.get(attr.STEP_LINEAGE) == SUBMITTED and not find_consumed(root)[0]


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
