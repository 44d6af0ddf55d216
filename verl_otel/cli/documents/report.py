# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel report --json``."""

from __future__ import annotations

from typing import Annotated, Any

from verl_otel.analysis import model, scalars
from verl_otel.analysis.verdicts.slow_trajectories import find_single_wait
from verl_otel.cli import run_selection
from verl_otel.cli.documents.base import (
    Answer,
    Attempt,
    Document,
    ErrorType,
    Failed,
    Folders,
    Interrupted,
    Missing,
    Orphans,
    Phases,
    Repeated,
    RunId,
    about,
    fill,
)
from verl_otel.semconv import attributes as attr


class Step(Document):
    """All steps in the order of time."""

    number: Annotated[int | None, about("as verl counts")]
    attempt: Attempt
    repeated: Repeated
    seconds: float
    failed: Failed
    interrupted: Interrupted
    error: ErrorType
    phases: Phases
    no_phase: Annotated[float, about("seconds outside of phases")]
    between: Annotated[float, about("seconds to the next step, ended or not, or to the last record of the run")]
    trajectories: Annotated[tuple[str, ...], about("trace ids of those that it trained on")]


class Part(Document):
    """What a trajectory spent its time on."""

    kind: Annotated[str, about("llm, tool, reward, wait and others")]
    name: Annotated[str, about("tool or model")]
    seconds: float
    calls: Annotated[int, about("number of calls")]
    turn: Annotated[int | None, about("turn of the longest call")]


class Trajectory(Document):
    """The slowest ones."""

    trace_id: str
    uid: Annotated[str, about("prompt")]
    index: Annotated[int, about("number in the group of the prompt")]
    step: int | None
    validate: Annotated[bool, about("of a validation")]
    seconds: float
    score: float | None
    failed: bool
    parts: tuple[Part, ...]


class Wait(Document):
    """Steps that waited for one trajectory, the longest wait first."""

    step: int | None
    trajectory: Annotated[str, about("trace id")]
    lead: Annotated[float, about("seconds that only this one was waited for")]
    part: Part


class OpenSpan(Document):
    """Its open spans."""

    name: str
    age: float
    last_child: str


class Unfinished(Document):
    """Processes with open spans."""

    process: str
    pid: str
    dead: Annotated[bool, about("it was silent while others wrote")]
    silent: Annotated[float, about("seconds")]
    work: tuple[OpenSpan, ...]


class Report(Answer):
    """Where the time of a run went."""

    run_id: RunId
    facts: Annotated[dict[str, Any], about("run.json: attempts, project, experiment, configuration")]
    steps: tuple[Step, ...]
    trajectories: tuple[Trajectory, ...]
    reward: Annotated[dict[str, float | None], about("mean reward by step; null: no finite number")]
    waits: tuple[Wait, ...]
    unfinished: tuple[Unfinished, ...]
    missing: Missing
    orphans: Orphans
    folders: Folders
    next: Annotated[tuple[str, ...], about("commands that explain the run")]


def make_report(run: model.Explanation) -> Report:
    """Return the report on a run.

    For a long run it contains the slowest trajectories of each step and of the whole run, and trajectory ids of some steps.
    """
    waits = [wait for step in run.steps if (wait := find_single_wait(step)) is not None]
    return fill(
        Report,
        run,
        facts=run.manifest,
        steps=[
            fill(
                Step,
                step,
                phases={phase.key: phase.seconds for phase in step.phases},
                trajectories=[f"{trace_id:032x}" for trace_id in step.trajectories],
            )
            for step in run.steps
        ],
        trajectories=[
            fill(Trajectory, each, trace_id=f"{each.trace_id:032x}", index=each.rollout_index)
            for each in _choose_trajectories(run)
        ],
        reward=scalars.find_rewards(run.series),
        waits=[
            fill(Wait, wait, step=wait.step.number, trajectory=f"{wait.trajectory.trace_id:032x}")
            for wait in sorted(waits, key=lambda wait: -wait.lead)
        ],
        unfinished=[
            fill(
                Unfinished,
                each,
                process=each.process.instance,
                pid=each.process.resource.text(attr.PROCESS_ID),
                work=[OpenSpan(name=work.span.name, age=work.age, last_child=work.last_child) for work in each.work],
            )
            for each in run.completeness.unfinished
        ],
        next=[f"verl-otel explain {run_selection.name_run(run)}"],
    )


def _choose_trajectories(run: model.Explanation) -> list[model.Trajectory]:
    by_id = {trajectory.trace_id: trajectory for step in run.steps for trajectory in step.slowest}
    by_id |= {trajectory.trace_id: trajectory for trajectory in run.slowest}
    return sorted(by_id.values(), key=lambda trajectory: trajectory.start_ns)
