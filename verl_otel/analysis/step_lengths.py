# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of a run beside each other: which contain a start-up or were trained again, how long the others are, which are slow without a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final

from verl_otel.analysis.model import Step
from verl_otel.analysis.verdicts.baselines import PHASE_SECONDS

LONG_FACTOR: Final = 2
"""A step that takes this many times the median of the others is long."""
FEWEST_OTHERS: Final = 3
"""Minimum number of other steps whose median is a baseline for a step."""
FEWEST: Final = FEWEST_OTHERS + 1
"""Minimum number of steps that say what is usual in a run."""
USUAL_SHARE: Final = 0.5
"""A phase is usual if this share of the steps has it. Checkpoints and validations of some steps only make these longer, as planned."""


def find_repeated(steps: Sequence[tuple[int, int | None]]) -> set[int]:
    """Return the places of the steps whose weights a later attempt did not have: it began with the same step, or with an earlier one.

    Args:
        steps: Attempt and number of all steps of a run.
    """
    firsts: dict[int, int] = {}
    for attempt, number in steps:
        if number is not None:
            firsts[attempt] = min(number, firsts.get(attempt, number))
    lowest, later = math.inf, {}
    for attempt in sorted(firsts, reverse=True):
        later[attempt] = lowest
        lowest = min(lowest, firsts[attempt])
    return {place for place, (attempt, number) in enumerate(steps) if number is not None and number >= later[attempt]}


def find_start_up(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that are long because they contain the start of the workers: the first of an attempt, or one that starts them again.

    Args:
        steps: All steps of a run, in the order of time.
    """
    candidates = find_firsts(steps) | {index for index, step in enumerate(steps) if step.is_starting}
    others = [step.seconds for index, step in enumerate(steps) if index not in candidates and not step.failed]
    if not others:
        return ()
    limit = LONG_FACTOR * median(others)
    return tuple(steps[index] for index in sorted(candidates) if steps[index].seconds >= limit)


def find_firsts(steps: Sequence[Step], count: int = 1) -> set[int]:
    """Return the places of the first steps of each attempt.

    Args:
        steps: All steps of a run, in the order of time.
        count: How many of each.
    """
    seen: Counter[int] = Counter()
    firsts = set()
    for place, step in enumerate(steps):
        if seen[step.attempt] < count:
            firsts.add(place)
        seen[step.attempt] += 1
    return firsts


def find_usual(steps: Sequence[Step]) -> float | None:
    """Return the seconds of a usual step, the median of those that can be compared; None without one.

    Args:
        steps: All steps of a run, in the order of time.
    """
    usual = find_comparable(steps)
    return median(step.seconds for step in usual) if usual else None


def find_comparable(steps: Sequence[Step], step: Step | None = None) -> tuple[Step, ...]:
    """Return the steps with whose durations that of a step can be compared: no failed ones, none with start-up.

    Nor the first one of an attempt if there are others.

    Args:
        steps: All steps of a run, in the order of time.
        step: One of them, which is left out; None: none is.
    """
    starting = set(map(id, find_start_up(steps)))
    others = [other for other in steps if other is not step and not other.failed and id(other) not in starting]
    firsts = {id(steps[place]) for place in find_firsts(steps)}
    return tuple(other for other in others if id(other) not in firsts) or tuple(others)


def find_baseline(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that say what is usual: not the first one of an attempt, none that failed and none with start-up.

    Args:
        steps: All steps of a run, in the order of time.
    """
    others = set(map(id, find_start_up(steps)))
    others |= {id(steps[place]) for place in find_firsts(steps)}
    return tuple(step for step in steps if not step.failed and id(step) not in others)


def find_unexplained(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that are long, without a verdict and without start-up, the longest first; empty without a baseline.

    Phases that most steps lack, such as a checkpoint, do not count.

    Args:
        steps: All steps of a run, in the order of time.
    """
    usual = find_baseline(steps)
    if len(usual) < FEWEST:
        return ()
    middle = median(step.seconds for step in usual)
    limit = max(LONG_FACTOR * middle, middle + PHASE_SECONDS)
    long = [step for step in usual if not step.verdicts and step.seconds > limit]
    if not long:
        return ()
    phases = Counter(phase.key for step in usual for phase in step.phases)
    rare = {key for key, count in phases.items() if count < USUAL_SHARE * len(usual)}
    usually_long = (
        step for step in long if step.seconds - sum(part.seconds for part in step.phases if part.key in rare) > limit
    )
    return tuple(sorted(usually_long, key=lambda step: -step.seconds))
