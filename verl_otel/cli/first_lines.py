# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a reader of a report or a page has to know first: who died, and what held the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Explanation, Part, Step, Verdict
from verl_otel.cli import explain_text, explain_words, held
from verl_otel.cli.words import SENTENCE, dead, failed, number, seconds, show

FIRST_LINES: Final = 3
"""How many alarms, and how many findings, are said first."""


class Line(NamedTuple):
    """One of the first lines."""

    text: str
    step: Step | None = None
    """The step that it is about."""


def tell(run: Explanation) -> Iterator[Line]:
    """Yield what failed, who died and what held the run; else where its slowest step spent its time. All may be shown as it is."""
    alarms = list(filter(None, [failed(run)]))
    alarms += [f"{event.kind.upper()}: {event.text}" for event in run.events]
    alarms += [f"DEAD: {dead(each)}" for each in run.gaps.unfinished if each.dead]
    waits = held.find(run)
    known = {each.trajectory.trace_id for each in waits}
    findings = [(each.lead, Line(_held_line(each), each.step)) for each in waits]
    findings += [
        (verdict.saved, Line(verdict_line(verdict), step))
        for step in run.steps
        for verdict in step.verdicts
        if not verdict.trace_id or verdict.trace_id not in known
    ]
    findings.sort(key=lambda finding: -finding[0])
    chosen = [Line(text) for text in alarms[:FIRST_LINES]]
    chosen += [line for _, line in findings[:FIRST_LINES]]
    if not chosen and run.steps:
        chosen = list(_tell_healthy(run))
    yield from (Line(show(line.text, SENTENCE), line.step) for line in chosen)


def _tell_healthy(run: Explanation) -> Iterator[Line]:
    """Yield where the slowest step of a run that nothing held spent its time; the one that starts the run up is told apart."""
    longest = max(explain_text.choose(run, 1), key=lambda step: step.seconds)
    top = max(longest.phases, key=lambda phase: phase.seconds, default=None)
    if top is None:
        return
    start_up = explain_text.start_up(run)
    spent = _spent(longest) if top.key == "gen" else ""
    yield Line(
        f"Slowest step{' after the first' if start_up else ''}: {number(longest)}, {seconds(longest.seconds)}, "
        f"{top.share:.0%} of it in {top.key}. No single trajectory held a step noticeably.{spent}",
        longest,
    )
    if start_up:
        yield Line(start_up, run.steps[0])


def _held_line(each: held.Held) -> str:
    step, part = each.step, each.part
    return (
        f"Step {number(step)} ({seconds(step.seconds)}) waited up to {seconds(each.lead)} for trajectory "
        f"{each.trajectory.label} alone, which spent {seconds(part.seconds)} of its "
        f"{seconds(each.trajectory.seconds)} in {_part_name(part)}{_turn(part)}."
    )


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict with the step that it is about."""
    which = "?" if verdict.step is None else verdict.step
    return f"Step {which} ({seconds(verdict.step_seconds)}): {explain_words.tell(verdict)}"


def _spent(step: Step) -> str:
    """Say on what the slowest trajectories of a step spent most of their time: they may all have waited for one tool."""
    by_name: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in (part for member in step.slowest for part in member.parts):
        by_name[(part.kind, part.name)].append(part)
    if not by_name:
        return ""
    sums = {key: sum(part.seconds for part in parts) for key, parts in by_name.items()}
    top = max(sums, key=lambda key: sums[key])
    share = sums[top] / max(sum(member.seconds for member in step.slowest), 1e-9)
    which = f"{len(step.slowest)} slowest" if len(step.slowest) < step.members else str(step.members)
    return f" Its {which} trajectories spent {share:.0%} of their time in {_part_name(by_name[top][0])}."


def _part_name(part: Part) -> str:
    words = {
        "llm": "LLM calls",
        "tool": f"tool {part.name}",
        "reward": "its reward",
        "wait": "waiting (queue, transfer, own code)",
    }
    return words[part.kind]


def _turn(part: Part) -> str:
    return "" if part.turn is None else f" (turn {part.turn})"
