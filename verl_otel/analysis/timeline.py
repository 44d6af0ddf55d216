# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From traces to what people speak of: a step with its phases, a trajectory with what it spent its time on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from verl_otel.analysis.facts import Activity, Part, Phase, Step, Trajectory
from verl_otel.analysis.segments import read_whole
from verl_otel.analysis.traces import Node, walk
from verl_otel.model import SAMPLED, AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

PHASE_PREFIX: Final = SPANS["phase"].name
TRAJECTORY: Final = SPANS["trajectory"].name
STEP: Final = SPANS["step"].name
VALIDATION: Final = SPANS["validation"].name
_LLM_NAMES: Final = ("chat", "text_completion")
_KINDS: Final = {TRAJECTORY: "", "verl.turn": "turn", "verl.generate": "server", "verl.reward": "reward"}
"""Kinds of activity by the name of the span, where that says it all."""
_seconds: Final = attrgetter("seconds")


def build_root(span: SpanRecord, instance: str) -> Trajectory:
    """Return what the root span of a trajectory says of it: all but its parts, its path and its activities.

    Args:
        span: The root.
        instance: The process that wrote it.
    """
    values = span.attributes
    score = values.get(attr.REWARD_SCORE)
    finish = values.get(attr.GEN_AI_FINISH_REASONS)
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
        instance,
        str(values.get(attr.OUTCOME, "")),
        str(finish[-1]) if isinstance(finish, tuple) and finish else "",
        read_whole(values.get(attr.TURNS)) or 0,
        read_whole(values.get(attr.PROMPT_TOKENS)) or 0,
        read_whole(values.get(attr.RESPONSE_TOKENS)) or 0,
    )


def find_activities(root: Node, orphans: Iterable[Node]) -> tuple[Activity, ...]:
    """Return what was done for a trajectory, in the order of its tree.

    Args:
        root: Its root span with all below it.
        orphans: Spans of its trace whose parent is missing.
    """
    activities = _activities(root)
    for orphan in orphans:
        activities += _activities(orphan)
    return activities


def _activities(root: Node) -> tuple[Activity, ...]:
    found: list[Activity] = []
    waiting: list[tuple[Node, int | None]] = [(root, None)]
    while waiting:
        (span, instance, _, children), turn = waiting.pop()
        kind, name = classify(span.name, span.attributes)
        if kind == "turn":
            turn = read_whole(span.attributes.get(attr.TURN_INDEX))
        elif kind:
            failed = attr.ERROR_TYPE in span.attributes
            found.append(Activity(kind, name, instance, span.start_ns, span.end_ns, turn, failed))
        for child in reversed(children):
            waiting.append((child, turn))  # noqa: PERF401 - a third faster than making a list first
    return tuple(found)


def classify(name: str, values: Mapping[str, AttributeValue]) -> tuple[str, str]:
    """Return the kind of activity that a span is, and its name; empty where it is none, ``turn`` for a turn.

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


def sum_parts(start: int, end: int, activities: Iterable[Activity], *, whole: bool) -> tuple[Part, ...]:
    """Return what is known of a trajectory; that the rest was waiting is known where all of it was kept.

    Args:
        start: When it began, in nanoseconds.
        end: When it ended.
        activities: What was done for it.
        whole: More than its root was kept.
    """
    groups: dict[tuple[str, str], list[Activity]] = {}
    for each in activities:
        if each.kind != "server":  # it is part of its call
            key = (each.kind, each.name)
            if key in groups:
                groups[key].append(each)
            else:
                groups[key] = [each]
    parts = []
    spent: list[tuple[int, int]] = []
    for (kind, name), members in groups.items():
        times = [(each.start_ns, each.end_ns) for each in members]
        longest = max(members, key=_length) if len(members) > 1 else members[0]
        parts.append(Part(kind, name, covered(times, start, end) / 1e9, len(members), longest.turn))
        spent += times
    parts.sort(key=_seconds, reverse=True)
    if whole:
        parts.append(Part("wait", "", max(0, end - start - covered(spent, start, end)) / 1e9, 0, None))
    return tuple(parts)


def _length(activity: Activity) -> int:
    return activity.end_ns - activity.start_ns


def covered(times: list[tuple[int, int]], begin: int, end: int) -> int:
    """Return how many nanoseconds between ``begin`` and ``end`` lie in at least one of some (start, end)."""
    total, reached = 0, begin
    for first, last in sorted(times):
        start, stop = max(first, reached), min(last, end)
        if stop > start:
            total += stop - start
            reached = stop
    return total


def build_step(root: Node, trajectories: Mapping[int, Trajectory]) -> Step:
    """Return one step, without what others find out of it (path, verdicts, GPU time, cost).

    Args:
        root: Its root span with all below it.
        trajectories: Those that it may have trained on, by trace id.
    """
    span = root.span
    phases = [child.span for child in root.children if child.span.name.startswith(PHASE_PREFIX)]
    total = max(1, span.end_ns - span.start_ns)
    by_key: dict[str, int] = defaultdict(int)
    for phase in phases:
        by_key[phase.name.removeprefix(PHASE_PREFIX)] += phase.end_ns - phase.start_ns
    consumed = find_consumed(root)
    members = [trajectories[trace_id] for trace_id in consumed if trace_id in trajectories]
    generations = [phase for phase in phases if phase.name == f"{PHASE_PREFIX}gen"]
    return Step(
        number=read_whole(span.attributes.get(attr.STEP_NUMBER)),
        trace_id=span.trace_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        failed=attr.ERROR_TYPE in span.attributes,
        phases=tuple(Phase(key, ns / 1e9, ns / total) for key, ns in by_key.items()),
        no_phase=(total - covered([(each.start_ns, each.end_ns) for each in phases], span.start_ns, span.end_ns)) / 1e9,
        trajectories=consumed,
        gen_start_ns=generations[0].start_ns if generations else 0,
        rollouts_end_ns=max((each.end_ns for each in members), default=0),
        gen_end_ns=generations[-1].end_ns if generations else 0,
        quantiles=find_quantiles(sorted(each.seconds for each in members)),
        members=len(consumed),
        error=str(span.attributes.get(attr.ERROR_TYPE, "")),
    )


def find_consumed(root: Node) -> tuple[int, ...]:
    """Return the trace ids of the trajectories that a step trained on, each once."""
    found = [
        link.trace_id
        for node in walk(root)
        if node.span.name == "verl.consume"
        for link in node.span.links
        if link.attributes.get(attr.LINK_TYPE, "consumed") == "consumed"
    ]
    return tuple(dict.fromkeys(found))


def find_quantiles(ordered: list[float]) -> tuple[float, ...]:
    """Return minimum, p50, p95, p99 and maximum of sorted numbers, each one of them (nearest rank); none of none."""
    if not ordered:
        return ()
    ranks = [max(0, math.ceil(share * len(ordered)) - 1) for share in (0.0, 0.5, 0.95, 0.99, 1.0)]
    return tuple(ordered[rank] for rank in ranks)
