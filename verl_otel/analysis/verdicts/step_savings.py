# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""By how much a step was longer than necessary: the combined savings of its verdicts."""

from __future__ import annotations

from verl_otel.analysis.model import Step, Verdict

_BETWEEN = "between"
_ROLLOUT: tuple[str, ...] = ("trajectory", "replica", "tool", "reward", "loop")


def sum_savings(step: Step) -> float:
    """Return the seconds by which the period of a step was longer than necessary, 0 without verdicts.

    Verdicts on the same phase describe the same wait, so the largest counts; phases are sequential, so theirs add up. A verdict
    whose phase is unknown may be about any of them. What follows the step is apart from it, and its parts follow one another.
    """
    by_phase: dict[str, float] = {}
    for verdict in step.verdicts:
        phase = _phase(step, verdict)
        saved = by_phase.get(phase, 0.0)
        by_phase[phase] = saved + verdict.saved if phase == _BETWEEN else max(saved, verdict.saved)
    unknown = by_phase.pop("", 0.0)
    between = min(step.between, by_phase.pop(_BETWEEN, 0.0))
    return max(unknown, min(step.seconds, sum(by_phase.values()))) + between


def _phase(step: Step, verdict: Verdict) -> str:
    """Return the phase that a verdict is about, empty where it is unknown."""
    if verdict.kind == _BETWEEN:
        return _BETWEEN
    if verdict.kind == "phase":
        return verdict.subject
    lengths: dict[str, int] = {}
    for segment in step.path:
        is_rank = verdict.kind == "rank" and segment.kind in ("worker", "call") and verdict.cause_name in segment.name
        is_rollout = verdict.kind in _ROLLOUT and (segment.trace_id or segment.kind in ("start", "poll"))
        is_pause = verdict.kind == "process" and segment.kind == "paused" and segment.name == verdict.cause_name
        if is_rank or is_rollout or is_pause:
            lengths[segment.phase] = lengths.get(segment.phase, 0) + segment.end_ns - segment.start_ns
    if lengths:
        return max(lengths, key=lambda phase: lengths[phase])
    return "gen" if verdict.kind in _ROLLOUT and any(phase.key == "gen" for phase in step.phases) else ""
