# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain --json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any

from verl_otel.analysis import (
    findings,
    learning,
    model,
    process_memory,
    spilling,
    step_lengths,
    trajectory_ends,
    weight_syncs,
)
from verl_otel.analysis.gpu import accounting
from verl_otel.analysis.levers.ranking import can_replay
from verl_otel.analysis.verdicts import balance, off_policy, stragglers
from verl_otel.analysis.windows import find_restarts
from verl_otel.cli import advice, incidents, run_selection
from verl_otel.cli.documents.base import (
    Answer,
    Attempt,
    Cause,
    Document,
    ErrorType,
    Failed,
    Folders,
    Interrupted,
    Missing,
    OffPolicy,
    Orphans,
    Phases,
    Repeated,
    RunId,
    State,
    Summed,
    about,
    fill,
    name_id,
    sum_parts,
)
from verl_otel.cli.documents.learning import Finding, Move, Signal, describe
from verl_otel.semconv import counted_verdicts, kinds

Devices = Annotated[dict[str, dict[str, float]], about("device time, by device and cause")]


class Counted(Document):
    """How often verdicts of this kind were right in real trainings with planted faults (docs/reference/faults.md)."""

    right: int
    of: int
    series: Annotated[str, about("what was trained: seeds of faults, and modes without one")]


class Verdict(Cause):
    """One cause; the largest saving first."""

    trace_id: Annotated[str | None, about("trajectory")]
    turn: int | None
    instance: Annotated[str, about("process")]
    uncertainty: Annotated[float | None, about("of the clocks")]
    waiting: Annotated[int, about("trajectories that waited for a blocked event loop")]
    line: Annotated[str, about("FILE:LINE in FUNCTION of the code that blocked an event loop; empty: none, or unknown")]
    failed: Annotated[bool, about("it is about a trajectory that failed or was cancelled")]
    lost_calls: Annotated[int, about("calls of the trajectory that failed, where they took most of the excess")]
    during: Annotated[str, about("phase of the process in which it was paused; empty: none, or several")]
    cancelled: Annotated[bool, about("it is about a trajectory that was cancelled")]
    rests_on: Annotated[str, about("; ".join(f"{name}: {words}" for name, words in kinds.EVIDENCE.items()))]
    counted: Annotated[Counted | None, about("how sure it is; null: no verdict of this kind was counted")]


class Segment(Document):
    """Critical path in the order of time."""

    after: Annotated[float, about("seconds after the start of the step")]
    seconds: float
    kind: str
    name: str
    phase: str
    process: str
    trace_id: Annotated[str | None, about("trajectory")]
    turn: int | None


class Saving(Document):
    """By how much a step would have been shorter without something."""

    what: str
    trajectories: int
    seconds: float


class Straggler(Document):
    """Late ranks and workers."""

    method: str
    rank: Annotated[int, about("rank or number of the worker")]
    instance: Annotated[str, about("process")]
    seconds: Annotated[float, about("its delay")]
    evidence: Annotated[str, about("arrival, data, tokens, cpu; in own loops began, took")]


class Persistence(Straggler):
    """Ranks and workers that were late in several steps."""

    late: Annotated[int, about("steps in which it was late")]
    steps: Annotated[int, about("steps that were counted")]


class Cost(Document):
    """Tokens, and the device time that they took."""

    gpu_seconds: Annotated[float, about("device time")]
    trained_tokens: Annotated[
        int,
        about("tokens that the model wrote and that reached the optimizer, without answers of tools and those of lost steps"),
    ]  # fmt: skip
    wasted_tokens: Annotated[
        dict[str, int],
        about(
            "tokens that the model wrote of no use, by the first reason that holds: truncated are those with a signal; they and zero_variance are trained on"
        ),
    ]


class RunCost(Cost):
    """Tokens of the steps, and the device time that they took."""

    generated_tokens: Annotated[int, about("all tokens that the model wrote for training")]


class Failure(Document):
    """Models, tools, or the reward, whose calls failed in the trajectories that a step trained on."""

    kind: Annotated[str, about("llm, tool or reward")]
    name: str
    calls: Annotated[int, about("its calls that failed")]
    trajectories: Annotated[int, about("trajectories with such a call")]
    unrewarded: Annotated[int, about("those of them whose score is 0")]


class ShortRank(Document):
    """Ranks that were given at most half as many samples for an update as the others."""

    method: str
    rank: int
    instance: Annotated[str, about("process")]
    samples: int
    usual: Annotated[float, about("median of the others")]


class Step(Document):
    """The steps that were chosen."""

    number: Annotated[int | None, about("as verl counts")]
    attempt: Attempt
    repeated: Repeated
    trace_id: str
    seconds: float
    longer: Annotated[
        float,
        about("seconds by which it took longer than the median of others; where that is no measure, `explained`"),
    ]
    explained: Annotated[float, about("seconds that its causes cost, each counted once, without what followed it")]
    unexplained: Annotated[float, about("seconds of `longer` that they do not explain; 0: not noticeable")]
    next_late: Annotated[float, about("seconds by which the next step started late")]
    failed: Failed
    interrupted: Interrupted
    error: ErrorType
    verdicts: tuple[Verdict, ...]
    path: tuple[Segment, ...]
    path_summed: tuple[Summed, ...]
    between: Annotated[float, about("seconds to the next step, ended or not, or to the last record of the run")]
    between_summed: Annotated[tuple[Summed, ...], about("parts of it by kind and name, the longest first")]
    phases: Phases
    savings: tuple[Saving, ...]
    gpu: Devices
    stragglers: tuple[Straggler, ...]
    failures: tuple[Failure, ...]
    short_ranks: tuple[ShortRank, ...]
    not_observable: Annotated[tuple[str, ...], about("evidence for late ranks that no span has")]
    cost: Cost | None
    uncertainty: Annotated[float | None, about("of the clocks")]


class Balance(Document):
    """Where rollouts and trainer have GPUs of their own."""

    short: Annotated[str, about("the side that is short of GPUs: rollouts, trainer, neither")]
    trainer_gpus: int
    rollout_gpus: int
    trainer_waits: Annotated[
        float,
        about("share of the time of the trainer's GPUs in which it waited for samples while trajectories were open"),
    ]
    rollouts_wait: Annotated[
        float, about("share of the time of the GPUs of the rollouts in which they waited for the trainer")
    ]
    both_wait: Annotated[
        float,
        about("share of the time of all these GPUs in which the trainer waited for samples and no trajectory was open"),
    ]
    too_few: Annotated[
        float, about("share of the time of the GPUs of the rollouts with open trajectories and no or few requests")
    ]
    advice: Annotated[str, about("which side is short of GPUs, and what to do")]


class StartUpPart(Document):
    """In the order of time, without a gap."""

    kind: Annotated[str, about("begin, workers_start, call, weight_sync, checkpoint, validation, between, rest")]
    name: Annotated[str, about("method that was called; for between the call before")]
    seconds: float


class StartUp(Document):
    """The time before the first step of each of the newest attempts."""

    attempt: int
    seconds: float
    parts: tuple[StartUpPart, ...]


class WeightSync(Document):
    """Weight syncs of the process that took longest, of each kind: gather and load, gather and send, receive and load."""

    instance: Annotated[str, about("the process")]
    bytes: Annotated[float, about("median of the bytes of a sync")]
    seconds: Annotated[float, about("of all parts")]
    parts: Annotated[dict[str, float], about("median of the host seconds by part: gather, send, receive, load")]


class Spilled(Document):
    """What Ray's object stores wrote to disk and read back, as raylets log it."""

    direction: Annotated[str, about("write or read")]
    bytes: Annotated[float, about("of all nodes")]
    seconds: Annotated[float, about("of all nodes")]


class ProcessMemory(Document):
    """Resident memory of the processes that grew most in the newest attempt, the most first."""

    instance: Annotated[str, about("the process")]
    first: Annotated[float, about("bytes at the first record")]
    newest: Annotated[float, about("bytes at the newest record")]
    highest: Annotated[float, about("bytes")]


class KeptMemory(Document):
    """Memory of the GPUs of which sleeping engines keep most, the most first; none of which it is less than 5 %."""

    instance: Annotated[str, about("the process of the engine's server")]
    device: Annotated[str, about("id of the GPU")]
    bytes: Annotated[float, about("at the newest sleep")]
    highest: Annotated[float, about("bytes")]
    limit: Annotated[float | None, about("all bytes of the GPU")]


class TrajectoryEnds(Document):
    """Numbers of trajectories of the training."""

    ended: Annotated[dict[str, int], about("by how they ended")]
    dropped: Annotated[dict[str, int], about("those that no step trained on, by reason")]


class WholeRun(Document):
    """The whole run."""

    gpu: Devices
    balance: Balance | None
    off_policy: OffPolicy | None
    cost: RunCost | None
    trajectories: TrajectoryEnds
    weight_sync: tuple[WeightSync, ...]
    spilled: tuple[Spilled, ...]
    memory: tuple[ProcessMemory, ...]
    asleep: tuple[KeptMemory, ...]
    stragglers: tuple[Persistence, ...]
    start_up: tuple[StartUp, ...]


class Event(Document):
    """Stalls, crashes, forked children that died at work, stops by guards and alerts."""

    kind: Annotated[str, about("stall, crash, child, stopped or alert")]
    after: Annotated[float | None, about("seconds after the start of the run")]
    text: str
    stack: Annotated[tuple[str, ...], about("FILE:LINE in FUNCTION of where the culprit was, the innermost call first")]
    detail: dict[str, Any]
    next: Annotated[str, about("what to do about it; empty if it is no stall and no crash")]


class Clock(Document):
    """Hosts whose clock is not the trainer's."""

    host: str
    ahead: float | None
    uncertainty: float | None


class Explain(Answer):
    """Why steps were slow."""

    run_id: RunId
    state: State
    folders: Folders
    counts: Annotated[
        dict[str, int], about("numbers of spans, trajectories, calls, processes and steps; held: steps with a cause")
    ]
    steps: tuple[Step, ...]
    run: WholeRun
    events: tuple[Event, ...]
    profile: Annotated[str, about("profile of the thresholds of the learning")]
    progress: Annotated[str, about("sentence about the reward; empty: too few steps have one")]
    reward_move: Move
    signals: tuple[Signal, ...]
    findings: tuple[Finding, ...]
    missing: Missing
    orphans: Orphans
    unknown: Annotated[tuple[str, ...], about("what no run records")]
    next: Annotated[tuple[str, ...], about("commands that show more: first of stalls and crashes, then of these steps")]
    clocks: tuple[Clock, ...]


def make_explain(run: model.Explanation, steps: Sequence[model.Step], *, whole: bool = False) -> Explain:
    """Return an explanation of some steps.

    Args:
        run: The explained run.
        steps: The steps to describe, the most important first.
        whole: They are shown with all detail.
    """
    return fill(
        Explain,
        run,
        counts={
            **run.counts._asdict(),
            "steps": len(run.steps),
            "held": sum(bool(step.verdicts) for step in run.steps),
            "unexplained": len(step_lengths.find_unexplained(run.steps)),
        },
        steps=list(map(partial(make_step, run), steps, findings.find_excesses(run.steps, steps))),
        run=fill(
            WholeRun,
            None,
            gpu=_sum_devices(run.devices),
            balance=balance.judge(run.devices),
            off_policy=off_policy.judge_run(run),
            cost=accounting.sum_costs(run.steps, run.unused),
            trajectories=trajectory_ends.count(run.series, find_restarts(run.manifest)),
            weight_sync=weight_syncs.find(run.series),
            spilled=spilling.find(run.series),
            memory=process_memory.find(run.series, find_restarts(run.manifest)),
            asleep=process_memory.find_kept(run.series),
            stragglers=stragglers.find_persistent(run.steps),
            start_up=[
                {
                    "attempt": start_up.attempt,
                    "seconds": start_up.seconds,
                    "parts": [
                        {"kind": part.kind, "name": part.name, "seconds": part.nanoseconds / 1e9}
                        for part in start_up.parts
                    ],
                }
                for start_up in run.start_ups
            ],
        ),
        events=[
            fill(
                Event,
                event,
                after=(event.time_ns - run.start_ns) / 1e9 if run.start_ns else None,
                stack=incidents.find_frames(run, event),
                next=advice.advise_event(run, event.kind),
            )
            for event in run.events
        ],
        **describe(learning.judge(run), has_verl=not run.is_own),
        unknown=accounting.UNKNOWN,
        next=find_next(run, steps, whole=whole),
        clocks=[Clock(host=host, ahead=ahead, uncertainty=doubt) for host, ahead, doubt in run.offsets],
    )


def _find_counted(kind: str) -> dict[str, Any] | None:
    """Return how often verdicts of a kind were right; None if none was counted."""
    known = counted_verdicts.RIGHT.get(kind)
    return known and {"right": known[0], "of": known[1], "series": counted_verdicts.SERIES}


def make_step(run: model.Explanation, step: model.Step, excess: findings.Excess) -> Step:
    """Return a step.

    Args:
        run: The run.
        step: The step.
        excess: By how much it took longer than usual.
    """
    return fill(
        Step,
        step,
        trace_id=f"{step.trace_id:032x}",
        longer=excess.longer,
        explained=excess.explained,
        unexplained=excess.rest,
        next_late=excess.late,
        verdicts=[
            fill(
                Verdict,
                verdict,
                trace_id=name_id(verdict.trace_id),
                next=advice.advise(run, verdict),
                counted=_find_counted(verdict.kind),
            )
            for verdict in step.verdicts
        ],
        path=[
            fill(
                Segment,
                segment,
                after=(segment.start_ns - step.start_ns) / 1e9,
                process=segment.instance,
                trace_id=name_id(segment.trace_id),
            )
            for segment in step.path
        ],
        path_summed=sum_parts(step.groups),
        between_summed=sum_parts(step.between_groups),
        phases={phase.key: phase.seconds for phase in step.phases},
        gpu=_sum_devices(step.devices),
        not_observable=step.blind_spots,
    )


def _sum_devices(devices: Iterable[model.DeviceTime]) -> dict[str, dict[str, float]]:
    return {device.device: {cause: length / 1e9 for cause, length in device.nanoseconds.items()} for device in devices}


def find_next(run: model.Explanation, steps: Sequence[model.Step], *, whole: bool = False) -> list[str]:
    """Return the commands that show more, the first one first; at least one.

    Args:
        run: The explained run.
        steps: The steps that are shown.
        whole: They are shown with all detail.
    """
    name = run_selection.name_run(run)
    numbers = [step.number for step in steps if step.number is not None]
    if whole and numbers and not name.startswith("--otlp"):
        return [f"verl-otel export perfetto {name} --step {numbers[0]}", f"verl-otel explain {name}"]
    commands = [advice.events_command(run)] if incidents.find_incidents(run) else []
    if whole:
        return [*commands, f"verl-otel explain {name}"]
    unexplained = findings.choose_unexplained(run, steps)
    slow = [step for step in steps if step.verdicts or any(step is other for other in unexplained)]
    commands += [f"verl-otel explain {name} --step {step.number}" for step in slow if step.number is not None]
    commands += [f"verl-otel levers {name}"] if can_replay(run.recent_steps) else []
    return [*commands, f"verl-otel report {name}"]
