# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders an explanation in a bounded number of lines, each with the ids that are its evidence: for programs that read text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from verl_otel._internal.printable import counted, show
from verl_otel.analysis import step_lengths
from verl_otel.analysis.model import Explanation, Step, Verdict
from verl_otel.cli.explain import advice
from verl_otel.cli.explain import wording as words
from verl_otel.cli.formatting import dead, seconds

MAX_LINES: Final = 40
MAX_LINE: Final = 400
"""Characters of a line; longer ones are cut."""
_EVENTS: Final = 5
_VERDICTS: Final = 3


def render(run: Explanation, steps: Sequence[Step]) -> str:
    """Return at most `MAX_LINES` lines of at most `MAX_LINE` characters.

    Args:
        run: The explained run.
        steps: The steps to describe, the most important first.
    """
    lines = [show(line, MAX_LINE) for line in _lines(run, steps)]
    if len(lines) > MAX_LINES:
        left = len(lines) - MAX_LINES + 1
        lines = [*lines[: MAX_LINES - 1], f"and {counted(left, 'more line')}: verl-otel explain --json has everything"]
    return "\n".join(lines)


def _lines(run: Explanation, steps: Sequence[Step]) -> Iterator[str]:
    yield f"run {run.run_id}: {run.state}, {counted(len(run.steps), 'step')}, {counted(run.counts.trajectories, 'trajectory', 'trajectories')}"
    lengths = [step.seconds for step in run.steps]
    if lengths:
        held = sum(bool(step.verdicts) for step in run.steps)
        unexplained = len(step_lengths.find_unexplained(run.steps))
        yield (
            f"median step {seconds(median(lengths))}, longest {seconds(max(lengths))}; "
            f"{counted(held, 'step')} held by a cause, {unexplained} slow without one"
        )
    for event in run.events[:_EVENTS]:
        yield f"{event.kind}: {event.text}"
    if len(run.events) > _EVENTS:
        yield f"and {counted(len(run.events) - _EVENTS, 'more stall or crash', 'more stalls and crashes')}"
    yield from (f"dead: {dead(one)}" for one in run.completeness.unfinished if one.dead)
    for step in steps:
        yield from _describe_step(step)
    for key in advice.find_keys(steps, [step for step in steps if not step.verdicts]):
        yield f"do ({key}): {advice.ADVICE[key]}"
    problems = [*run.completeness.missing, *run.problems]
    yield from (f"not known: {problem}" for problem in problems[:_EVENTS])
    yield f"more: verl-otel explain --step N {run.run_id}; verl-otel report --json {run.run_id}"


def _describe_step(step: Step) -> Iterator[str]:
    yield f"step {step.number}: {seconds(step.seconds)} [trace {step.trace_id:032x}]{f' FAILED {step.error}' if step.failed else ''}"
    for verdict in step.verdicts[:_VERDICTS]:
        yield f"  cause: {words.describe_verdict(verdict)} [{_evidence(verdict)}]"
    if not step.verdicts:
        parts = ", ".join(
            f"{words.doing(kind, name)} {seconds(length / 1e9)}" for kind, name, length in step.groups[:3]
        )
        yield f"  no single cause; it waited for: {parts or 'unknown'}"


def _evidence(verdict: Verdict) -> str:
    parts = [f"kind {verdict.kind}", f"cause {verdict.cause}"]
    parts += [f"trace {verdict.trace_id:032x}"] if verdict.trace_id else []
    parts += [f"turn {verdict.turn}"] if verdict.turn is not None else []
    parts += [f"process {verdict.instance}"] if verdict.instance else []
    return ", ".join(parts)
