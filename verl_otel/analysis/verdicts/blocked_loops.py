# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts on event loops that were blocked, and on processes that were paused, while a step waited for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from verl_otel.analysis.model import Step, Trajectory, Verdict
from verl_otel.analysis.traces.blocked_loops import KIND as CAUSE
from verl_otel.analysis.traces.blocked_loops import PROCESS, Blocking
from verl_otel.analysis.verdicts.thresholds import DETAIL_SHARE, PHASE_SECONDS, STEP_SHARE, TRAJECTORY_SECONDS

KIND, PAUSED_KIND = "loop", "process"
"""Kinds of these verdicts: a blocked event loop, and a process that was paused."""
_EXPLAINED: Final = frozenset(("trajectory", "replica", "tool", "reward"))
"""Kinds of verdicts that see a blocked loop as a slow call."""
_OF_TRAINER: Final = frozenset(("phase", "step", "call", "poll"))
"""Causes that may be the wait for a process that has no spans of its own."""
_USUAL: Final = frozenset(("cpu", "executor", "collection", "interpreter"))
"""Reasons that every step may have: verl 0.8, for example, collects garbage in each step."""


def judge(step: Step, waits: Iterable[Blocking], members: Sequence[Trajectory], usual: float) -> tuple[Verdict, ...]:
    """Return verdicts on the blocked loops and paused processes that a step waited for, one for each process and what blocked it.

    A callback that blocked its loop, and a process that was stopped, need no comparison with other steps: neither should happen at all.
    Every other reason may be usual, and counts only where it made the step longer than the steps before.

    Args:
        step: The step.
        waits: The intervals on its critical path.
        members: The trajectories that it trained on.
        usual: Median of the seconds of the steps before; 0: unknown.
    """
    by_subject: dict[tuple[str, str, str], list[Blocking]] = defaultdict(list)
    for blocking in waits:
        by_subject[blocking.instance, blocking.name, blocking.kind].append(blocking)
    verdicts = []
    for blockings in by_subject.values():
        seconds = _count_seconds(blockings)
        if seconds < max(_find_least(blockings), STEP_SHARE * step.seconds, step.uncertainty):
            continue
        if blockings[0].reason in _USUAL and step.seconds - usual < seconds / 2:
            continue
        waiting = len({member.trace_id for member in members if _has_waited(member, blockings)})
        verdicts.append(_make(step, blockings, seconds, seconds)._replace(waiting=waiting))
    return tuple(verdicts)


def _count_seconds(blockings: Iterable[Blocking]) -> float:
    return sum(blocking.end_ns - blocking.start_ns for blocking in blockings) / 1e9


def _find_least(blockings: Sequence[Blocking]) -> float:
    """Return the seconds below which intervals of one process and reason get no verdict: a busy machine delays a process, too."""
    return TRAJECTORY_SECONDS if all(blocking.reason == "callback" for blocking in blockings) else PHASE_SECONDS


def _make(step: Step, blockings: Sequence[Blocking], seconds: float, saved: float) -> Verdict:
    first = blockings[0]
    return Verdict(
        step.number,
        step.seconds,
        KIND if first.kind == CAUSE else PAUSED_KIND,
        first.instance,
        first.kind,
        first.name,
        seconds,
        saved,
        max((blocking.trace_id for blocking in blockings), default=0),
        instance=first.instance,
        uncertainty=step.uncertainty,
    )


def name_pauses(step: Step, pauses: Mapping[str, Sequence[Blocking]]) -> Step:
    """Return a step in which verdicts on processes that were paused meanwhile say so.

    A verdict compares a process with others; the pause is why it took longer.

    Args:
        step: With its verdicts.
        pauses: The intervals in which processes were paused during the step, by process.
    """
    if not pauses or not step.verdicts:
        return step
    return step._replace(verdicts=tuple(_name_pause(step, verdict, pauses) for verdict in step.verdicts))


def _name_pause(step: Step, verdict: Verdict, pauses: Mapping[str, Sequence[Blocking]]) -> Verdict:
    if verdict.kind in (KIND, PAUSED_KIND, "between"):
        return verdict
    names = [verdict.instance]
    if verdict.cause in _OF_TRAINER:
        names += [name for name in pauses if name != verdict.instance]
    for instance in names:
        by_name: dict[str, list[Blocking]] = defaultdict(list)
        for pause in pauses.get(instance, ()):
            if instance == verdict.instance or pause.reason == PROCESS:
                by_name[pause.name].append(pause)
        for blockings in by_name.values():
            if _count_seconds(blockings) >= DETAIL_SHARE * verdict.seconds:
                return _make(step, blockings, min(_count_seconds(blockings), verdict.seconds), verdict.saved)
    return verdict


def _has_waited(member: Trajectory, blockings: Sequence[Blocking]) -> bool:
    """Return whether a trajectory was in the process of one of the intervals, and is not what blocked it."""
    instance = blockings[0].instance
    times = [(member.start_ns, member.end_ns)] if member.instance == instance else []
    if not times:
        times = [
            (activity.start_ns, activity.end_ns) for activity in member.activities if activity.instance == instance
        ]
    return any(
        start < blocking.end_ns and end > blocking.start_ns and blocking.trace_id != member.trace_id
        for start, end in times
        for blocking in blockings
    )


def drop_explained(step: Step, loops: Sequence[Verdict]) -> Step:
    """Return a step without verdicts on calls that were slow because their event loop was blocked.

    Args:
        step: With its other verdicts.
        loops: The verdicts on blocked loops and paused processes.
    """
    blocked = sum(verdict.seconds for verdict in loops)
    if not blocked:
        return step
    paused = {verdict.instance: verdict.seconds for verdict in loops if verdict.kind == PAUSED_KIND}
    least = max(TRAJECTORY_SECONDS, STEP_SHARE * step.seconds)

    def explain(verdict: Verdict) -> float:
        return blocked if verdict.kind in _EXPLAINED else paused.get(verdict.instance, 0.0)

    kept = [verdict for verdict in step.verdicts if not explain(verdict) or verdict.seconds - explain(verdict) >= least]
    return step._replace(verdicts=tuple(kept))
