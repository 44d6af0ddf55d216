# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel report --json``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any

from verl_otel.analysis import model, scalars
from verl_otel.analysis.document import Document, Number, about
from verl_otel.analysis.findings import find_single_wait
from verl_otel.cli import headlines, run_selection
from verl_otel.cli.documents.base import (
    Answer,
    Attempt,
    ErrorType,
    Failed,
    Folders,
    Interrupted,
    Missing,
    Orphans,
    Phases,
    Repeated,
    RunId,
    State,
    fill,
)
from verl_otel.cli.documents.explain import (
    Part,
    StartUp,
    Unfinished,
    Wait,
    make_start_ups,
    make_unfinished,
    make_wait,
)
from verl_otel.cli.formatting import headline


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
    rollouts: Annotated[
        float, about("seconds from the start of gen to the end of its rollouts; 0: unknown, or they had ended before")
    ]
    unnoticed: Annotated[float, about("seconds from then to the end of gen")]
    between: Annotated[float, about("seconds to the next step, ended or not, or to the last record of the run")]
    trajectories: Annotated[tuple[str, ...], about("trace ids of those that it trained on")]


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
    cancelled: bool
    whole: Annotated[bool, about("false: only its root span was kept")]
    outcome: Annotated[str, about("success, failure, or why it was stopped; empty: unknown")]
    finish: Annotated[str, about("why it ended, as its agent loop says; empty: unknown")]
    turns: int
    prompt_tokens: int
    response_tokens: Annotated[int, about("with the answers of tools")]
    process: Annotated[str, about("that ran it")]
    label: Annotated[str, about("short name: prompt and number in its group")]
    parts: tuple[Part, ...]


class Rewards(Document):
    """Means of the reward over the first and the last third of the steps that have one."""

    steps: Annotated[int, about("steps of a third")]
    first: float
    last: float


class Report(Answer):
    """Where the time of a run went."""

    run_id: RunId
    name: Annotated[str, about("what commands take to read this run again")]
    state: State
    headline: Annotated[
        tuple[str, ...], about("project, experiment and trainer in words, empty: unknown; then the counts")
    ]
    findings: tuple[headlines.Headline, ...]
    facts: Annotated[dict[str, Any], about("run.json: attempts, project, experiment, configuration")]
    steps: tuple[Step, ...]
    start_up: tuple[StartUp, ...]
    trajectories: tuple[Trajectory, ...]
    slowest: Annotated[tuple[str, ...], about("trace ids of the slowest ones of the run, the slowest first")]
    rewards: Rewards | None
    reward: Annotated[dict[str, Number], about("mean reward by step; null: no finite number")]
    waits: tuple[Wait, ...]
    unfinished: tuple[Unfinished, ...]
    missing: Missing
    orphans: Orphans
    folders: Folders
    next: Annotated[tuple[str, ...], about("commands that explain the run")]


def make_report(run: model.Explanation) -> Report:
    """Return the report on a run.

    For a long run it contains the slowest trajectories of each step and of the whole run, and trajectory ids of some
    steps.
    """
    waits = [wait for step in run.steps if (wait := find_single_wait(step)) is not None]
    name, reward = run_selection.name_run(run), scalars.find_rewards(run.series)
    return fill(
        Report,
        run,
        name=name,
        headline=list(headline(run)),
        findings=headlines.find_headlines(run),
        facts=run.manifest,
        steps=[_make_step(step) for step in run.steps],
        start_up=make_start_ups(run),
        trajectories=list(map(make_trajectory, _choose_trajectories(run))),
        slowest=[f"{each.trace_id:032x}" for each in run.slowest],
        rewards=_compare_thirds(list(reward.values())),
        reward=reward,
        waits=[make_wait(run, wait) for wait in sorted(waits, key=lambda wait: -wait.lead)],
        unfinished=make_unfinished(run),
        next=[f"verl-otel explain {name}"],
    )


def make_trajectory(trajectory: model.Trajectory) -> Trajectory:
    """Return a trajectory."""
    return fill(
        Trajectory,
        trajectory,
        trace_id=f"{trajectory.trace_id:032x}",
        index=trajectory.rollout_index,
        process=trajectory.instance,
    )


def _make_step(step: model.Step) -> Step:
    is_known = step.rollouts_end_ns and step.gen_end_ns and step.rollouts_end_ns >= step.gen_start_ns
    return fill(
        Step,
        step,
        phases={phase.key: phase.seconds for phase in step.phases},
        rollouts=(step.rollouts_end_ns - step.gen_start_ns) / 1e9 if is_known else 0.0,
        unnoticed=max(0.0, (step.gen_end_ns - step.rollouts_end_ns) / 1e9) if is_known else 0.0,
        trajectories=[f"{trace_id:032x}" for trace_id in step.trajectories],
    )


def _compare_thirds(rewards: Sequence[float]) -> Rewards | None:
    """Return the means of the first and the last third; None if a third is one step: two differ by chance."""
    third = len(rewards) // 3
    return Rewards(steps=third, first=fmean(rewards[:third]), last=fmean(rewards[-third:])) if third > 1 else None


def _choose_trajectories(run: model.Explanation) -> list[model.Trajectory]:
    by_id = {trajectory.trace_id: trajectory for step in run.steps for trajectory in step.slowest}
    by_id |= {trajectory.trace_id: trajectory for trajectory in run.slowest}
    return sorted(by_id.values(), key=lambda trajectory: trajectory.start_ns)
