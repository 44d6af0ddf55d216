# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain LOG --json``, for a log of verl's own loggers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Annotated, Final

from verl_otel._internal.printable import counted
from verl_otel.analysis import model, step_lengths, tracked_log
from verl_otel.analysis.document import Document, about
from verl_otel.analysis.tracked_log import TrackedLog
from verl_otel.analysis.verdicts import off_policy
from verl_otel.cli import advice
from verl_otel.cli.documents.base import Answer, Attempt, Cause, Folders, Missing, Phases, Repeated, fill
from verl_otel.cli.learning import Cut, Finding, Move, Signal, Window, describe
from verl_otel.health import signals
from verl_otel.health.signals import Learning

START: Final = "VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ..."
UNKNOWN: Final = (
    (
        "which trajectory, tool call, turn, server or rank a step waited for, and why GPUs were idle: "
        "the log has sums of a step, no spans"
    ),
    "the time between two steps (logging, loading data, own code): the logger writes no time stamps",
)


class Counts(Document):
    """Numbers of steps."""

    steps: Annotated[int, about("without those that were trained again")]
    attempts: Annotated[int, about("1, and one more each time the number of the step went back")]
    repeated: Annotated[int, about("steps after the checkpoint that a later attempt went on from")]
    held: Annotated[int, about("steps with a cause")]
    unexplained: Annotated[int, about("slow steps without one")]


class Step(Document):
    """The steps that were chosen."""

    number: Annotated[int, about("as verl counts")]
    attempt: Attempt
    repeated: Repeated
    seconds: float
    verdicts: tuple[Cause, ...]
    phases: Phases
    no_phase: Annotated[float, about("seconds outside of phases")]


class ExplainLog(Answer):
    """What a log of verl's own loggers shows of a training."""

    run_id: Annotated[str, about("name of the file")]
    state: Annotated[str, about("no end seen")]
    folders: Folders
    counts: Counts
    steps: tuple[Step, ...]
    seconds: Annotated[float, about("of all steps, and of phases after them")]
    median: Annotated[float | None, about("of the steps")]
    phases: tuple[tracked_log.PhaseSum, ...]
    changes: tuple[tracked_log.Change, ...]
    profile: Annotated[str, about("profile of the thresholds")]
    progress: Annotated[str, about("sentence about the reward; empty: too few steps have one")]
    reward_move: Move
    window: Window
    cut: Cut
    signals: tuple[Signal, ...]
    findings: tuple[Finding, ...]
    off_policy: off_policy.OffPolicy | None
    missing: Missing
    unknown: Annotated[tuple[str, ...], about("what no such log has")]
    next: Annotated[tuple[str, ...], about("commands that show more")]


def make_explain_log(log: TrackedLog, learning: Learning, chosen: Sequence[model.Step]) -> ExplainLog:
    """Return what a log shows.

    Args:
        log: The log.
        learning: What was learned.
        chosen: The steps to describe.
    """
    steps = log.run.steps
    return fill(
        ExplainLog,
        log.run,
        counts={
            "steps": len(log.steps),
            "attempts": log.steps[-1].attempt,
            "repeated": sum(step.repeated for step in steps),
            "held": sum(bool(step.verdicts) for step in steps),
            "unexplained": len(step_lengths.find_unexplained(steps)),
        },
        steps=[
            fill(
                Step,
                step,
                verdicts=[fill(Cause, verdict, next=advise_on(verdict)) for verdict in step.verdicts],
                phases={phase.key: phase.seconds for phase in step.phases},
            )
            for step in chosen
        ],
        seconds=sum(step.seconds + step.between for step in steps),
        median=median(step.seconds for step in steps) if steps else None,
        phases=log.phases,
        changes=log.changes,
        **describe(learning, has_verl=True),
        off_policy=off_policy.judge(step.values for step in log.steps),
        missing=list(list_missing(log)),
        unknown=UNKNOWN,
        next=list_next(log, chosen),
    )


def advise_on(verdict: model.Verdict) -> str:
    """Return what to do about a slow phase, whose cause the log has only if the phase is one kind of work."""
    if verdict.cause in ("phase", "step"):
        where = "between its phases" if verdict.cause == "step" else f"in {verdict.subject}"
        return f"train again with VERL_OTEL_ENABLED=1, which records what the step waits for {where}"
    return advice.word(advice.find_key(verdict))


def list_missing(log: TrackedLog) -> Iterator[str]:
    """Yield what is not in this log, although other logs of verl have it."""
    if log.damaged:
        yield f"{counted(log.damaged, 'line')} that could not be read: cut off, or of something else"
    keys = {key for step in log.steps for key in step.values}
    if not log.run.steps:
        yield "the time of steps: no timing_s/step"
    elif not any(map(tracked_log.find_phase, keys)):
        yield "the time of phases: no timing_s/gen or another timer of a phase"
    for name, text in (("reward_mean", "the reward"), ("kl_div", "the policy KL"), ("grad_norm", "the gradient norm")):
        if keys.isdisjoint(signals.SIGNALS[name]):
            yield f"{text}: no {signals.SIGNALS[name][0]}"


def list_next(log: TrackedLog, chosen: Sequence[model.Step], *, whole: bool = False) -> list[str]:
    """Return the commands that show more."""
    place = shlex.join(log.run.folders)
    steps = [] if whole else [step.number for step in chosen[:1]]
    return [
        *(f"verl-otel explain {place} --step {step}" for step in steps),
        f"{START}   (records what is missing here; then: verl-otel explain)",
    ]
