# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""By how much a step was longer than it had to be: what its verdicts would have saved, together."""

from __future__ import annotations

from verl_otel.analysis.facts import Step, Verdict

_ROLLOUT: tuple[str, ...] = ("trajectory", "replica", "tool", "reward")


def saved(step: Step) -> float:
    """Return by how many seconds a step was longer than it had to be, 0 where nothing held it.

    Verdicts on the same phase tell the same wait, so the largest counts; phases follow each other, so theirs add up. A verdict of which the
    phase is not known any more may be about any of them.
    """
    by_phase: dict[str, float] = {}
    for verdict in step.verdicts:
        phase = _phase(step, verdict)
        by_phase[phase] = max(by_phase.get(phase, 0.0), verdict.saved)
    unknown = by_phase.pop("", 0.0)
    return max(unknown, min(step.seconds, sum(by_phase.values())))


def _phase(step: Step, verdict: Verdict) -> str:
    """Return the phase of a step that a verdict is about, empty where it cannot be told."""
    if verdict.kind == "phase":
        return verdict.subject
    lengths: dict[str, int] = {}
    for each in step.path:
        is_rank = verdict.kind == "rank" and each.kind in ("worker", "call") and verdict.cause_name in each.name
        is_rollout = verdict.kind in _ROLLOUT and (each.trace_id or each.kind in ("start", "poll"))
        if is_rank or is_rollout:
            lengths[each.phase] = lengths.get(each.phase, 0) + each.end_ns - each.start_ns
    if lengths:
        return max(lengths, key=lambda phase: lengths[phase])
    return "gen" if verdict.kind in _ROLLOUT and any(phase.key == "gen" for phase in step.phases) else ""
