# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What to do about verdicts, slow steps without one, stalls and crashes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from verl_otel.analysis.findings import SingleWait
from verl_otel.analysis.gpu import idle_causes
from verl_otel.analysis.model import Explanation, Step, Verdict
from verl_otel.analysis.traces.timeline import NOT_KEPT, UNLINKED
from verl_otel.analysis.verdicts import blocked_loops
from verl_otel.cli import run_selection
from verl_otel.cli.formatting import show_settings
from verl_otel.semconv.kinds import ADVICE, SUBJECTS, WORK

PAGE: Final = "docs/how-to/act-on-verdicts.md"
"""The page. Its table has a row for each key of `ADVICE`."""
EVENT_ADVICE: Final = {
    "crash": "read the end of its log, and its memory before",
    "stall": "read where it was, and what that waits for",
}
"""What to do about stalls and crashes."""
_OF_METHODS: Final = {"checkpoint": "checkpoint", "weight_sync": "weight sync"}
"""Keys of `ADVICE` for methods of workers, by their kind of GPU time."""


def advise(run: Explanation, cause: Verdict | SingleWait) -> str:
    """Return what to do about what delayed a step of a run."""
    if isinstance(cause, Verdict):
        return word(_choose(run, find_key(cause)), run)
    if cause.trajectory.stopped:
        return word("cancelled trajectory" if cause.trajectory.cancelled else "failed trajectory", run)
    return word(_choose(run, _find_key("trajectory" if cause.part.kind == "wait" else cause.part.kind)), run)


def word(key: str, run: Explanation | None = None) -> str:
    """Return the sentence of a key of `ADVICE`, with settings of verl where its trainer ran, as in its log (no run)."""
    return show_settings(ADVICE[key], has_verl=run is None or not run.is_own)


def _choose(run: Explanation, key: str) -> str:
    """Return a key, or that of lost calls, which may look like a trajectory's own code."""
    return "lost calls" if key == "agent loop" and run.counts.outside else key


def advise_event(run: Explanation, kind: str) -> str:
    """Return what to do about a stall or a crash; empty for other kinds of events.

    The command in it has no path: a user may give a page that has it to others.
    """
    advice = EVENT_ADVICE.get(kind, "")
    name = run.run_id if run_selection.name_run(run) == run.run_id else "RUN"
    return f"{advice}: verl-otel explain {name} --events shows all of it" if advice else ""


def find_key(verdict: Verdict) -> str:
    """Return the key of a verdict in `ADVICE`."""
    if verdict.failed:
        return "cancelled trajectory" if verdict.cancelled else "failed trajectory"
    if verdict.lost_calls:
        return "failed calls"
    subject = SUBJECTS.get("paused loop" if blocked_loops.is_pause(verdict) else verdict.kind)
    return (subject.advice if subject is not None else "") or _find_key(verdict.cause, verdict.cause_name)


def find_keys(
    run: Explanation, steps: Iterable[Step], unexplained: Iterable[Step], *, is_paused: bool
) -> tuple[str, ...]:
    """Return the keys of what can be done about some steps, each once.

    Args:
        run: Their run.
        steps: Steps whose verdicts are shown.
        unexplained: Slow steps without a verdict: what takes most of their critical path is the place to look at.
        is_paused: Whether processes are paused in usual steps.
    """
    keys = ["no link" if _lacks_link(step) else find_key(verdict) for step in steps for verdict in step.verdicts]
    keys += ["no link" if _lacks_link(step) else _find_key(*step.groups[0][:2]) for step in unexplained if step.groups]
    keys += [WORK["paused"].advice] * is_paused
    return tuple(dict.fromkeys(_choose(run, key) for key in keys))


def _find_key(work: str, name: str = "") -> str:
    if work == "unknown" and name == NOT_KEPT:
        return "not kept"
    if work == "worker":  # a method that computes nothing is no matter of tokens
        return _OF_METHODS.get(idle_causes.find_work(name), "slow worker")
    return WORK[work].advice if work in WORK else "unknown"


def _lacks_link(step: Step) -> bool:
    """Return whether trajectories ran in a step that are linked to none, so that its cause is unknown."""
    return any(kind == "unknown" and name == UNLINKED for kind, name, _ in step.groups)
