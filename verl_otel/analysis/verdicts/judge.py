# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decides what held a step: the causes, and how much shorter it would have been without each.

A verdict has three conditions: the cause lies on the critical path of the step, it exceeds its peers by more than their
spread, and without it the step would have been noticeably shorter. Rules and limits: ``docs/explanation/verdicts.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from verl_otel.analysis.model import Step, Trajectory, Verdict
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.typed import Keyed
from verl_otel.analysis.verdicts import own_workers
from verl_otel.analysis.verdicts.baselines import (
    DETAIL_SHARE,
    FEWEST_IN_TURN,
    GROUP_SHARE,
    LOOK_AHEAD,
    PHASE_SECONDS,
    RANK_SECONDS,
    STEP_SHARE,
    TRAJECTORY_SECONDS,
    USUAL_FLOORS,
    USUAL_LENGTH,
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

# -- Decides whether what a step waited for was too slow, and names the cause: one trajectory, or the smallest group
# that explains it --


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
        lost_calls=len(work.lost) if single and sum(work.lost) >= DETAIL_SHARE * (excess + again) else 0,
        cancelled=single and work.cancelled,
    )


def _shorten(
    work: AwaitedWork, typical_seconds: float, excess: float, floor: float
) -> tuple[float, float, float, list[SlowTrajectory]]:
    """Return the seconds that a typical duration would have saved, here and in all, and the other trajectories.

    ``excess`` is that of all occurrences in the awaited trajectory.

    The third value is what would have been saved at most, if the awaited trajectory had taken no time: what others were
    waited for remains.
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
    if work.kind in ("trajectory", "llm"):
        return "code", "trajectories"
    return "", ""


# -- Verdicts: the causes of slow steps, and how much shorter a step would have been without each --


_LENGTH: Final = ("length of the step",)
"""Key of the baseline of whole steps."""


class Findings(NamedTuple):
    """Possible causes found in one step, before it is compared with others."""

    awaited_work: tuple[AwaitedWork, ...]
    phase_times: tuple[PhaseTime, ...]
    calls: Mapping[str, float]
    """Seconds of its critical path in calls of worker groups, by method."""
    baselines: Keyed[Key, Baseline]
    """Baselines of what its trajectories did, by kind of work."""


def examine(step: Step, root: Node, members: Sequence[Trajectory]) -> Findings:
    """Return the possible causes in one step, independently of other steps.

    Args:
        step: With its critical path and its stragglers.
        root: Its tree.
        members: The trajectories that it waited for, with their paths, trained on or not.
    """
    path = step.path
    whole = [member for member in members if not member.stopped]  # what was cut off is no measure for others
    return Findings(
        find_awaited_work(path, root, members, _floor(step, TRAJECTORY_SECONDS)),
        () if step.failed else measure_phases(path, root),  # what an exception cut off is not comparable
        measure_calls(path, root) if step.stragglers else {},
        Keyed((key, baseline) for key, values in measure_spans(whole).items() if (baseline := measure(values))),
    )


class Judge(msgspec.Struct):
    """Judges the steps of a run in the order of time.

    The baselines grow with the run: `judge` returns preliminary verdicts, `settle` the final ones. A
    verdict is final some steps later; of older steps only the verdicts are kept.
    """

    _baselines: Baselines = msgspec.field(default_factory=Baselines)
    _recent: list[tuple[Step, Findings]] = []
    """Steps without their large fields, which may be judged again."""
    _final: dict[int, tuple[Verdict, ...]] = {}
    _first: dict[int, tuple[int, int | None, int]] = {}
    """The first step of each attempt: its trace, its number, and its end. The other ranks of a distributed loop record it, too."""

    def judge(self, step: Step, findings: Findings) -> tuple[Verdict, ...]:
        """Return the preliminary verdicts on a step, the largest saving first.

        Args:
            step: With its stragglers.
            findings: The possible causes found in it.
        """
        self._first.setdefault(step.attempt, (step.trace_id, step.number, step.end_ns))
        floor = _floor(step, TRAJECTORY_SECONDS)
        awaited_work = tuple(work for work in findings.awaited_work if may_be_long(work, self._baselines, floor))
        for key, baseline in findings.baselines.items():
            self._baselines.take(key, step.trace_id, baseline)
        for phase_time in findings.phase_times:
            self._baselines.learn(phase_time.key, step.trace_id, [phase_time.seconds])
        if not step.failed:
            self._baselines.learn(_LENGTH, step.trace_id, [step.seconds])
        slim = step.slim()
        slim_findings = findings._replace(awaited_work=awaited_work, baselines=Keyed())
        self._recent.append((slim, slim_findings))
        while len(self._recent) > LOOK_AHEAD:
            old, found = self._recent.pop(0)
            verdicts = self._decide(old, found)
            if verdicts:
                self._final[old.trace_id] = verdicts
        return self._decide(slim, slim_findings)

    def settle(self) -> Mapping[int, tuple[Verdict, ...]]:
        """Return the verdicts that stand at the end of the run, by the trace id of the step."""
        return {**self._final, **{step.trace_id: self._decide(step, found) for step, found in self._recent}}

    def _decide(self, step: Step, found: Findings) -> tuple[Verdict, ...]:
        if step.interrupted:
            return ()
        trace_id, number, end_ns = self._first[step.attempt]
        first = step.trace_id == trace_id or (step.number == number and step.start_ns < end_ns)
        verdicts: list[Verdict] = []
        floor = self._find_floor(step)
        for summed in (False, True):  # the sum of many short spans only where no single one was long
            # Of each subject and kind of work the one with the largest excess.
            worst: dict[tuple[str, str, str, str], Verdict] = {}
            for work in (work for work in found.awaited_work if work.summed == summed and not verdicts):
                verdict = judge_awaited_work(work, step, self._baselines, floor, first=first)
                if verdict is not None:
                    key = (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name)
                    worst[key] = max(worst.get(key, verdict), verdict, key=lambda candidate: candidate.seconds)
            verdicts += _join(worst.values())
        if not first:  # the first step includes the start-up
            ranks = _judge_ranks(step, found.calls)
            late = {verdict.cause_name: verdict.seconds for verdict in ranks}
            verdicts += ranks
            verdicts += judge_phases(
                found.phase_times, step, step.trace_id, self._baselines, _floor(step, PHASE_SECONDS), late
            )
        return sort(verdicts)

    def _find_floor(self, step: Step) -> float:
        """Return the minimum saving for a verdict on a trajectory. A step that took no longer than usual was hardly delayed by one."""
        usual, floor = self._baselines.of_others(_LENGTH, step.trace_id), _floor(step, TRAJECTORY_SECONDS)
        is_usual = usual is not None and step.seconds <= USUAL_LENGTH * usual.median
        return USUAL_FLOORS * floor if is_usual else floor


def _join(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield verdicts, those on several trajectories that a step waited for in turn as one on the tool or the reward that was slow in all."""
    by_work: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.kind == "trajectory" and verdict.cause in ("tool", "reward") and not verdict.failed:
            by_work[verdict.cause, verdict.cause_name].append(verdict)
        else:
            yield verdict
    for same in by_work.values():
        if len(same) < FEWEST_IN_TURN:
            yield from same
            continue
        first = same[0]
        yield first._replace(
            kind=first.cause,
            subject=first.cause_name or first.cause,
            seconds=sum(verdict.seconds for verdict in same),
            saved=sum(verdict.saved for verdict in same),
            lead=sum(verdict.lead for verdict in same),
            trace_id=0,
            turn=None,
            instance=first.instance if len({verdict.instance for verdict in same}) == 1 else "",
            lost_calls=0,
        )


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
