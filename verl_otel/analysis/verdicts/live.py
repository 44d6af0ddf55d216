# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts on a step while the run goes on, from what the trainer itself knows: its phases, and what it did between two steps.

The rules are those of `slow_phases`, with the steps before as peers. Memory is that of the baselines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from verl_otel.analysis.model import Step, Verdict
from verl_otel.analysis.verdicts.baselines import PHASE_SECONDS, STEP_SHARE, Baselines
from verl_otel.analysis.verdicts.slow_phases import PhaseTime, judge_phases

PHASE, BETWEEN = "phase", "between"
"""Kinds of what held a step: a phase of it, or something before it began."""
OWN_CODE: Final = "own code"
"""Time between two steps in no phase, in no tracker and in no data loader."""
MIN_PEERS: Final = 2
"""Minimum number of steps before, without the first occurrence: of two steps alone, either may be the unusual one. `explain` has later steps, too."""
_NESTED_SHARE: Final = 0.8
"""An inner part that explains this share of the excess of an outer one is named instead."""


class Held(NamedTuple):
    """What made the period of a step longer than that of the steps before."""

    kind: str
    """`PHASE` or `BETWEEN`."""
    cause: str
    """Key of a phase, ``logging``, ``data_loading`` or `OWN_CODE`."""
    seconds: float
    """By how much."""


class LiveJudge:
    """Judges the steps of a running training in the order of time."""

    def __init__(self) -> None:
        self._baselines = Baselines()
        self._steps = 0

    def judge(self, seconds: float, phases: Mapping[str, float], between: Mapping[str, float]) -> Held | None:
        """Return what held a step; None if nothing did, or too little is known.

        Args:
            seconds: Length of the step.
            phases: Seconds by phase.
            between: Seconds before it by kind of work, since the end of the step before.
        """
        self._steps += 1
        lengths = {**phases, **{f"{BETWEEN} {key}": value for key, value in between.items()}}
        parts = {key: PhaseTime(key, "", "", value) for key, value in lengths.items()}
        for part in parts.values():
            self._baselines.learn(part.key, self._steps, [part.seconds])
        step = Step(None, self._steps, 0, round(seconds * 1e9), False, (), 0.0, (), 0, 0, 0)
        floor = max(PHASE_SECONDS, STEP_SHARE * seconds)
        verdicts = judge_phases(parts.values(), step, self._baselines, floor, {})
        return _choose((verdict for verdict in verdicts if self._has_peers(parts[verdict.subject])), lengths)

    def _has_peers(self, part: PhaseTime) -> bool:
        baseline = self._baselines.of_others(part.key, self._steps)
        return baseline is not None and baseline.peers >= MIN_PEERS


def _choose(verdicts: Iterable[Verdict], lengths: Mapping[str, float]) -> Held | None:
    """Return the largest excess; of nested phases the inner one that explains it."""
    found = sorted(verdicts, key=lambda verdict: -verdict.saved)
    if not found:
        return None
    near = [verdict for verdict in found if verdict.saved >= _NESTED_SHARE * found[0].saved]
    best = min(near, key=lambda verdict: lengths[verdict.subject])
    kind, _, cause = best.subject.partition(" ")
    return Held(BETWEEN, cause, best.saved) if kind == BETWEEN and cause else Held(PHASE, best.subject, best.saved)
