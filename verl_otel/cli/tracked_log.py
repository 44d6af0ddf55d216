# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What ``verl-otel explain`` says about a log of verl's own ``file`` or ``console`` logger."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import findings, step_lengths, tracked_log
from verl_otel.analysis.io import run_log
from verl_otel.analysis.model import Step
from verl_otel.analysis.tracked_log import NO_PHASE, WHOLE_STEP, Change, TrackedLog
from verl_otel.analysis.verdicts import off_policy
from verl_otel.cli import options, run_selection, wording
from verl_otel.cli.documents.explain_log import (
    ExplainLog,
    advise_on,
    list_next,
    make_explain_log,
)
from verl_otel.cli.formatting import BRIEF_LINES, SENTENCE, VERDICT_LINES, WIDTH, align, cut, number, print_json, wrap
from verl_otel.cli.learning import MAX_KEY, choose_signals, describe_learning, figure
from verl_otel.cli.run_folders import is_run
from verl_otel.health import signals
from verl_otel.health.signals import Learning

_KEYS: Final = frozenset((*signals.KEYS, off_policy.AGE, *off_policy.DIFFERENCES))
MAX_LINES: Final = 80
"""Lines of the text; 40 with ``--brief``."""

PHASE_LINES: Final = 12
CHANGE_LINES: Final = 6
_OVERLAP: Final = 0.01
_NAMED: Final = 3
"""Names of files, and steps with start-up, that are listed."""
_SAME: Final = 0.1
"""Numbers of tokens that differ by a smaller share are called equal."""


# -- The command --


def find_logs(places: Sequence[Path]) -> list[Path]:
    """Return the places if each one is a log of verl's own loggers, or an empty file that may become one; else none."""
    found = [place for place in places if place.is_file() and (run_log.find_logger(place) or _is_empty(place))]
    return found if len(found) == len(places) else []


def _is_empty(place: Path) -> bool:
    return place.suffix == ".jsonl" and not place.stat().st_size and not is_run(place.parent)


def explain(arguments: argparse.Namespace, places: Sequence[Path]) -> int:
    """Explain a log. Returns 1 when it has no step.

    Args:
        arguments: Those of ``verl-otel explain``.
        places: Files of one run, in the order of time.
    """
    log = tracked_log.read(places, _KEYS.__contains__)
    if not log.steps:
        print(f"verl-otel: nothing to explain: {show(places[0], SENTENCE)} has no step yet", file=sys.stderr)
        return 1
    if arguments.step is None:
        chosen = run_selection.choose_steps(log.run, arguments.steps)
    else:
        chosen = [step for step in log.run.steps if step.number == arguments.step]
        if not chosen:
            first, last = log.steps[0].number, log.steps[-1].number
            print(f"verl-otel: step {arguments.step} is not in the log: it has {first} to {last}", file=sys.stderr)
            return 2
    learning = signals.judge([(step.number, step.values) for step in log.steps], options.load_profile())
    document = make_explain_log(log, learning, chosen)
    if arguments.json:
        print_json(document)
    else:
        lines = _render(log, learning, document, chosen, whole=arguments.step is not None)
        print("\n".join(cut(filter(None, lines), BRIEF_LINES) if arguments.brief else cut(lines, MAX_LINES)))
    return int(findings.has_any(arguments.fail_if, log.run, is_learned=not learning.troubles))


# -- Text --


def _render(
    log: TrackedLog, learning: Learning, document: ExplainLog, chosen: Sequence[Step], *, whole: bool
) -> Iterator[str]:
    """Yield the lines of the text.

    Args:
        log: The log.
        learning: What was learned.
        document: What ``--json`` prints.
        chosen: The steps that are shown.
        whole: Whether they were asked for, and are shown with all their phases.
    """
    yield from _head(log)
    for title, lines in (
        ("Time in phases" + _name_start_up(log), [] if whole else _list_phases(log)),
        ("What changed", [] if whole else _describe_changes(log)),
        ("Steps" if whole else "Slow steps", _describe_steps(log, learning, chosen, whole=whole)),
        (
            f"Learning (thresholds: profile {show(learning.profile.name)})",
            []
            if whole
            else (f"  {line}" for line in describe_learning(document, WIDTH - 2, choose_signals(document.signals))),
        ),
        ("Engine and trainer", [] if whole else _describe_off_policy(document.off_policy)),
        (
            "What this log does not show",
            (f"  {sentence}" for text in (*document.missing, *document.unknown) for sentence in _wrap(text)),
        ),
        ("Next", (f"  {line}" for line in list_next(log, chosen, whole=whole))),
    ):
        block = list(lines)
        if block:
            yield ""
            yield title
            yield from block


def _wrap(text: str) -> list[str]:
    return wrap(show(text, SENTENCE), WIDTH - 2, rest="  ")


def _head(log: TrackedLog) -> Iterator[str]:
    names = ", ".join(show(place) for place in log.run.folders[:3])
    logger = run_log.find_logger(Path(log.run.folders[0]))
    yield f"Log {names} of verl's {logger} logger: a run without verl-otel"
    steps, timed = log.steps, log.run.steps
    span = f"{counted(len(steps), 'step')}, {steps[0].number}{f' to {steps[-1].number}' if len(steps) > 1 else ''}"
    attempts = steps[-1].attempt
    again = [step for step in timed if step.repeated]
    if attempts > 1:
        span += f", in {attempts} attempts"
    if again:
        lost = seconds(sum(step.seconds for step in again))
        span += f" ({counted(len(again), 'step')} trained again, which took {lost} before)"
    if not timed:
        yield f"{span}, without their lengths"
        return
    longest = max(timed, key=lambda step: step.seconds)
    after = sum(step.between for step in timed)
    also = f" and {seconds(after)} of {', '.join(sorted(log.outside))} after them" if after else ""
    whole, middle = sum(step.seconds for step in timed), median(step.seconds for step in timed)
    last = f"longest {seconds(longest.seconds)} (step {longest.number})"
    yield f"{span}: {seconds(whole)}{also}; median step {seconds(middle)}, {last}"


def _name_start_up(log: TrackedLog) -> str:
    starting = step_lengths.find_start_up(log.run.steps)
    if not starting or len(starting) == len(log.run.steps):
        return ""
    names = ", ".join(f"{step.number} ({seconds(step.seconds)})" for step in starting[:_NAMED])
    more = f" and {len(starting) - _NAMED:,} more" if len(starting) > _NAMED else ""
    return f", without the start-up in step {names}{more}"


def _list_phases(log: TrackedLog) -> Iterator[str]:
    if not log.phases:
        return
    rows = [("phase", "share", "total", "median", "longest", "at step", "steps")]
    rows += [
        (
            show(f"{phase.name}{' (after the step)' if phase.outside else ''}", MAX_KEY), wording.share(phase.share),
            seconds(phase.seconds), seconds(phase.median), seconds(phase.longest), str(phase.longest_step),
            f"{phase.steps:,}",
        )
        for phase in log.phases[:PHASE_LINES]
    ]  # fmt: skip
    yield from (f"  {line}" for line in align(rows, range(1, 7)))
    rest = log.phases[PHASE_LINES:]
    if rest:
        yield f"  and {counted(len(rest), 'smaller phase')}: {wording.share(sum(phase.share for phase in rest))}"
    if sum(phase.share for phase in log.phases) > 1 + _OVERLAP:
        yield "  Some of these timers overlap, so that shares add up to more than 100%."


def _describe_changes(log: TrackedLog) -> Iterator[str]:
    for change in log.changes[:CHANGE_LINES]:
        yield from (f"  {line}" for line in _wrap(_describe_change(change)))
    if len(log.changes) > CHANGE_LINES:
        yield f"  and {counted(len(log.changes) - CHANGE_LINES, 'smaller change')}"


def _describe_change(change: Change) -> str:
    name = {WHOLE_STEP: "a step", NO_PHASE: "the time outside of all phases"}.get(change.name, change.name)
    before, after = seconds(change.before), seconds(change.after)
    text = f"From step {change.step} on {name} took {after} instead of {before}"
    if not change.sudden:
        way = "grew" if change.after > change.before else "fell"
        text = f"From step {change.step} to {change.last_step} {name} {way} from {before} to {after}"
    if change.tokens is None:
        return show(text)
    key, old, new = change.tokens.key, change.tokens.before, change.tokens.after
    tokens = f"stayed at {wording.figure(new)}"
    if abs(new - old) > _SAME * abs(old):
        tokens = f"went from {wording.figure(old)} to {wording.figure(new)}"
    return f"{show(text)}; {key} {tokens}"


def _describe_steps(log: TrackedLog, learning: Learning, chosen: Sequence[Step], *, whole: bool) -> Iterator[str]:
    steps = log.run.steps
    unexplained = wording.describe_unexplained(log.run.steps)
    if not whole and steps:
        if any(step.verdicts for step in steps) or not unexplained:
            yield f"  {wording.begin_sentence(wording.describe_held(findings.sum_held(steps)))}"
        if unexplained:
            yield f"  Slow without one phase as the cause: {unexplained}"
    shown = chosen if whole else [step for step in chosen if step.verdicts or unexplained]
    for step in shown:
        others = step_lengths.find_comparable(steps, step)
        usual = f" (others: median {seconds(median(other.seconds for other in others))})" if others else ""
        yield f"  Step {number(step)} took {seconds(step.seconds)}{usual}"
        for verdict in step.verdicts[:VERDICT_LINES]:
            yield from (f"    {line}" for line in _wrap(wording.describe_verdict(verdict)))
            yield from (f"    {line}" for line in _wrap(f"To do: {advise_on(verdict)}"))
        if whole or not step.verdicts:
            yield from _list_step(step, others)
        if whole:
            yield from _list_values(log, learning, step)


def _list_step(step: Step, others: Sequence[Step]) -> Iterator[str]:
    """Yield the phases of a step, the longest first, and how long they usually take."""
    usual: dict[str, list[float]] = {}
    for other in others:
        for name, length in tracked_log.list_lengths(other).items():
            usual.setdefault(name, []).append(length)
    for name, length in sorted(tracked_log.list_lengths(step).items(), key=lambda pair: -pair[1])[:PHASE_LINES]:
        also = f" (others: median {seconds(median(usual[name]))})" if name in usual else ""
        yield f"    {seconds(length):>9}  {show(name, MAX_KEY)}{also}"


def _list_values(log: TrackedLog, learning: Learning, step: Step) -> Iterator[str]:
    """Yield the signals of a step, and what they usually are."""
    own = next((one for one in log.steps if (one.number, one.attempt) == (step.number, step.attempt)), None)
    for signal in learning.signals if own else ():
        if own and signal.key in own.values:
            middle = median(value for one in log.steps if math.isfinite(value := one.values.get(signal.key, math.nan)))
            name = show(signal.name, MAX_KEY)
            yield f"    {figure(own.values[signal.key]):>9}  {name} (median of all steps {figure(middle)})"


def _describe_off_policy(found: off_policy.OffPolicy | None) -> Iterator[str]:
    for text in wording.describe_off_policy(found):
        yield from (f"  {line}" for line in _wrap(f"{text[:1].upper()}{text[1:]}."))
