# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a step of its spans, and one step of those that two ranks of a distributed loop recorded."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from verl_otel._internal.quantiles import pick_quantiles
from verl_otel.analysis.bounded_steps import SLOWEST_OF_STEP
from verl_otel.analysis.findings import find_phase
from verl_otel.analysis.model import CANCELLED, Failure, Phase, Segment, ShortRank, Step, Trajectory
from verl_otel.analysis.traces import critical_path, timeline
from verl_otel.analysis.traces.clocks import Context
from verl_otel.analysis.traces.span_names import CALL_PREFIX, PHASE_PREFIX
from verl_otel.analysis.traces.timeline import covered, read_whole
from verl_otel.analysis.traces.tree import Node, walk
from verl_otel.analysis.verdicts import judge, own_workers, stragglers
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE
from verl_otel.analysis.verdicts.stragglers import LEAD_SECONDS
from verl_otel.analysis.verdicts.what_if import find_savings
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr

_UPDATE: Final = "update_"
"""Begin of the names of methods that train; those of weights, which begin so, too, have no samples."""
_CALLS: Final = ("llm", "tool", "reward")
"""Kinds of activities whose failure may be why the score says nothing of the answer."""


class BuiltStep(NamedTuple):
    """What the spans of a step contain. It has no verdicts, no GPU time and no cost, and its path has no marks of what blocked it."""

    step: Step
    members: tuple[Trajectory, ...]
    """Those that it trained on, as far as they were found. What they name is this step."""
    others: tuple[Trajectory, ...]
    """Those that it took, or submitted, and did not train on."""
    findings: judge.Findings
    """What may have held it."""


def build(
    root: Node,
    trained: Mapping[int, Trajectory | None],
    filtered: Mapping[int, Trajectory],
    submitted: Sequence[Trajectory],
    attempt: int,
    context: Context,
) -> BuiltStep:
    """Return a step as its spans show it.

    Args:
        root: The root span of the step.
        trained: The trajectories that it trained on, by trace id; None: not found.
        filtered: Those that it waited for, too, and did not train on, as far as they were found.
        submitted: Those that it submitted, if it is of an own loop. It waited for those that failed or were cancelled
            before the end of gen, too.
        attempt: The attempt that it belongs to.
        context: The clocks of the run.
    """
    span, number = root.span, read_whole(root.span.attributes.get(attr.STEP_NUMBER))
    error, (line, instance, dead_child) = _find_error(span), _find_raised(root)
    found = {trace_id: member for trace_id, member in trained.items() if member is not None}
    members = tuple(one if number in (None, one.step) else one._replace(step=number) for one in found.values())
    others = {one.trace_id: one for one in (*submitted, *filtered.values()) if one.trace_id not in found}
    named = tuple(one if one.step is not None else one._replace(step=number) for one in others.values())

    phases = [child.span for child in root.children if child.span.name.startswith(PHASE_PREFIX)]
    total = max(1, span.end_ns - span.start_ns)
    by_key: dict[str, int] = defaultdict(int)
    for phase in phases:
        key = phase.name.removeprefix(PHASE_PREFIX)
        by_key[key] += max(0, min(phase.end_ns, span.end_ns) - max(phase.start_ns, span.start_ns))
    in_phases = covered([(phase.start_ns, phase.end_ns) for phase in phases], span.start_ns, span.end_ns)
    generations = [phase for phase in phases if phase.name == f"{PHASE_PREFIX}gen"]
    stopped = [one for one in submitted if one.stopped and generations and one.end_ns <= generations[-1].end_ns]
    rollouts_end_ns = max((one.end_ns for one in (*members, *stopped)), default=0)
    noticing = [phase for phase in generations if phase.end_ns >= rollouts_end_ns > 0] or generations[-1:]

    awaited = {**found, **filtered}
    path = critical_path.of_step(root, awaited, tuple(awaited))
    doubt = context.find_uncertainty(path)
    step = Step(
        number=number,
        trace_id=span.trace_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        failed=bool(error),
        phases=tuple(Phase(key, ns / 1e9, ns / total) for key, ns in by_key.items()),
        no_phase=(total - in_phases) / 1e9,
        trajectories=tuple(trained),
        gen_start_ns=noticing[0].start_ns if noticing else 0,
        rollouts_end_ns=rollouts_end_ns,
        gen_end_ns=noticing[0].end_ns if noticing else 0,
        path=path,
        savings=find_savings(path, tuple(awaited.values()), root),
        stragglers=(*stragglers.find(root, uncertainty=doubt), *own_workers.find(root, uncertainty=doubt)),
        slowest=find_slowest((*members, *(one for one in named if one.trace_id in filtered)), path),
        quantiles=pick_quantiles(sorted(member.seconds for member in members)),
        lifetimes=pack_lifetimes(members, span.start_ns),
        uncertainty=doubt,
        members=len(trained),
        blind_spots=own_workers.find_blind_spots(root),
        error=error,
        reward=average_score(members) if attr.STEP_LINEAGE in span.attributes else None,
        attempt=attempt,
        failures=_find_failures({one.trace_id: one for one in (*members, *submitted)}.values()),
        short_ranks=tuple(_find_short_ranks(root)),
        error_line=line,
        error_instance=instance,
        dead_child=dead_child,
    )
    return BuiltStep(step, members, named, judge.examine(step, root, tuple(awaited.values())))


def find_slowest(taken: Iterable[Trajectory], path: Iterable[Segment]) -> tuple[Trajectory, ...]:
    """Return the slowest trajectories that a step took, the one that ended last, and those on its path."""
    ordered = sorted(taken, key=lambda trajectory: trajectory.start_ns - trajectory.end_ns)
    chosen = ordered[:SLOWEST_OF_STEP]
    if ordered and (last := max(ordered, key=lambda trajectory: trajectory.end_ns)) not in chosen:
        chosen[-1] = last
    awaited = {segment.trace_id for segment in path}
    chosen += [trajectory for trajectory in ordered if trajectory.trace_id in awaited and trajectory not in chosen]
    return tuple(map(timeline.with_parts, chosen))


def average_score(members: Sequence[Trajectory]) -> float | None:
    """Return the mean score of the trajectories that a step of an own loop trained on; None where some have none."""
    scores = [member.score for member in members if member.score is not None]
    return sum(scores) / len(scores) if scores and len(scores) == len(members) else None


def pack_lifetimes(members: Iterable[Trajectory], start_ns: int) -> bytes:
    """Return begin and end of trajectories in seconds from a start, those that ended first before the others, as an array of C floats."""
    ordered = sorted(members, key=lambda one: one.end_ns)
    return array("f", [(at - start_ns) / 1e9 for one in ordered for at in (one.start_ns, one.end_ns)]).tobytes()


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


# -- One step of what two ranks recorded --


class Draft(NamedTuple):
    """A step without what depends on its whole window: what follows it, GPU time and cost.

    Its critical path has marks of what blocked it, and its verdicts are those that the steps before allow.
    """

    step: Step
    members: tuple[Trajectory, ...]


def join(known: Draft, other: Draft) -> Draft:
    """Return one step of what two ranks recorded: the one that the other waited for, that lost more, or took longer, with all trajectories."""
    first, second = known, other
    ends, starts = (known.step.end_ns, other.step.end_ns), (known.step.start_ns, other.step.start_ns)
    # Ranks that do not wait for each other differ in time.
    if min(ends) > max(starts) and _measure(other.step) > _measure(known.step):
        first, second = other, known
    ahead = _find_lead(first.step, second.step)
    if ahead < -LEAD_SECONDS:
        first, second = second, first
    members = (*first.members, *second.members)
    step = first.step._replace(
        trajectories=(*first.step.trajectories, *second.step.trajectories),
        members=first.step.members + second.step.members,
        quantiles=pick_quantiles(sorted(member.seconds for member in members)),
        lifetimes=pack_lifetimes(members, first.step.start_ns),
        slowest=find_slowest((*first.step.slowest, *second.step.slowest), first.step.path),
        reward=average_score(members),
        is_shared=first.step.is_shared or abs(ahead) <= LEAD_SECONDS,
    )
    return Draft(step, members)


def _find_lead(step: Step, other: Step) -> float:
    """Return by how many seconds what delayed a step of one rank ended before what delayed that of another one; infinite where it lost much more.

    A rank that waits does so in a later phase than the one that it waits for, or in the same.
    """
    (saved, end_ns), (other_saved, other_end_ns) = _find_delay(step), _find_delay(other)
    if not end_ns or not other_end_ns or other_saved < DETAIL_SHARE * saved:
        return math.inf
    return (other_end_ns - end_ns) / 1e9


def _find_delay(step: Step) -> tuple[float, int]:
    """Return the largest saving of a step, and the end of the phase that it is about; 0: unknown."""
    if not step.verdicts:
        return 0.0, 0
    phase = find_phase(step, step.verdicts[0])
    return step.verdicts[0].saved, max((part.end_ns for part in step.path if part.phase == phase), default=0)


def _measure(step: Step) -> tuple[float, float]:
    return max((verdict.saved for verdict in step.verdicts), default=0.0), step.seconds
