# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The findings of a run, the most important first. Every command and page shows these, in this order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from verl_otel.analysis import step_lengths
from verl_otel.analysis.model import Explanation, Step, Verdict
from verl_otel.analysis.verdicts.judge import ROLLOUT, sum_savings
from verl_otel.analysis.verdicts.slow_trajectories import SingleWait, find_single_wait


class Finding(NamedTuple):
    """What delayed a step: a verdict, or one trajectory that it waited for alone, which may be usual in its run."""

    step: Step
    seconds: float
    """By how much the step would have been shorter, or the next one would have started earlier."""
    cause: Verdict | SingleWait


def find_findings(run: Explanation) -> list[Finding]:
    """Return what delayed the steps of a run, the step that lost most first, and of each step the largest cause first."""
    by_step = [found for step in run.steps if (found := find_of_step(step))]
    by_step.sort(key=lambda found: -max(sum_savings(found[0].step), found[0].seconds))
    return [finding for found in by_step for finding in found]


def find_of_step(step: Step) -> list[Finding]:
    """Return what delayed a step, the largest first. A wait that a verdict is about is not another finding."""
    found = [Finding(step, verdict.saved, verdict) for verdict in step.verdicts]
    wait = find_single_wait(step)
    if wait is not None and not any(_is_about(verdict, wait) for verdict in step.verdicts):
        found.append(Finding(step, wait.lead, wait))
    return sorted(found, key=lambda finding: -finding.seconds)


def _is_about(verdict: Verdict, wait: SingleWait) -> bool:
    return verdict.trace_id == wait.trajectory.trace_id or (not verdict.trace_id and verdict.kind in ROLLOUT)


def sort_held(run: Explanation) -> list[Step]:
    """Return the steps with verdicts, the one that lost most first."""
    return sorted((step for step in run.steps if step.verdicts), key=lambda step: -sum_savings(step))


def choose_unexplained(run: Explanation, steps: Iterable[Step]) -> list[Step]:
    """Return those of some steps that were slow without a verdict."""
    slow = step_lengths.find_unexplained(run.steps)
    return [step for step in steps if any(step is other for other in slow)]


def choose_steps(run: Explanation, count: int) -> list[Step]:
    """Return the steps to explain: those that lost most, then slow ones without a verdict.

    Without either, the step that waited longest for one trajectory alone, or the slowest one.
    """
    slow = [*sort_held(run), *step_lengths.find_unexplained(run.steps)]
    if slow or not run.steps or count < 1:
        return slow[:count]
    found = find_findings(run)
    if found:
        return [found[0].step]
    first = step_lengths.find_firsts(run.steps)
    starting = {step.trace_id for step in step_lengths.find_start_up(run.steps)}
    usual = [
        step
        for place, step in enumerate(run.steps)
        if place not in first and not step.failed and step.trace_id not in starting
    ] or run.steps
    return [max(usual, key=lambda step: step.seconds)]
