# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The first lines of a report or a page: failures, dead processes, and what delayed the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import findings, step_lengths
from verl_otel.analysis.document import Document, about
from verl_otel.analysis.model import Explanation, Part, Step, Verdict
from verl_otel.cli import advice, wording
from verl_otel.cli.formatting import SENTENCE, dead, failed, number

FIRST_LINES: Final = 3
"""Maximum number of alarms, and of findings, in the first lines."""


class Headline(Document):
    """What the run is about, the most important first: failures, dead processes and delays."""

    text: str
    step: Annotated[int | None, about("number of the step that it is about")]
    index: Annotated[int | None, about("place of this step among all steps, from 0")]
    next: Annotated[str, about("what to do about it; empty: nothing, or unknown")]
    saved: Annotated[
        float | None, about("seconds by which its cause made the step longer; null: it is no delay, or unknown")
    ]
    longer: Annotated[
        float | None,
        about(
            "seconds by which the step took longer than usual, and the next one started late; null: none, or unknown"
        ),
    ]
    is_finding: Annotated[bool, about("it is unusual in this run")]


def find_headlines(run: Explanation) -> list[Headline]:
    """Return failures, dead processes and delays; without any, where the slowest step spent its time. Safe to print."""
    alarms = [_make(run, text) for text in filter(None, [failed(run)])]
    alarms += [
        _make(run, f"{event.kind.upper()}: {event.text}", to_do=advice.advise_event(run, event.kind))
        for event in run.events
    ]
    alarms += [_make(run, f"DEAD: {dead(unfinished)}") for unfinished in run.completeness.unfinished if unfinished.dead]
    chosen = alarms[:FIRST_LINES]
    for step, saved, cause, longer in findings.find_findings(run)[:FIRST_LINES]:
        text = _line(number(step), step.seconds, wording.describe_cause(cause))
        what = advice.advise(run, cause)
        is_finding = isinstance(cause, Verdict)
        chosen.append(_make(run, text, step, to_do=what, saved=saved, longer=longer, is_finding=is_finding))
    slow = wording.describe_unexplained(run.steps)
    if slow:
        text = f"Slow, and no single cause was found: {slow}."
        chosen.append(_make(run, text, step_lengths.find_unexplained(run.steps)[0]))
    chosen += [_make(run, text, step) for text, step in find_silent(run)]
    if chosen or not run.steps:
        return chosen
    return [_make(run, text, step, is_finding=False) for text, step in _describe_healthy(run)]


def _make(
    run: Explanation,
    text: str,
    step: Step | None = None,
    *,
    to_do: str = "",
    saved: float | None = None,
    longer: float | None = None,
    is_finding: bool = True,
) -> Headline:
    return Headline(
        text=show(text, SENTENCE),
        step=None if step is None else step.number,
        index=next((index for index, other in enumerate(run.steps) if other is step), None),
        next=show(to_do, SENTENCE),
        saved=saved,
        longer=longer,
        is_finding=is_finding,
    )


def find_silent(run: Explanation) -> Iterator[tuple[str, Step]]:
    """Yield what is learned wrong although nothing was slow, and in which step. The texts are not safe to print."""
    worst = findings.find_unrewarded(run.steps)
    if worst is not None:
        failed_work = wording.describe_failure(worst.failures[0])
        text = f"score 0 or none may be that of the environment, and not of the answer. Failed: {failed_work}."
        yield f"Step {number(worst)}: {text}", worst
    steps = [step for step in run.steps if step.short_ranks]
    if steps:
        more = f", and in {counted(len(steps) - 1, 'other step')}" if len(steps) > 1 else ""
        short = wording.describe_short_rank(steps[0].short_ranks[0])
        yield f"Step {number(steps[0])}: a rank trained on less{more}: {short}.", steps[0]


def _describe_healthy(run: Explanation) -> Iterator[tuple[str, Step]]:
    """Yield where the slowest step of a run without findings spent its time; start-up is reported separately."""
    longest = findings.choose_steps(run, 1)[0]
    top = longest.longest_phase
    start_up = wording.describe_first(run.steps)
    phase = f", {top.share:.0%} of it in {top.key}" if top is not None else ""
    spent = _spent(longest) if top is not None and top.key == "gen" else ""
    held = wording.begin_sentence(wording.describe_held(findings.sum_held(run.steps)))
    after = " after the first" if start_up else ""
    yield f"Slowest step{after}: {number(longest)}, {seconds(longest.seconds)}{phase}. {held}.{spent}", longest
    if start_up:
        yield start_up, step_lengths.find_start_up(run.steps)[0]


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict with the number of its step."""
    name = "?" if verdict.step is None else str(verdict.step)
    return _line(name, verdict.step_seconds, wording.describe_verdict(verdict))


def _line(name: str, length: float, text: str) -> str:
    return f"Step {name} ({seconds(length)}): {text[:1].lower()}{text[1:]}"


def _spent(step: Step) -> str:
    """Return what the slowest trajectories of a step did most of the time: all may have waited for one tool."""
    by_name: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in (part for member in step.slowest for part in member.parts):
        by_name[(part.kind, part.name)].append(part)
    if not by_name:
        return ""
    sums = {key: sum(part.seconds for part in parts) for key, parts in by_name.items()}
    top = max(sums, key=lambda key: sums[key])
    share = sums[top] / max(sum(member.seconds for member in step.slowest), 1e-9)
    where = f"{share:.0%} of {'its' if step.members == 1 else 'their'} time in {wording.name_part(by_name[top][0])}"
    if step.members == 1:
        return f" Its trajectory spent {where}."
    which = f"{len(step.slowest)} slowest" if len(step.slowest) < step.members else str(step.members)
    return f" Its {which} trajectories spent {where}."
