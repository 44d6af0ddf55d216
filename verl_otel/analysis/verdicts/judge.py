# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decides what held a step and names it: the causes of slow steps, and how much shorter a step would have been without each.

A verdict has three conditions: the cause lies on the critical path of the step, it exceeds its peers by more than their spread,
and without it the step would have been noticeably shorter. Rules and limits: ``docs/explanation/verdicts.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from verl_otel.analysis.model import Step, Trajectory, Verdict
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts import own_workers
from verl_otel.analysis.verdicts.baselines import (
    DETAIL_SHARE,
    GROUP_SHARE,
    LOOK_AHEAD,
    PHASE_SECONDS,
    RANK_SECONDS,
    STEP_SHARE,
    TRAJECTORY_SECONDS,
    Baseline,
    Baselines,
    Key,
    measure,
)
from verl_otel.analysis.verdicts.slow_phases import PhaseTime, judge_phases, measure_calls, measure_phases
from verl_otel.analysis.verdicts.slow_trajectories import (
    SERVED,
    AwaitedWork,
    SlowTrajectory,
    find_awaited_work,
    may_be_long,
    measure_spans,
)

# -- Decides whether what a step waited for was too slow, and names the cause: one trajectory, or the smallest group that explains it --


def judge_awaited_work(
    work: AwaitedWork, step: Step, baselines: Baselines, floor: float, *, first: bool
) -> Verdict | None:
    """Return the verdict on awaited work; None if it is not remarkable.

    Args:
        work: What the awaited trajectory spent time on.
        step: The step.
        baselines: Durations in other steps.
        floor: Minimum saving in seconds for a verdict.
        first: Whether it is the first step of the run, in which everything is slower.
    """
    run = baselines.of_others(work.key, step.trace_id)
    peers = [baseline for baseline in (work.here, work.elsewhere, run) if baseline is not None]
    beyond = [baseline for baseline in peers if not baseline.allows(work.seconds, floor)]
    starting = first or baselines.is_first(work.key, step.trace_id)
    if not beyond or (starting and (work.cold or len(beyond) < len(peers))):
        return None
    typical_seconds = (
        max(baseline.median for baseline in beyond) if starting else min(baseline.median for baseline in beyond)
    )
    excess = min(work.seconds - typical_seconds, work.inside)
    again = _beyond(work.again, typical_seconds, floor)
    alone, together, lead, group = _shorten(work, typical_seconds, excess + again, floor)
    kind, subject, saved = "trajectory", work.label, alone
    if alone < GROUP_SHARE * together:
        kind, subject = _name_group(work, group)
        saved = together
        if starting or not kind:
            return None
    if saved < floor or excess < floor:
        return None
    single = kind == "trajectory"
    return Verdict(
        step.number,
        step.seconds,
        kind,
        subject,
        work.kind,
        work.name,
        excess + again if single else excess,
        saved,
        work.wait.trace_id if single else 0,
        work.turn if single and not again else None,
        work.instance,
        step.uncertainty,
        lead=lead,
        failed=single and work.failed,
        lost_calls=len(work.lost) if single and sum(work.lost) >= DETAIL_SHARE * excess else 0,
        cancelled=single and work.cancelled,
    )


def _shorten(
    work: AwaitedWork, typical_seconds: float, excess: float, floor: float
) -> tuple[float, float, float, list[SlowTrajectory]]:
    """Return the seconds that a typical duration would have saved, in this trajectory alone and in all, and the other trajectories.

    ``excess`` is that of all occurrences in the awaited trajectory.

    The third value is what would have been saved at most, if the awaited trajectory had taken no time: what others were waited for remains.
    """
    wait, group = work.wait, []
    others = in_time = max(work.rest_ns, wait.begin_ns)
    alone = max(in_time, wait.end_ns - _to_ns(excess))
    together = alone
    for late in work.late:
        beyond = _beyond(late.lengths, typical_seconds, floor)
        end = min(late.end_ns, wait.end_ns)
        alone = max(alone, end)
        others = max(others, end - _to_ns(beyond))
        if beyond > 0:
            group.append(late)
    together = max(together, others)
    return (wait.end_ns - alone) / 1e9, (wait.end_ns - together) / 1e9, (wait.end_ns - others) / 1e9, group


def _beyond(lengths: Iterable[float], typical_seconds: float, floor: float) -> float:
    return sum(seconds - typical_seconds for seconds in lengths if seconds - typical_seconds >= floor)


def _to_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _name_group(work: AwaitedWork, group: Iterable[SlowTrajectory]) -> tuple[str, str]:
    """Return kind and name of the smallest group that slow trajectories have in common; empty if there is none."""
    if work.kind == "tool":
        return "tool", work.name
    if work.kind == "reward":
        return "reward", work.name or "reward"
    if work.kind in SERVED and work.elsewhere is not None and all(late.instance == work.instance for late in group):
        return "replica", work.instance
    return "", ""


# -- Verdicts: the causes of slow steps, and how much shorter a step would have been without each --


class _RecentStep(NamedTuple):
    """The data needed to judge a recent step again."""

    step: Step
    """The step without its large fields."""
    awaited_work: tuple[AwaitedWork, ...]
    phase_times: tuple[PhaseTime, ...]
    calls: Mapping[str, float]
    """Seconds of its critical path in calls of worker groups, by method."""


class Findings(NamedTuple):
    """Possible causes found in one step, before it is compared with others."""

    awaited_work: tuple[AwaitedWork, ...]
    phase_times: tuple[PhaseTime, ...]
    calls: Mapping[str, float]
    """As in `_RecentStep`."""
    baselines: Mapping[Key, Baseline]
    """Baselines of what its trajectories did, by kind of work."""


def examine(step: Step, root: Node, members: Sequence[Trajectory]) -> Findings:
    """Return the possible causes in one step, independently of other steps.

    Args:
        step: With its critical path and its stragglers.
        root: Its tree.
        members: The trajectories that it waited for, with their paths: those that it trained on, and those that it took and did not train on.
    """
    path = step.path
    whole = [member for member in members if not member.stopped]  # what was cut off is no measure for others
    return Findings(
        find_awaited_work(path, root, members, _floor(step, TRAJECTORY_SECONDS)),
        () if step.failed else measure_phases(path, root),  # what an exception cut off is not comparable
        measure_calls(path, root) if step.stragglers else {},
        {key: baseline for key, values in measure_spans(whole).items() if (baseline := measure(values))},
    )


class Judge(msgspec.Struct):
    """Judges the steps of a run in the order of time.

    The baselines grow with the run: `judge` returns preliminary verdicts, `settle` the final ones. A
    verdict is final some steps later; of older steps only the verdicts are kept.
    """

    _baselines: Baselines = msgspec.field(default_factory=Baselines)
    _recent: list[_RecentStep] = []
    _final: dict[int, tuple[Verdict, ...]] = {}
    _first: dict[int, int] = {}
    """The first step of each attempt."""

    def judge(self, step: Step, findings: Findings) -> tuple[Verdict, ...]:
        """Return the preliminary verdicts on a step, the largest saving first.

        Args:
            step: With its stragglers.
            findings: The possible causes found in it.
        """
        self._first.setdefault(step.attempt, step.trace_id)
        floor = _floor(step, TRAJECTORY_SECONDS)
        awaited_work = tuple(work for work in findings.awaited_work if may_be_long(work, self._baselines, floor))
        for key, baseline in findings.baselines.items():
            self._baselines.take(key, step.trace_id, baseline)
        for phase_time in findings.phase_times:
            self._baselines.learn(phase_time.key, step.trace_id, [phase_time.seconds])
        slim = step._replace(
            path=(), slowest=(), devices=(), phases=(), trajectories=(), verdicts=(), savings=(), groups=()
        )
        recent_step = _RecentStep(slim, awaited_work, findings.phase_times, findings.calls)
        self._recent.append(recent_step)
        while len(self._recent) > LOOK_AHEAD:
            self._finalise(self._recent.pop(0))
        return self._decide(recent_step)

    def settle(self) -> Mapping[int, tuple[Verdict, ...]]:
        """Return the verdicts that stand at the end of the run, by the trace id of the step."""
        return {**self._final, **{recent.step.trace_id: self._decide(recent) for recent in self._recent}}

    def _finalise(self, recent_step: _RecentStep) -> None:
        verdicts = self._decide(recent_step)
        if verdicts:
            self._final[recent_step.step.trace_id] = verdicts

    def _decide(self, recent_step: _RecentStep) -> tuple[Verdict, ...]:
        step, awaited_work, phase_times, calls = recent_step
        if step.interrupted:
            return ()
        first = step.trace_id == self._first[step.attempt]
        verdicts: list[Verdict] = []
        for summed in (False, True):  # the sum of many short spans only where no single one was long
            verdicts = verdicts or self._judge_awaited_work(
                step, (work for work in awaited_work if work.summed == summed), first=first
            )
        if not first:  # the first step includes the start-up
            ranks = _judge_ranks(step, calls)
            late = {verdict.cause_name: verdict.seconds for verdict in ranks}
            verdicts += ranks
            verdicts += judge_phases(
                phase_times, step, step.trace_id, self._baselines, _floor(step, PHASE_SECONDS), late
            )
        return sort(verdicts)

    def _judge_awaited_work(self, step: Step, awaited_work: Iterable[AwaitedWork], *, first: bool) -> list[Verdict]:
        """Return verdicts on the awaited work: for each subject and kind of work the one with the largest excess."""
        worst: dict[tuple[str, str, str, str], Verdict] = {}
        for work in awaited_work:
            verdict = judge_awaited_work(work, step, self._baselines, _floor(step, TRAJECTORY_SECONDS), first=first)
            if verdict is not None:
                key = (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name)
                worst[key] = max(worst.get(key, verdict), verdict, key=lambda candidate: candidate.seconds)
        return list(worst.values())


def sort(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the verdicts on a step, the largest saving first."""
    return tuple(sorted(verdicts, key=lambda verdict: (-verdict.saved, -verdict.seconds, verdict.subject)))


def _floor(step: Step, seconds: float) -> float:
    """Return the minimum saving for a verdict on this step: at least the uncertainty of its clocks."""
    return max(seconds, STEP_SHARE * step.seconds, step.uncertainty)


def _judge_ranks(step: Step, calls: Mapping[str, float]) -> list[Verdict]:
    """Return verdicts on late ranks, one per rank: the delay that cost the step most.

    A call that is not on the critical path cost the step nothing, and no delay costs more than the time that the
    path spent in the call.
    """
    worst: dict[int, Verdict] = {}
    for straggler in step.stragglers:
        saved = min(straggler.seconds, calls.get(straggler.method, 0.0))
        previous = worst.get(straggler.rank)
        if saved >= _floor(step, RANK_SECONDS) and (previous is None or saved > previous.saved):
            worst[straggler.rank] = Verdict(
                step.number,
                step.seconds,
                "rank",
                f"{'worker' if straggler.evidence in own_workers.EVIDENCE else 'rank'} {straggler.rank}",
                "worker",
                straggler.method,
                straggler.seconds,
                saved,
                instance=straggler.instance,
                uncertainty=step.uncertainty,
                rests_on="counters" if straggler.evidence == "cpu" else "spans",
            )
    return list(worst.values())


# -- What the causes of a step cost together: the combined savings of its verdicts --

_BETWEEN = "between"
ROLLOUT: tuple[str, ...] = ("trajectory", "replica", "tool", "reward", "loop")
"""Kinds of verdicts on rollouts."""
_INTERVALS: tuple[str, ...] = ("loop", "process")
"""Kinds of verdicts on intervals of the critical path, of which no two overlap."""


def sum_savings(step: Step) -> float:
    """Return the seconds that the causes of a step, and of what follows it, cost; 0 without verdicts.

    Phases are sequential, so that what their causes cost adds up. A verdict whose phase is unknown may be about any of them. What follows the
    step is apart from it, and its parts follow one another.
    """
    by_phase: dict[str, list[Verdict]] = {}
    for verdict in step.verdicts:
        if verdict.kind != _BETWEEN:
            by_phase.setdefault(_phase(step, verdict), []).append(verdict)
    unknown = _sum_phase(by_phase.pop("", []))
    return max(unknown, min(step.seconds, sum(map(_sum_phase, by_phase.values())))) + sum_between(step)


def sum_between(step: Step) -> float:
    """Return by how many seconds the next step started late, 0 without verdicts on what follows a step."""
    return min(step.between, sum(verdict.saved for verdict in step.verdicts if verdict.kind == _BETWEEN))


def _sum_phase(verdicts: Iterable[Verdict]) -> float:
    """Return what the causes of one phase cost together.

    Several causes of one awaited trajectory followed one another, and together cost no more than its lead over the others. Intervals on the path
    are apart from both. A verdict on the phase itself, or on a rank, may describe the same wait again.
    """
    intervals = work = saved = lead = same = 0.0
    for verdict in verdicts:
        if verdict.kind in _INTERVALS:
            intervals += verdict.saved
        elif verdict.kind in ROLLOUT:
            work += verdict.seconds
            saved = max(saved, verdict.saved)
            lead = max(lead, verdict.lead)
        else:
            same = max(same, verdict.saved)
    return max(intervals + max(saved, min(work, lead)), same)


def sum_shared(step: Step) -> float:
    """Return the seconds that the verdicts of a step have in common: each describes them as its own saving."""
    return max(0.0, sum(verdict.saved for verdict in step.verdicts) - sum_savings(step))


def _phase(step: Step, verdict: Verdict) -> str:
    """Return the phase that a verdict is about, empty where it is unknown."""
    if verdict.kind == "phase":
        return verdict.subject
    lengths: dict[str, int] = {}
    for segment in step.path:
        is_rank = verdict.kind == "rank" and segment.kind in ("worker", "call") and verdict.cause_name in segment.name
        is_rollout = verdict.kind in ROLLOUT and (segment.trace_id or segment.kind in ("start", "poll"))
        is_pause = verdict.kind == "process" and segment.kind == "paused" and segment.name == verdict.cause_name
        if is_rank or is_rollout or is_pause:
            lengths[segment.phase] = lengths.get(segment.phase, 0) + segment.end_ns - segment.start_ns
    if lengths:
        return max(lengths, key=lambda phase: lengths[phase])
    return "gen" if verdict.kind in ROLLOUT and any(phase.key == "gen" for phase in step.phases) else ""
