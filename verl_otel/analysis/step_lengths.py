# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Durations of the steps of a run: which steps contain its start-up, what the others usually take, and which are slow without a verdict."""

from __future__ import annotations

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
USUAL_SHARE: Final = 0.5
"""A phase is usual if this share of the steps has it. Checkpoints and validations of some steps only make these longer, as planned."""


def find_start_up(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that are long because they contain the start of the workers: the first one, or one that starts them again.

    Args:
        steps: All steps of a run, in the order of time.
    """
    candidates = {
        index
        for index, step in enumerate(steps)
        if not index or step.attempt != steps[index - 1].attempt or step.is_starting
    }
    others = [step.seconds for index, step in enumerate(steps) if index not in candidates and not step.failed]
    if not others:
        return ()
    limit = LONG_FACTOR * median(others)
    return tuple(steps[index] for index in sorted(candidates) if steps[index].seconds >= limit)


def find_comparable(steps: Sequence[Step], step: Step) -> tuple[Step, ...]:
    """Return the steps with whose durations that of a step can be compared: no failed ones, none with start-up, not the first if there are others.

    Args:
        steps: All steps of a run, in the order of time.
        step: One of them.
    """
    starting = {other.trace_id for other in find_start_up(steps)}
    others = [other for other in steps if other is not step and not other.failed and other.trace_id not in starting]
    return tuple(other for other in others if other is not steps[0]) or tuple(others)


def find_unexplained(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that are long, without a verdict and without start-up, the longest first; empty without a baseline.

    Phases that most steps lack, such as a checkpoint, do not count.

    Args:
        steps: All steps of a run, in the order of time.
    """
    starting = {step.trace_id for step in find_start_up(steps)}
    usual = [step for step in steps[1:] if not step.failed and step.trace_id not in starting]
    if len(usual) <= FEWEST_OTHERS:
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
