# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What held a step: verdicts, and what the step would have saved without it.

A verdict needs three things: it lies on the critical path of the step, it took longer than its peers by more than they differ among
each other, and without that the step would have been noticeably shorter. Rules and limits: ``docs/guide/verdicts.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from verl_otel.analysis import critical_path
from verl_otel.analysis.blame import decide_lag
from verl_otel.analysis.facts import Step, Verdict
from verl_otel.analysis.laggards import Lag, find_lags, may_be_long, measure_spans
from verl_otel.analysis.overruns import Overrun, decide_overruns, measure_calls, measure_phases
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.thresholds import LOOK_AHEAD, PHASE_SECONDS, RANK_SECONDS, STEP_SHARE, TRAJECTORY_SECONDS
from verl_otel.analysis.traces import Node
from verl_otel.analysis.typical import Typical, Yardstick, measure


class _Case(NamedTuple):
    """What has to be known of a step to judge it again."""

    step: Step
    """Without what is large."""
    lags: tuple[Lag, ...]
    overruns: tuple[Overrun, ...]
    calls: Mapping[str, float]
    """How many seconds of its critical path lie in each call of a worker group, by method."""


class Findings(NamedTuple):
    """What a step by itself says of what may have held it."""

    lags: tuple[Lag, ...]
    overruns: tuple[Overrun, ...]
    calls: Mapping[str, float]
    """As in `_Case`."""
    usual: Mapping[Hashable, Yardstick]
    """How long what its trajectories did took, by what it is."""


def examine(step: Step, root: Node, members: Sequence[Packed]) -> Findings:
    """Return what may have held a step, whatever other steps were like.

    Args:
        step: With its critical path and its stragglers.
        root: Its tree.
        members: The trajectories that it trained on, with their paths.
    """
    path = step.path or critical_path.of_step(root, {each.trace_id: each for each in members}, step.trajectories)
    return Findings(
        find_lags(path, root, members, _floor(step, TRAJECTORY_SECONDS)),
        () if step.failed else measure_phases(path, root),  # what an exception cut off is not comparable
        measure_calls(path, root) if step.stragglers else {},
        {key: found for key, values in measure_spans(members).items() if (found := measure(values))},
    )


class Judge:
    """Judges the steps of a run in the order of time.

    What a step is compared with becomes known by and by: `judge` says what can be said at once, `settle` what stands in the end. A
    verdict is final some steps later; nothing is kept of older steps but their verdicts.
    """

    def __init__(self) -> None:
        self._typical = Typical()
        self._cases: deque[_Case] = deque()
        self._final: dict[int, tuple[Verdict, ...]] = {}
        self._first: int | None = None

    def judge(self, step: Step, findings: Findings) -> tuple[Verdict, ...]:
        """Return the verdicts on a step as far as they are known now, the worst first.

        Args:
            step: With its stragglers.
            findings: What was found in it.
        """
        if self._first is None:
            self._first = step.trace_id
        floor = _floor(step, TRAJECTORY_SECONDS)
        lags = tuple(lag for lag in findings.lags if may_be_long(lag, self._typical, floor))
        for key, found in findings.usual.items():
            self._typical.take(key, step.trace_id, found)
        for overrun in findings.overruns:
            self._typical.learn(overrun.key, step.trace_id, [overrun.seconds])
        slim = step._replace(
            path=(), slowest=(), devices=(), phases=(), trajectories=(), verdicts=(), savings=(), groups=()
        )
        case = _Case(slim, lags, findings.overruns, findings.calls)
        self._cases.append(case)
        while len(self._cases) > LOOK_AHEAD:
            self._finish(self._cases.popleft())
        return self._decide(case)

    def settle(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        """Return the steps with the verdicts that stand at the end of the run."""
        final = dict(self._final)
        for case in self._cases:
            final[case.step.trace_id] = self._decide(case)
        return tuple(step._replace(verdicts=final.get(step.trace_id, ())) for step in steps)

    def _finish(self, case: _Case) -> None:
        verdicts = self._decide(case)
        if verdicts:
            self._final[case.step.trace_id] = verdicts

    def _decide(self, case: _Case) -> tuple[Verdict, ...]:
        step, lags, overruns, calls = case
        first = step.trace_id == self._first
        found: list[Verdict] = []
        for summed in (False, True):  # many short ones together only where no single one was long
            found = found or self._decide_lags(step, (lag for lag in lags if lag.summed == summed), first=first)
        if not first:  # the first step starts what the others find running
            ranks = _judge_ranks(step, calls)
            late = {verdict.cause_name: verdict.seconds for verdict in ranks}
            found += ranks
            found += decide_overruns(overruns, step, self._typical, _floor(step, PHASE_SECONDS), late)
        return tuple(sorted(found, key=lambda verdict: (-verdict.saved, -verdict.seconds, verdict.subject)))

    def _decide_lags(self, step: Step, lags: Iterable[Lag], *, first: bool) -> list[Verdict]:
        """Return verdicts on what the trajectories did that the step waited for: for each subject its worst."""
        worst: dict[tuple[str, str], Verdict] = {}
        for lag in lags:
            verdict = decide_lag(lag, step, self._typical, _floor(step, TRAJECTORY_SECONDS), first=first)
            if verdict is not None:
                key = (verdict.kind, verdict.subject)
                worst[key] = max(worst.get(key, verdict), verdict, key=lambda each: each.seconds)
        return list(worst.values())


def _floor(step: Step, seconds: float) -> float:
    """Return how many seconds are worth a verdict in this step: no less than clocks of different hosts may be apart."""
    return max(seconds, STEP_SHARE * step.seconds, step.uncertainty)


def _judge_ranks(step: Step, calls: Mapping[str, float]) -> list[Verdict]:
    """Return verdicts on ranks that others waited for, one for each rank: the delay that cost the step most.

    A call that is not on the critical path cost the step nothing, whoever came late to it, and no delay costs more than what the
    path spent in the call.
    """
    worst: dict[int, Verdict] = {}
    for each in step.stragglers:
        saved = min(each.seconds, calls.get(each.method, 0.0))
        before = worst.get(each.rank)
        if saved >= _floor(step, RANK_SECONDS) and (before is None or saved > before.saved):
            worst[each.rank] = Verdict(
                step.number,
                step.seconds,
                "rank",
                f"rank {each.rank}",
                "worker",
                each.method,
                each.seconds,
                saved,
                instance=each.instance,
                uncertainty=step.uncertainty,
            )
    return list(worst.values())
