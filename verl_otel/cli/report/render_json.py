# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders a report as JSON. The keys are stable."""

from __future__ import annotations

import math
from typing import Any

from verl_otel.analysis.model import Explanation, Trajectory
from verl_otel.analysis.verdicts import slow_trajectories
from verl_otel.cli.explain.render_json import strict
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import AVERAGE_REWARD, TRAINING_STEP


def to_json(run: Explanation) -> dict[str, Any]:
    """Return the report as plain data. Durations in seconds; ids in hexadecimal; null for unknown values.

    For a long run it contains the slowest trajectories of each step and of the whole run, and trajectory ids of some steps.
    """
    report = {
        "run_id": run.run_id,
        "facts": run.manifest,
        "steps": [
            {
                "number": step.number,
                "attempt": step.attempt,
                "repeated": step.repeated,
                "seconds": step.seconds,
                "failed": step.failed,
                "phases": {phase.key: phase.seconds for phase in step.phases},
                "no_phase": step.no_phase,
                "between": step.between,
                "trajectories": [f"{trace_id:032x}" for trace_id in step.trajectories],
            }
            for step in run.steps
        ],
        "trajectories": [_trajectory_json(trajectory) for trajectory in _trajectories(run)],
        "reward": reward_by_step(run),
        "waits": [
            {
                "step": wait.step.number,
                "trajectory": f"{wait.trajectory.trace_id:032x}",
                "lead": wait.lead,
                "part": wait.part._asdict(),
            }
            for wait in slow_trajectories.find_single_waits(run)
        ],
        "unfinished": [
            {
                "process": unfinished.process.instance,
                "pid": unfinished.process.resource.text(attr.PROCESS_ID),
                "dead": unfinished.dead,
                "silent": unfinished.silent,
                "work": [
                    {"name": work.span.name, "age": work.age, "last_child": work.last_child} for work in unfinished.work
                ],
            }
            for unfinished in run.completeness.unfinished
        ],
        "missing": [*run.completeness.missing, *run.problems],
        "orphans": run.completeness.orphans,
        "folders": list(run.folders),
        "next": [f"verl-otel explain {run.run_id}"],
    }
    return {key: strict(value) for key, value in report.items()}


def _trajectories(run: Explanation) -> list[Trajectory]:
    by_id = {trajectory.trace_id: trajectory for step in run.steps for trajectory in step.slowest}
    by_id |= {trajectory.trace_id: trajectory for trajectory in run.slowest}
    return sorted(by_id.values(), key=lambda trajectory: trajectory.start_ns)


def _trajectory_json(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trace_id": f"{trajectory.trace_id:032x}",
        "uid": trajectory.uid,
        "index": trajectory.rollout_index,
        "step": trajectory.step,
        "validate": trajectory.validate,
        "seconds": trajectory.seconds,
        "score": trajectory.score,
        "failed": trajectory.failed,
        "parts": [part._asdict() for part in trajectory.parts],
    }


def reward_by_step(run: Explanation) -> dict[int, float]:
    """Return the mean reward that verl logged for each step."""
    by_name: dict[str, dict[int, float]] = {TRAINING_STEP: {}, AVERAGE_REWARD: {}}
    for series in run.series:
        if series.name in by_name and not series.labels:
            by_name[series.name].update(zip(series.times_ns, series.values, strict=True))
    steps, rewards = by_name[TRAINING_STEP], by_name[AVERAGE_REWARD]
    rewards_by_step = {
        int(steps[when]): value for when, value in rewards.items() if math.isfinite(steps.get(when, math.nan))
    }
    return dict(sorted(rewards_by_step.items()))
