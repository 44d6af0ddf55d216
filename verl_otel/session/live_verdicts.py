# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What held a step, reported when it ends: a line of the log, an event, ``verl.step.held``, ``verl.goodput``.

Verdicts come from what the trainer itself knows: its phases, and what it did between two steps. The rules are those of
`slow_phases`, with the steps before as peers. Memory is that of the baselines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel._internal import log_lines
from verl_otel._internal.printable import counted
from verl_otel._internal.ranks import find_rank
from verl_otel.analysis import step_lengths
from verl_otel.analysis.gpu.idle_causes import find_state
from verl_otel.analysis.model import Step, Verdict
from verl_otel.analysis.verdicts.baselines import PHASE_SECONDS, STEP_SHARE, Baselines
from verl_otel.analysis.verdicts.slow_phases import PhaseTime, judge_phases
from verl_otel.model import AttributeValue
from verl_otel.recording import run_log
from verl_otel.recording.series import counter, gauge
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import kinds, logs, metric_names
from verl_otel.session import python_logging, run_status

PHASE, BETWEEN = "phase", "between"
"""Kinds of what held a step: a phase of it, or something before it began."""
OWN_CODE: Final = "own code"
"""Time between two steps in no phase, in no tracker and in no data loader."""
MIN_PEERS: Final = 2
"""Minimum number of steps before, without the first occurrence: of two steps alone, either may be the unusual one.
`explain` has later steps, too."""
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
        step = Step(None, 0, 0, round(seconds * 1e9), False, (), 0.0, (), 0, 0, 0)
        floor = max(PHASE_SECONDS, STEP_SHARE * seconds)
        verdicts = judge_phases(parts.values(), step, self._steps, self._baselines, floor, {})
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


LINE_SECONDS: Final = 10.0
"""Shortest time between two lines of the log. The metrics and the events have every step."""
MAX_CAUSES: Final = 100
"""Causes whose seconds are summed up for the verdict of the run."""
Interval = tuple[str, float, float]
"""Name, start and end on the clock of spans."""
_logger = logging.getLogger("verl_otel")


class LiveVerdicts:
    """The verdicts of one training."""

    def __init__(self, began: float | None = None) -> None:
        """Begin to judge.

        Args:
            began: When telemetry began in the process of the training, on the clock of spans; None: now. Goodput counts from here.
        """
        self._judge = LiveJudge()
        self._began = clock() if began is None else began
        self._effective = 0.0
        """Seconds in steps, without validations and without those by which steps were held."""
        self._last_line = float("-inf")
        self._steps = self._held_steps = 0
        self._last_number: int | None = None
        """Number of the last step: `explain` shows what follows a step at that step."""
        self._held: dict[tuple[str, str], float] = {}
        """Seconds by which steps were held, by kind and cause."""
        self._goodput = 0.0

    def end_step(
        self,
        number: int | None,
        before: float,
        start: float,
        stop: float,
        intervals: Sequence[Interval],
        *,
        whole: bool = True,
    ) -> None:
        """Judge a step that has ended.

        Args:
            number: Its number.
            before: End of the step before, on the clock of spans; 0: it is the first one.
            start: Its start.
            stop: Its end.
            intervals: Phases, and logging and data loading, since the end of the step before.
            whole: False: it failed or was interrupted. Such a step is not judged, and its time is not effective.
        """
        last, self._last_number = self._last_number, number
        if not whole:
            self._measure_goodput(0.0, stop)
            return
        phases: dict[str, float] = {}
        between: dict[str, float] = {}
        for key, begin, end in intervals:
            parts = between if end <= start else phases
            parts[key] = parts.get(key, 0.0) + end - begin
        if before:
            between[OWN_CODE] = max(0.0, start - before - _cover(intervals, before, start))
        held = self._judge.judge(stop - start, phases, between)
        lost = sum(seconds for key, seconds in phases.items() if find_state(key) == "validation")
        self._steps += 1
        if held is not None:
            if held.kind == PHASE and find_state(held.cause) != "validation":
                lost += held.seconds
            self._report(number, stop - start, held, evidence=number if held.kind == PHASE else last)
        self._measure_goodput(max(0.0, stop - start - lost), stop)

    def _measure_goodput(self, effective: float, stop: float) -> None:
        self._effective += effective
        self._goodput = min(1.0, self._effective / max(stop - self._began, 1e-9))
        gauge(metric_names.GOODPUT).set(self._goodput)

    def summarize(self, advice: str = "") -> dict[str, str | float]:
        """Return ``goodput``, ``held_seconds`` and ``verdict``, a sentence on all steps so far; empty before the first one.

        Args:
            advice: What the verdict ends with.
        """
        if not self._steps:
            return {}
        total = sum(self._held.values())
        usual = self._steps - 1  # the first one includes the start-up
        verdict = kinds.NOTHING_DELAYED.format(steps=counted(self._steps, "step"))
        if usual < step_lengths.FEWEST:
            verdict = kinds.TOO_FEW_COMPARED.format(usual=usual, of=self._steps, needed=step_lengths.FEWEST)
        if self._held:
            (kind, cause), seconds = max(self._held.items(), key=lambda item: item[1])
            what = f"phase {cause}" if kind == "phase" else f"{cause} between steps"
            count = f"{self._held_steps} of {counted(self._steps, 'step')}"
            verdict = f"{count} took longer than those before, by {total:.1f} s, most by {what}: {seconds:.1f} s{_name_rank(kind)}"
        if advice:
            verdict += f"; {advice}"
        return {"goodput": round(self._goodput, 4), "held_seconds": round(total, 3), "verdict": verdict}

    def log_end(self, run_id: str, advice: str = "") -> None:
        """Log what made steps of a run longer that has ended or failed, and ``advice``. Neither: no line."""
        if RECORDER.verdict_lines and (self._held or advice):
            detail = f". Which trajectory, rank or tool: verl-otel explain {run_id}" if RECORDER.writes_files else ""
            with python_logging.not_copied():
                log_lines.warn(_logger, "verl-otel: %s%s", self.summarize(advice)["verdict"], detail)

    def _report(self, number: int | None, seconds: float, held: Held, *, evidence: int | None) -> None:
        labels = ((attr.HELD_KIND, held.kind), (attr.HELD_CAUSE, held.cause))
        counter(metric_names.STEP_HELD, labels).record(held.seconds)
        self._held_steps += 1
        key = (held.kind, held.cause)
        if key in self._held or len(self._held) < MAX_CAUSES:
            self._held[key] = self._held.get(key, 0.0) + held.seconds
        fields: dict[str, AttributeValue] = {
            "kind": held.kind,
            "cause": held.cause,
            "held_seconds": held.seconds,
            "step_seconds": seconds,
        }
        run_log.add_step(logs.HELD, number, fields, logs.WARNING)
        step = "a step" if number is None else f"step {number}"
        if held.kind == "phase":
            what = f"{step} took {seconds:.1f} s: phase {held.cause} {held.seconds:.1f} s longer than usual{_name_rank(held.kind)}"
        else:
            what = f"{step} began {held.seconds:.1f} s late: {held.cause} took longer than usual"
        run_status.note_verdict(what)
        if not RECORDER.verdict_lines or clock() - self._last_line < LINE_SECONDS:
            return
        self._last_line = clock()
        with python_logging.not_copied():
            log_lines.warn(_logger, "verl-otel: %s%s", what, _name_evidence(evidence))


def _name_rank(kind: str) -> str:
    """Return that a phase is one of this rank: only the files of all ranks tell which one the others waited for. Empty without other ranks."""
    rank = find_rank(os.environ) if kind == PHASE else None
    return "" if rank is None else f" on rank {rank}, which may have waited for another one in it"


def _name_evidence(number: int | None) -> str:
    """Return the command that shows more of a step; empty where it finds no files."""
    if not RECORDER.writes_files:
        return ""
    run = f" {RECORDER.run_id}" if RECORDER.run_id else ""
    return f". Evidence: verl-otel explain{run}" + ("" if number is None else f" --step {number}")


def _cover(intervals: Sequence[Interval], begin: float, end: float) -> float:
    """Return the seconds between two times that lie in at least one interval."""
    total, reached = 0.0, begin
    for _, start, stop in sorted(intervals, key=lambda interval: interval[1]):
        first, last = max(start, reached), min(stop, end)
        if last > first:
            total += last - first
            reached = last
    return total
