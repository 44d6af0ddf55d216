# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""By how much a step was longer than necessary: the combined savings of its verdicts."""

from __future__ import annotations

from verl_otel.analysis.model import Step, Verdict

_ROLLOUT: tuple[str, ...] = ("trajectory", "replica", "tool", "reward")


def sum_savings(step: Step) -> float:
    """Return the seconds by which a step was longer than necessary, 0 without verdicts.

    Verdicts on the same phase describe the same wait, so the largest counts; phases are sequential, so theirs add up. A verdict
    whose phase is unknown may be about any of them.
    """
    by_phase: dict[str, float] = {}
    for verdict in step.verdicts:
        phase = _phase(step, verdict)
        by_phase[phase] = max(by_phase.get(phase, 0.0), verdict.saved)
    unknown = by_phase.pop("", 0.0)
    return max(unknown, min(step.seconds, sum(by_phase.values())))


def _phase(step: Step, verdict: Verdict) -> str:
    """Return the phase that a verdict is about, empty where it is unknown."""
    if verdict.kind == "phase":
        return verdict.subject
    lengths: dict[str, int] = {}
    for segment in step.path:
        is_rank = verdict.kind == "rank" and segment.kind in ("worker", "call") and verdict.cause_name in segment.name
        is_rollout = verdict.kind in _ROLLOUT and (segment.trace_id or segment.kind in ("start", "poll"))
        if is_rank or is_rollout:
            lengths[segment.phase] = lengths.get(segment.phase, 0) + segment.end_ns - segment.start_ns
    if lengths:
        return max(lengths, key=lambda phase: lengths[phase])
    return "gen" if verdict.kind in _ROLLOUT and any(phase.key == "gen" for phase in step.phases) else ""
