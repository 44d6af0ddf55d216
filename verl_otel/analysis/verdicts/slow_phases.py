# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Phases that took longer than in other steps, and the part of each that did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.model import Segment, Step, Verdict
from verl_otel.analysis.traces.critical_path import NOWHERE, find_place
from verl_otel.analysis.traces.span_names import CALL_PREFIX, WORKER_PREFIX
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts import own_workers
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE, PACE_PHASES, PACE_SECONDS, Baselines, Key
from verl_otel.analysis.verdicts.stragglers import LEAD_SECONDS, method_of

_NOT_JUDGED: Final = "start"
"""A wait that ends when a slot is free, which nothing in the step decides."""
_NAMED: Final = frozenset(("weight_sync", "checkpoint", "validation", "logging", "data_loading"))
"""Descendants of these are attributed to them: users know the weight sync, not the calls that it makes."""

_METHODS: Final = frozenset(("worker", "call"))
_LEAD_NS: Final = round(LEAD_SECONDS * 1e9)


class PhaseTime(NamedTuple):
    """Time that the critical path spent in a phase, or in one kind of work in it."""

    phase: str
    kind: str
    """Empty: the whole phase."""
    name: str
    seconds: float
    instance: str = ""
    """The process in which it spent most of that time."""
    detail: str = ""
    """The method in which it spent most of that time."""
    methods: frozenset[str] = frozenset()
    """All methods on that part of the path."""
    alike: bool = False
    """Whether other processes took as long in one of these methods."""

    @property
    def key(self) -> Key:
        """Key of the same time in other steps."""
        return "phase", self.phase, self.kind, self.name


def measure_phases(path: Iterable[Segment], root: Node) -> tuple[PhaseTime, ...]:
    """Return the time of a step's critical path in each phase and in each kind of work in it, without trajectories."""
    own = [segment for segment in _name_awaited(path) if not segment.trace_id and segment.kind != _NOT_JUDGED]
    scopes = dict(_find_scopes(root)) if own else {}
    groups: dict[tuple[str, str, str], list[Segment]] = defaultdict(list)
    for segment in own:
        groups[segment.phase, "", ""].append(segment)
        own_kind = segment.kind, segment.name
        kind, name = own_kind if segment.kind == "poll" else scopes.get(segment.span_id, own_kind)
        groups[segment.phase, kind, name].append(segment)
    alike = set(_find_alike(root)) if own else set()
    return tuple(_sum_up(key, segments, alike) for key, segments in groups.items())


def _find_alike(root: Node) -> Iterator[tuple[str, str]]:
    """Yield method and process of each call in which the last worker to end began and ended as another one did: any of them may have waited."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        workers = [child for child in node.children if child.span.name.startswith(WORKER_PREFIX)]
        last = max(workers, key=lambda worker: worker.span.end_ns, default=node)
        others = (worker for worker in workers if worker.instance != last.instance)
        if any(
            abs(other.span.end_ns - last.span.end_ns) < _LEAD_NS
            and abs(other.span.start_ns - last.span.start_ns) < _LEAD_NS
            for other in others
        ):
            yield method_of(last.span), last.instance


def _name_awaited(path: Iterable[Segment]) -> Iterator[Segment]:
    """Yield a path in which the time of a call next to a worker's method names that worker.

    The trainer only waits then: for the transport, or for a worker that is busy, stopped or serializes its result. Spans cannot
    distinguish these, but the cause is in the worker's process and not in the trainer's.
    """
    parts = list(path)
    for before, segment, after in zip([None, *parts], parts, [*parts[1:], None]):  # noqa: B905 - the first one is longer
        near = next((other for other in (after, before) if other is not None and other.kind == "worker"), None)
        yield segment._replace(instance=near.instance) if segment.kind == "call" and near is not None else segment


def measure_calls(path: Iterable[Segment], root: Node) -> dict[str, float]:
    """Return the seconds of a step's critical path in calls of worker groups and below them, by method.

    In own loops, which have no worker groups, in the methods of workers.
    """
    is_own = own_workers.is_own(root)
    called: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while waiting:
        node, above = waiting.pop()
        name = node.span.name
        if name.startswith(CALL_PREFIX) and (method := name.removeprefix(CALL_PREFIX)) not in above:
            above = (*above, method)
        elif is_own and not above and name.startswith(WORKER_PREFIX):
            above = (method_of(node.span),)
        if above:
            called[node.span.span_id] = above
        waiting += [(child, above) for child in node.children]
    sums: dict[str, float] = defaultdict(float)
    for segment in path:
        for method in called.get(segment.span_id, ()) if not segment.trace_id else ():
            sums[method] += segment.seconds
    return dict(sums)


def _sum_up(key: tuple[str, str, str], segments: Sequence[Segment], alike: set[tuple[str, str]]) -> PhaseTime:
    total = sum(segment.end_ns - segment.start_ns for segment in segments)
    longest = max(segments, key=lambda segment: segment.end_ns - segment.start_ns)
    methods = frozenset(segment.name for segment in segments if segment.kind in _METHODS)
    shared = any((method, longest.instance) in alike for method in methods)
    return PhaseTime(
        *key, total / 1e9, longest.instance, longest.name if longest.kind in _METHODS else "", methods, shared
    )


def _find_scopes(root: Node) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the scope of each span of a step, by span id: the outermost worker method, weight sync, checkpoint or validation."""
    waiting = [(root, NOWHERE, ("", ""))]
    while waiting:
        node, above, scope = waiting.pop()
        place = find_place(node.span, above)
        own = scope
        if scope[0] not in _NAMED and scope[0] != "worker":
            own = (place.kind, place.name)
        yield place.span_id, own
        waiting += [(child, place, own) for child in node.children]


def judge_phases(
    phase_times: Iterable[PhaseTime],
    step: Step,
    own: int,
    baselines: Baselines,
    floor: float,
    late: Mapping[str, float],
) -> Iterator[Verdict]:
    """Yield verdicts on the phases of a step that took longer than in other steps.

    Args:
        phase_times: Times of the phases of the step.
        step: The step.
        own: What the baselines know it by.
        baselines: Durations in all steps.
        floor: Minimum saving in seconds for a verdict.
        late: Seconds by which a rank came late to a method. A phase that a rank explains gets no verdict of its own.
    """
    measured = list(phase_times)
    for whole in measured:
        if whole.kind or whole.seconds < floor or baselines.is_first(whole.key, own):
            continue
        baseline = baselines.of_others(whole.key, own)
        if baseline is None or baseline.allows(whole.seconds, floor):
            continue
        pace = _measure_pace(measured, whole, own, baselines)
        if whole.seconds - pace * baseline.median < floor:  # all phases took longer: this one is not the cause
            continue
        excess = whole.seconds - baseline.median
        if any(late.get(method, 0.0) >= DETAIL_SHARE * excess for method in whole.methods):
            continue
        part = _find_cause(whole, excess, measured, own, baselines)
        cause = part.kind or ("phase" if part.phase else "step")
        yield Verdict(
            step.number,
            step.seconds,
            "phase",
            whole.phase or "step",
            cause,
            part.name or part.detail if part.kind else part.phase,
            excess,
            excess,
            instance=part.instance,
            uncertainty=step.uncertainty,
            alike=part.alike,
        )


def _measure_pace(measured: Iterable[PhaseTime], judged: PhaseTime, own: int, baselines: Baselines) -> float:
    """Return the factor by which the other phases of a step took longer than usual, at least 1.

    A machine under other load slows all phases alike. The median is weighted by time, so that a second slow phase does not hide
    the first, and a short one does not dominate.
    """
    factors: list[tuple[float, float]] = []
    for other in measured:
        if not other.kind and other is not judged and not baselines.is_first(other.key, own):
            baseline = baselines.of_others(other.key, own)
            if baseline is not None and baseline.median >= PACE_SECONDS:
                factors.append((other.seconds / baseline.median, baseline.median))
    if len(factors) < PACE_PHASES:
        return 1.0
    half, passed = sum(weight for _, weight in factors) / 2, 0.0
    for factor, weight in sorted(factors):
        passed += weight
        if passed >= half:
            return max(1.0, factor)
    return 1.0


def _find_cause(
    whole: PhaseTime, excess: float, measured: Iterable[PhaseTime], own: int, baselines: Baselines
) -> PhaseTime:
    """Return the part of a phase that explains most of its excess; the phase itself where none explains enough."""
    best, most = whole, DETAIL_SHARE * excess
    for part in measured:
        if part.phase == whole.phase and part.kind:
            baseline = baselines.of_others(part.key, own)
            beyond = part.seconds - (baseline.median if baseline else 0.0)
            if beyond >= most:
                best, most = part, beyond
    return best
