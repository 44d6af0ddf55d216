# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON of a report: its keys do not change. Knows nothing of files or arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from verl_otel.analysis.gaps import Gaps
from verl_otel.analysis.load import Run
from verl_otel.analysis.tail import Verdict
from verl_otel.analysis.timeline import Timeline, Trajectory
from verl_otel.semconv import attributes as attr


def to_json(run: Run, timeline: Timeline, gaps: Gaps, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the report as plain data. Seconds everywhere; ids in hexadecimal; null for a number that is none."""
    report = {
        "run_id": run.run_id,
        "facts": run.manifest,
        "steps": [
            {
                "number": step.number,
                "seconds": step.seconds,
                "failed": step.failed,
                "phases": {phase.key: phase.seconds for phase in step.phases},
                "no_phase": step.no_phase,
                "trajectories": [f"{each:032x}" for each in step.trajectories],
            }
            for step in timeline.steps
        ],
        "trajectories": [_trajectory_json(each) for each in timeline.trajectories.values()],
        "reward": reward_by_step(run),
        "verdicts": [
            {
                "step": verdict.step.number,
                "trajectory": f"{verdict.trajectory.trace_id:032x}",
                "lead": verdict.lead,
                "part": verdict.part._asdict(),
            }
            for verdict in verdicts
        ],
        "unfinished": [
            {
                "process": each.process.instance,
                "pid": each.process.resource.text(attr.PROCESS_ID),
                "dead": each.dead,
                "silent": each.silent,
                "work": [
                    {"name": work.span.name, "age": work.age, "last_child": work.last_child} for work in each.work
                ],
            }
            for each in gaps.unfinished
        ],
        "missing": [*gaps.missing, *run.problems],
        "orphans": gaps.orphans,
        "folders": [str(folder) for folder in run.folders],
    }
    return {key: _strict(value) for key, value in report.items()}


def _strict(thing: Any) -> Any:
    """Return plain data without the numbers that JSON does not know."""
    if isinstance(thing, dict):
        return {key: _strict(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_strict(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing


def _trajectory_json(each: Trajectory) -> dict[str, Any]:
    return {
        "trace_id": f"{each.trace_id:032x}",
        "uid": each.uid,
        "index": each.rollout_index,
        "step": each.step,
        "validate": each.validate,
        "seconds": each.seconds,
        "score": each.score,
        "failed": each.failed,
        "parts": [part._asdict() for part in each.parts],
    }


def reward_by_step(run: Run) -> dict[int, float]:
    """Return the mean reward that verl logged for each step."""
    steps = {
        scalar.time_ns: int(scalar.value)
        for scalar in run.scalars
        if scalar.name == "verl.training.step" and math.isfinite(scalar.value)
    }
    found = {
        steps[scalar.time_ns]: scalar.value
        for scalar in run.scalars
        if scalar.name == "verl.average_reward" and scalar.time_ns in steps
    }
    return dict(sorted(found.items()))
