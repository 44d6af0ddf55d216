# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON of a report: its keys do not change. Knows nothing of files or arguments."""

from __future__ import annotations

import math
from typing import Any

from verl_otel.analysis.facts import Explanation, Trajectory
from verl_otel.cli import held
from verl_otel.cli.explain_json import strict
from verl_otel.semconv import attributes as attr


def to_json(run: Explanation) -> dict[str, Any]:
    """Return the report as plain data. Seconds everywhere; ids in hexadecimal; null for a number that is none.

    Of a long run it has the slowest trajectories of each step and of the whole run, and the ids of those of some steps.
    """
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
            for step in run.steps
        ],
        "trajectories": [_trajectory_json(each) for each in _trajectories(run)],
        "reward": reward_by_step(run),
        "waits": [
            {
                "step": each.step.number,
                "trajectory": f"{each.trajectory.trace_id:032x}",
                "lead": each.lead,
                "part": each.part._asdict(),
            }
            for each in held.find(run)
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
            for each in run.gaps.unfinished
        ],
        "missing": [*run.gaps.missing, *run.problems],
        "orphans": run.gaps.orphans,
        "folders": list(run.folders),
    }
    return {key: strict(value) for key, value in report.items()}


def _trajectories(run: Explanation) -> list[Trajectory]:
    known = {each.trace_id: each for step in run.steps for each in step.slowest}
    known |= {each.trace_id: each for each in run.slowest}
    return sorted(known.values(), key=lambda each: each.start_ns)


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


def reward_by_step(run: Explanation) -> dict[int, float]:
    """Return the mean reward that verl logged for each step."""
    by_name: dict[str, dict[int, float]] = {"verl.training.step": {}, "verl.average_reward": {}}
    for series in run.series:
        if series.name in by_name and not series.labels:
            by_name[series.name].update(zip(series.times_ns, series.values, strict=True))
    steps, rewards = by_name["verl.training.step"], by_name["verl.average_reward"]
    found = {int(steps[when]): value for when, value in rewards.items() if math.isfinite(steps.get(when, math.nan))}
    return dict(sorted(found.items()))
