# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The findings of a run, the most important first. Every command and page shows these, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from verl_otel.analysis import step_lengths
from verl_otel.analysis.model import Explanation, Step, Verdict
from verl_otel.analysis.verdicts.baselines import PHASE_SECONDS
from verl_otel.analysis.verdicts.judge import ROLLOUT, sum_savings
from verl_otel.analysis.verdicts.slow_trajectories import SingleWait, find_single_wait
from verl_otel.health.signals import Learning

FEWEST_UNREWARDED: Final = 2
UNREWARDED_SHARE: Final = 0.2
"""Trajectories of a step with score 0 in which the same tool or the reward failed, and their share: fewer change what is learned by little."""
REST_SHARE: Final = 0.25
"""Share of the excess of a step that is noticeable if no verdict explains it."""


KINDS: Final = ("crash", "stall", "failed", "slow", "learning", "any")
"""What `has_any` looks for: a process that died, a hang, a step that failed, one that took longer than usual, and something wrong with the learning."""


class Finding(NamedTuple):
    """What delayed a step: a verdict, or one trajectory that it waited for alone, which may be usual in its run."""

    step: Step
    seconds: float
    """By how much the step would have been shorter, or the next one would have started earlier."""
    cause: Verdict | SingleWait


def find_findings(run: Explanation) -> list[Finding]:
    """Return what delayed the steps of a run, the step that lost most first, and of each step the largest cause first.

    Where no step took longer than usual, it is the longest wait for one trajectory alone, which is usual in this run.
    """
    found = [finding for step in sort_held(run) for finding in find_of_step(step)]
    if found or step_lengths.find_unexplained(run.steps):
        return found
    waits = [finding for step in run.steps if not step.failed for finding in find_of_step(step)]
    return [max(waits, key=lambda finding: finding.seconds)] if waits else []


def find_of_step(step: Step) -> list[Finding]:
    """Return what delayed a step, the largest first. A wait that a verdict is about is not another finding."""
    found = [Finding(step, verdict.saved, verdict) for verdict in step.verdicts]
    wait = find_single_wait(step)
    if wait is not None and not any(_is_about(verdict, wait) for verdict in step.verdicts):
        found.append(Finding(step, wait.lead, wait))
    return sorted(found, key=lambda finding: -finding.seconds)


def _is_about(verdict: Verdict, wait: SingleWait) -> bool:
    return verdict.trace_id == wait.trajectory.trace_id or (not verdict.trace_id and verdict.kind in ROLLOUT)


def find_rest(steps: Sequence[Step], step: Step) -> float:
    """Return by how many seconds a step exceeded the others beyond what its verdicts explain; 0 if that is not noticeable.

    Args:
        steps: All steps of a run.
        step: One of them.
    """
    return _find_rest(step_lengths.find_comparable(steps, step), step)


def find_rests(steps: Sequence[Step]) -> dict[int, float]:
    """Return what `find_rest` returns for each step, by its index.

    Args:
        steps: All steps of a run.
    """
    usual = step_lengths.find_comparable(steps, None)
    return {
        index: _find_rest([other for other in usual if other is not step], step) if step.verdicts else 0.0
        for index, step in enumerate(steps)
    }


def sum_longer(steps: Sequence[Step]) -> tuple[float, float]:
    """Return by how many seconds the held steps took longer than usual: what their verdicts explain, and the rest.

    Args:
        steps: All steps of a run.
    """
    return sum(sum_savings(step) for step in steps if step.verdicts), sum(find_rests(steps).values())


def _find_rest(others: Sequence[Step], step: Step) -> float:
    if not step.verdicts or len(others) < step_lengths.FEWEST_OTHERS:
        return 0.0
    longer = step.seconds - median(other.seconds for other in others)
    rest = longer - sum_savings(step)
    return rest if rest >= max(PHASE_SECONDS, REST_SHARE * longer) else 0.0


def find_unrewarded(steps: Iterable[Step]) -> Step | None:
    """Return the step in which most of the trajectories with score 0 had a tool or a reward that failed; None if these are few in all steps."""
    worst = max((step for step in steps if step.failures), key=lambda step: step.failures[0].unrewarded, default=None)
    if worst is None or worst.failures[0].unrewarded < max(FEWEST_UNREWARDED, UNREWARDED_SHARE * worst.members):
        return None
    return worst


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


def has_any(kinds: Sequence[str], run: Explanation, judge: Callable[[], Learning]) -> bool:
    """Return whether a run has something of `KINDS`.

    Args:
        kinds: What is looked for.
        run: The run.
        judge: Returns how it learned.
    """
    events = {event.kind for event in run.events}
    dead_ones = any(unfinished.dead for unfinished in run.completeness.unfinished)
    looks: dict[str, Callable[[], bool]] = {
        "crash": lambda: "crash" in events or dead_ones,
        "stall": lambda: "stall" in events,
        "failed": lambda: any(step.failed for step in run.steps),
        "slow": lambda: any(step.verdicts for step in run.steps) or bool(step_lengths.find_unexplained(run.steps)),
        "learning": lambda: bool(judge().troubles),
    }
    return any(looks[kind]() for kind in (looks if "any" in kinds else kinds))
