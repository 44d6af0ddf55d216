# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Phases of a step that took longer than in other steps, and what in them did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Segment, Step, Verdict
from verl_otel.analysis.segments import CALL_PREFIX, NOWHERE, find_place
from verl_otel.analysis.thresholds import DETAIL_SHARE, PACE_PHASES, PACE_SECONDS
from verl_otel.analysis.traces import Node
from verl_otel.analysis.typical import Typical

_NOT_JUDGED: Final = frozenset(("poll", "start"))
"""Nobody is known to have done anything then: a poll ends at the trainer's next look, a start when there is room."""
_NAMED: Final = frozenset(("weight_sync", "checkpoint", "validation"))
"""What happens in these is theirs: people know the weight sync, not the calls that it makes."""

_METHODS: Final = frozenset(("worker", "call"))


class Overrun(NamedTuple):
    """How long the critical path stayed in a phase, or in one thing in it."""

    phase: str
    kind: str
    """Empty: the whole phase."""
    name: str
    seconds: float
    instance: str = ""
    """The process in which it spent most of it."""
    detail: str = ""
    """The method that it spent most of it in."""
    methods: frozenset[str] = frozenset()
    """All methods that it was in."""

    @property
    def key(self) -> Hashable:
        """What it is compared with: the same in other steps."""
        return "phase", self.phase, self.kind, self.name


def measure_phases(path: Iterable[Segment], root: Node) -> tuple[Overrun, ...]:
    """Return how long a step's critical path stayed in each of its phases and in each thing there, without its trajectories."""
    own = [each for each in _name_awaited(path) if not each.trace_id and each.kind not in _NOT_JUDGED]
    scopes = dict(_find_scopes(root)) if own else {}
    groups: dict[tuple[str, str, str], list[Segment]] = defaultdict(list)
    for segment in own:
        groups[segment.phase, "", ""].append(segment)
        kind, name = scopes.get(segment.span_id, (segment.kind, segment.name))
        groups[segment.phase, kind, name].append(segment)
    return tuple(_sum_up(key, segments) for key, segments in groups.items())


def _name_awaited(path: Iterable[Segment]) -> Iterator[Segment]:
    """Yield a path in which the time of a call next to a worker's method names that worker.

    The trainer does nothing but wait then: for the way there and back, or for a worker that is busy, stopped or packs its result. Nobody
    can see which of these it is, but the worker's process is the place to look, and not the trainer's.
    """
    parts = list(path)
    for before, each, after in zip([None, *parts], parts, [*parts[1:], None]):  # noqa: B905 - the first one is longer
        near = next((other for other in (after, before) if other is not None and other.kind == "worker"), None)
        yield each._replace(instance=near.instance) if each.kind == "call" and near is not None else each


def measure_calls(path: Iterable[Segment], root: Node) -> dict[str, float]:
    """Return how many seconds of a step's critical path lie in calls of worker groups and below them, by the method that was called."""
    called: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while waiting:
        node, above = waiting.pop()
        name = node.span.name
        if name.startswith(CALL_PREFIX) and (method := name.removeprefix(CALL_PREFIX)) not in above:
            above = (*above, method)
        if above:
            called[node.span.span_id] = above
        waiting += [(child, above) for child in node.children]
    sums: dict[str, float] = defaultdict(float)
    for segment in path:
        for method in called.get(segment.span_id, ()) if not segment.trace_id else ():
            sums[method] += segment.seconds
    return dict(sums)


def _sum_up(key: tuple[str, str, str], segments: Sequence[Segment]) -> Overrun:
    total = sum(each.end_ns - each.start_ns for each in segments)
    longest = max(segments, key=lambda each: each.end_ns - each.start_ns)
    methods = frozenset(each.name for each in segments if each.kind in _METHODS)
    return Overrun(*key, total / 1e9, longest.instance, longest.name if longest.kind in _METHODS else "", methods)


def _find_scopes(root: Node) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield what each span of a step belongs to, by span id: the outermost worker method, or a weight sync and the like."""
    waiting = [(root, NOWHERE, ("", ""))]
    while waiting:
        node, above, scope = waiting.pop()
        place = find_place(node.span, above)
        own = scope
        if scope[0] not in _NAMED and scope[0] != "worker":
            own = (place.kind, place.name)
        yield place.span_id, own
        waiting += [(child, place, own) for child in node.children]


def decide_overruns(
    overruns: Iterable[Overrun], step: Step, typical: Typical, floor: float, late: Mapping[str, float]
) -> Iterator[Verdict]:
    """Yield verdicts on the phases of a step that took longer than the same in other steps.

    Args:
        overruns: Of the step.
        step: The step.
        typical: How long things take in other steps.
        floor: Seconds that are worth a verdict.
        late: Seconds by which a rank came late to a method. A phase that a rank explains gets no verdict of its own.
    """
    known = list(overruns)
    for whole in known:
        if whole.kind or whole.seconds < floor or typical.is_first(whole.key, step.trace_id):
            continue
        usual = typical.of_others(whole.key, step.trace_id)
        if usual is None or usual.allows(whole.seconds, floor):
            continue
        pace = _measure_pace(known, whole, step, typical)
        if whole.seconds - pace * usual.median < floor:  # everything took longer: it is not this phase
            continue
        excess = whole.seconds - usual.median
        if any(late.get(method, 0.0) >= DETAIL_SHARE * excess for method in whole.methods):
            continue
        cause, name, instance = _find_cause(whole, excess, known, step, typical)
        yield Verdict(
            step.number,
            step.seconds,
            "phase",
            whole.phase or "step",
            cause,
            name,
            excess,
            excess,
            instance=instance,
            uncertainty=step.uncertainty,
        )


def _measure_pace(known: Iterable[Overrun], judged: Overrun, step: Step, typical: Typical) -> float:
    """Return by what factor the other phases of a step took longer than usual, at least 1.

    A machine that is busy with other things slows all phases alike. The median over time, so that a second slow phase does not hide
    the first, and a short one does not speak for all.
    """
    factors: list[tuple[float, float]] = []
    for other in known:
        if not other.kind and other is not judged and not typical.is_first(other.key, step.trace_id):
            usual = typical.of_others(other.key, step.trace_id)
            if usual is not None and usual.median >= PACE_SECONDS:
                factors.append((other.seconds / usual.median, usual.median))
    if len(factors) < PACE_PHASES:
        return 1.0
    half, passed = sum(weight for _, weight in factors) / 2, 0.0
    for factor, weight in sorted(factors):
        passed += weight
        if passed >= half:
            return max(1.0, factor)
    return 1.0


def _find_cause(
    whole: Overrun, excess: float, known: Iterable[Overrun], step: Step, typical: Typical
) -> tuple[str, str, str]:
    """Return kind, name and process of the part of a phase that took most of what it took too long."""
    best, most = whole, DETAIL_SHARE * excess
    for part in known:
        if part.phase == whole.phase and part.kind:
            usual = typical.of_others(part.key, step.trace_id)
            beyond = part.seconds - (usual.median if usual else 0.0)
            if beyond >= most:
                best, most = part, beyond
    if not best.kind:
        return ("phase", whole.phase, whole.instance) if whole.phase else ("step", "", whole.instance)
    return best.kind, best.name or best.detail, best.instance
