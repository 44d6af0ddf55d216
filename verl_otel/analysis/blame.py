# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether what a step waited for was too slow, and who is named for it: one trajectory, or the smallest group that explains it."""

from __future__ import annotations

from collections.abc import Iterable

from verl_otel.analysis.facts import Step, Verdict
from verl_otel.analysis.laggards import SERVED, Lag, Late
from verl_otel.analysis.thresholds import GROUP_SHARE
from verl_otel.analysis.typical import Typical


def decide_lag(lag: Lag, step: Step, typical: Typical, floor: float, *, first: bool) -> Verdict | None:
    """Return the verdict on a lag, if it deserves one.

    Args:
        lag: What the trajectory that the step waited for took time for.
        step: The step.
        typical: How long things take in other steps.
        floor: Seconds that are worth a verdict.
        first: Whether it is the first step of the run, in which everything is slower than later.
    """
    run = typical.of_others(lag.key, step.trace_id)
    known = [each for each in (lag.here, lag.elsewhere, run) if each is not None]
    beyond = [each for each in known if not each.allows(lag.seconds, floor)]
    starting = first or typical.is_first(lag.key, step.trace_id)
    if not beyond or (starting and (lag.cold or len(beyond) < len(known))):
        return None
    usual = max(each.median for each in beyond) if starting else min(each.median for each in beyond)
    excess = min(lag.seconds - usual, lag.inside)
    alone, together, group = _shorten(lag, usual, excess, floor)
    kind, subject, saved = "trajectory", lag.label, alone
    if alone < GROUP_SHARE * together:
        kind, subject = _name_group(lag, group)
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
        lag.kind,
        lag.name,
        excess,
        saved,
        lag.wait.trace_id if single else 0,
        lag.turn if single else None,
        lag.instance,
        step.uncertainty,
    )


def _shorten(lag: Lag, usual: float, excess: float, floor: float) -> tuple[float, float, list[Late]]:
    """Return how many seconds a usual duration would have saved: in this trajectory alone, in all, and who the others are."""
    wait, group = lag.wait, []
    in_time = max(lag.rest_ns, wait.begin_ns)
    alone = together = max(in_time, wait.end_ns - _to_ns(excess + _beyond(lag.again, usual, floor)))
    for late in lag.late:
        beyond = _beyond(late.lengths, usual, floor)
        end = min(late.end_ns, wait.end_ns)
        alone = max(alone, end)
        together = max(together, end - _to_ns(beyond))
        if beyond > 0:
            group.append(late)
    return (wait.end_ns - alone) / 1e9, (wait.end_ns - together) / 1e9, group


def _beyond(lengths: Iterable[float], usual: float, floor: float) -> float:
    return sum(seconds - usual for seconds in lengths if seconds - usual >= floor)


def _to_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _name_group(lag: Lag, group: Iterable[Late]) -> tuple[str, str]:
    """Return kind and name of the smallest group that several slow trajectories make; empty where they share nothing."""
    if lag.kind == "tool":
        return "tool", lag.name
    if lag.kind == "reward":
        return "reward", lag.name or "reward"
    if lag.kind in SERVED and lag.elsewhere is not None and all(late.instance == lag.instance for late in group):
        return "replica", lag.instance
    return "", ""
