# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The line of code at which what a verdict names stood meanwhile.

The lines come from spans ``verl.thread.stood``, which processes write only for what took longer there than usual. They name no cause of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from verl_otel.analysis.model import Step, Verdict
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE
from verl_otel.analysis.verdicts.blocked_loops import Blocking, count_seconds, cut_to, find_times

CODE: Final = "code"
"""Kind of a verdict on what several trajectories did outside of calls. Only a line says that they waited for the same."""
_OF_TRAJECTORIES: Final = frozenset(("tool", "reward", CODE))
"""Kinds of verdicts on what several trajectories have in common."""


def name_lines(step: Step, verdicts: Iterable[Verdict], stood: Sequence[Blocking]) -> list[Verdict]:
    """Return verdicts on a step with the lines at which their causes stood, without those that nothing but a line could explain.

    Args:
        step: The step.
        verdicts: The verdicts on it.
        stood: The times for which something stood at one line, during the step and after it.
    """
    named = (_name_line(step, verdict, stood) for verdict in verdicts)
    return [verdict for verdict in named if verdict.kind != CODE or verdict.cause != "trajectory" or verdict.line]


def _name_line(step: Step, verdict: Verdict, stood: Sequence[Blocking]) -> Verdict:
    """Return a verdict with the line at which one thread or task stood for at least half of what it took too long, if it did."""
    if verdict.kind == "trajectory":
        own = [stay for stay in stood if stay.trace_id == verdict.trace_id]
    elif verdict.kind in ("phase", "between"):
        own = [stay for stay in stood if not stay.trace_id and stay.instance == verdict.instance]
    elif verdict.kind in _OF_TRAJECTORIES:
        own = _find_holders([stay for stay in stood if stay.trace_id])
    else:
        return verdict
    times, seconds = find_times(step, verdict), defaultdict[tuple[str, int], float](float)
    for stay in own:
        seconds[stay.line, stay.trace_id] += count_seconds(cut_to(stay, times))
    longest = max(seconds, key=lambda place: seconds[place], default=("", 0))
    return verdict._replace(line=longest[0]) if seconds[longest] >= DETAIL_SHARE * verdict.seconds else verdict


def _find_holders(stays: Sequence[Blocking]) -> list[Blocking]:
    """Return what the others wait for: where one trajectory holds a lock, it is at a line at which no other one is.

    Each is counted once for a line. All of them, where no line stands out.
    """
    counts = Counter(line for line, _ in {(stay.line, stay.trace_id) for stay in stays})
    alone = [line for line, count in counts.items() if count == 1]
    return [stay for stay in stays if len(alone) != 1 or stay.line in alone]
