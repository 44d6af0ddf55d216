# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decides whether what a step waited for was too slow, and names the cause: one trajectory, or the smallest group that explains it."""

from __future__ import annotations

from collections.abc import Iterable

from verl_otel.analysis.model import Step, Verdict
from verl_otel.analysis.verdicts.baselines import Baselines
from verl_otel.analysis.verdicts.slow_trajectories import SERVED, AwaitedWork, SlowTrajectory
from verl_otel.analysis.verdicts.thresholds import GROUP_SHARE


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
    alone, together, group = _shorten(work, typical_seconds, excess, floor)
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
        excess,
        saved,
        work.wait.trace_id if single else 0,
        work.turn if single else None,
        work.instance,
        step.uncertainty,
    )


def _shorten(
    work: AwaitedWork, typical_seconds: float, excess: float, floor: float
) -> tuple[float, float, list[SlowTrajectory]]:
    """Return the seconds that a typical duration would have saved, in this trajectory alone and in all, and the other trajectories."""
    wait, group = work.wait, []
    in_time = max(work.rest_ns, wait.begin_ns)
    alone = together = max(in_time, wait.end_ns - _to_ns(excess + _beyond(work.again, typical_seconds, floor)))
    for late in work.late:
        beyond = _beyond(late.lengths, typical_seconds, floor)
        end = min(late.end_ns, wait.end_ns)
        alone = max(alone, end)
        together = max(together, end - _to_ns(beyond))
        if beyond > 0:
            group.append(late)
    return (wait.end_ns - alone) / 1e9, (wait.end_ns - together) / 1e9, group


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
