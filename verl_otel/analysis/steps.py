# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Makes steps in stages: built from spans, judged beside others, complete with their window, settled at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from verl_otel._internal.quantiles import pick_quantiles
from verl_otel.analysis.bounded_steps import SLOWEST_OF_STEP
from verl_otel.analysis.findings import find_phase
from verl_otel.analysis.gpu.accounting import find_cost, lose
from verl_otel.analysis.model import DeviceTime, Segment, Step, Trajectory, Verdict
from verl_otel.analysis.step_lengths import find_repeated
from verl_otel.analysis.traces import critical_path, timeline
from verl_otel.analysis.traces.clocks import Context
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts import judge, own_workers, stragglers
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE
from verl_otel.analysis.verdicts.stragglers import LEAD_SECONDS
from verl_otel.analysis.verdicts.what_if import find_savings
from verl_otel.semconv import attributes as attr


class BuiltStep(NamedTuple):
    """What the spans of a step contain. Its path is not marked yet; it has no groups, verdicts, GPU time, cost."""

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
        submitted: Those that it submitted, if it is of an own loop.
        attempt: The attempt that it belongs to.
        context: Data about the whole run.
    """
    found = {trace_id: member for trace_id, member in trained.items() if member is not None}
    awaited = {**found, **filtered}
    path = critical_path.of_step(root, awaited, tuple(awaited))
    doubt = context.find_uncertainty(path)
    bare = timeline.build_step(root, trained, submitted)
    number = bare.number
    members = tuple(one if number in (None, one.step) else one._replace(step=number) for one in found.values())
    others = {one.trace_id: one for one in (*submitted, *filtered.values()) if one.trace_id not in found}
    named = tuple(one if one.step is not None else one._replace(step=number) for one in others.values())
    step = bare._replace(
        path=path,
        stragglers=(*stragglers.find(root, uncertainty=doubt), *own_workers.find(root, uncertainty=doubt)),
        blind_spots=own_workers.find_blind_spots(root),
        uncertainty=doubt,
        savings=find_savings(path, tuple(awaited.values()), root),
        slowest=find_slowest((*members, *(one for one in named if one.trace_id in filtered)), path),
        attempt=attempt,
        reward=average_score(members) if attr.STEP_LINEAGE in root.span.attributes else None,
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


class JudgedStep(NamedTuple):
    """A step without what depends on its whole window: what follows it, GPU time and cost.

    Its critical path has marks of what blocked it, and its verdicts are those that the steps before allow.
    """

    step: Step
    members: tuple[Trajectory, ...]


def join(known: JudgedStep, other: JudgedStep) -> JudgedStep:
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
        lifetimes=timeline.pack_lifetimes(members, first.step.start_ns),
        slowest=find_slowest((*first.step.slowest, *second.step.slowest), first.step.path),
        reward=average_score(members),
        is_shared=first.step.is_shared or abs(ahead) <= LEAD_SECONDS,
    )
    return JudgedStep(step, members)


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


def complete(
    judged: JudgedStep,
    next_ns: int,
    between: tuple[Segment, ...],
    open_ns: int,
    devices: tuple[DeviceTime, ...],
    *,
    needs_spread: bool,
) -> Step:
    """Return a step with what its whole window adds.

    Args:
        judged: The step.
        next_ns: Start of the next step, or end of the run.
        between: Critical path from its end until then, or until a step that did not end.
        open_ns: Start of that step; 0: there is none.
        devices: GPU time from its start until then.
        needs_spread: Whether equal scores of a group have no gradient.
    """
    return judged.step._replace(
        devices=devices,
        cost=find_cost(judged.step, judged.members, devices, needs_spread=needs_spread),
        next_ns=next_ns,
        open_ns=open_ns,
        between_path=between,
        between_groups=critical_path.group(between),
    )


def settle(
    steps: Sequence[Step],
    find_verdicts: Callable[[Step], tuple[Verdict, ...]],
    unused: Mapping[int | None, dict[str, int]],
) -> tuple[tuple[Step, ...], dict[str, int]]:
    """Return the steps as they are at the end of the run, and the unused tokens that belong to no step.

    Tokens generated for a step number are attributed to the last step of that number: a resumed run repeats earlier
    ones.

    Args:
        steps: The steps in the order of time.
        find_verdicts: Returns the final verdicts on a step.
        unused: Response tokens that no step trained on, by the step for which they were generated and by reason.
    """
    repeated = find_repeated([(step.attempt, step.number) for step in steps])
    last: dict[int | None, int] = {
        step.number: place for place, step in enumerate(steps) if step.number is not None and step.cost
    }
    settled = []
    for place, step in enumerate(steps):
        is_lost, cost = step.failed or place in repeated, step.cost
        if cost is not None:
            cost = lose(cost) if is_lost else cost
            if last.get(step.number) == place and step.number in unused:
                cost = cost._replace(wasted_tokens=dict(Counter(cost.wasted_tokens) + Counter(unused[step.number])))
        settled.append(step._replace(verdicts=find_verdicts(step), repeated=place in repeated, cost=cost))
    rest = sum((Counter(tokens) for number, tokens in unused.items() if number not in last), Counter[str]())
    return tuple(settled), dict(rest)
