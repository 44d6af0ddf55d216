# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain --json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final

from verl_otel._internal.printable import seconds
from verl_otel.analysis import findings, model, step_lengths, whole_run
from verl_otel.analysis.document import Document, Number, about
from verl_otel.analysis.findings import SingleWait, sum_savings, sum_shared
from verl_otel.analysis.gpu import accounting, devices
from verl_otel.analysis.levers.ranking import can_replay
from verl_otel.analysis.verdicts import balance, off_policy, stragglers
from verl_otel.analysis.windows import find_restarts
from verl_otel.cli import advice, headlines, incidents, run_selection, wording
from verl_otel.cli.documents.base import (
    Answer,
    Attempt,
    Cause,
    ErrorType,
    Failed,
    Folders,
    HeldSteps,
    Interrupted,
    Missing,
    Orphans,
    Phases,
    Repeated,
    RunId,
    State,
    Summed,
    fill,
    name_id,
    sum_parts,
)
from verl_otel.cli.formatting import dead, failed, headline, show_settings
from verl_otel.cli.learning import Cut, Finding, Move, Signal, Window, describe
from verl_otel.semconv import attributes as attr
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
    line: Annotated[
        str,
        about(
            "FILE:LINE in FUNCTION of the code that blocked an event loop, or at which what is named stood; empty: unknown"
        ),
    ]
    failed: Annotated[bool, about("it is about a trajectory that failed or was cancelled")]
    lost_calls: Annotated[int, about("calls of the trajectory that failed, where they took most of the excess")]
    during: Annotated[str, about("phase of the process in which it was paused; empty: none, or several")]
    cancelled: Annotated[bool, about("it is about a trajectory that was cancelled")]
    text: Annotated[str, about("the same as a sentence")]
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
        about("tokens of the model that reached the optimizer, without answers of tools and those of lost steps"),
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
    """Models, tools, or the reward, whose calls failed in the trajectories that a step trained on, or submitted."""

    kind: Annotated[str, about("llm, tool or reward")]
    name: str
    calls: Annotated[int, about("its calls that failed")]
    trajectories: Annotated[int, about("trajectories with such a call")]
    unrewarded: Annotated[int, about("those of them whose score is 0, or lost: they failed, or their reward did")]


class ShortRank(Document):
    """Ranks that were given at most half as many samples for an update as the others."""

    method: str
    rank: int
    instance: Annotated[str, about("process")]
    samples: int
    usual: Annotated[float, about("median of the others")]


class Part(Document):
    """What a trajectory spent its time on."""

    kind: Annotated[str, about("llm, tool, reward, wait and others")]
    name: Annotated[str, about("tool or model")]
    seconds: float
    calls: Annotated[int, about("number of calls")]
    turn: Annotated[int | None, about("turn of the longest call")]


class Wait(Document):
    """Steps that waited for one trajectory, the longest wait first."""

    step: int | None
    trajectory: Annotated[str, about("trace id")]
    lead: Annotated[float, about("seconds that only this one was waited for")]
    part: Part
    text: Annotated[str, about("the same as a sentence")]
    next: Annotated[str, about("what to do about it")]


class DeviceSum(Document):
    """Device time of all devices together."""

    gpus: Annotated[int, about("number of devices")]
    seconds: Annotated[float, about("mean time of a device")]
    states: Annotated[dict[str, float], about("share by state")]
    causes: Annotated[dict[str, float], about("share by cause, the largest first")]


class Step(Document):
    """The steps that were chosen."""

    number: Annotated[int | None, about("as verl counts")]
    attempt: Attempt
    repeated: Repeated
    trace_id: str
    seconds: float
    title: Annotated[str, about("how long it took, beside the others, as a sentence")]
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
    error_line: Annotated[
        str, about("FILE:LINE in FUNCTION of where it was raised, or its innermost span; empty: unknown")
    ]
    error_instance: Annotated[str, about("process in which it was raised; empty: that of the step")]
    dead_child: Annotated[
        str, about("which child process died, where that broke a pool of processes or the pipe to one; empty: unknown")
    ]
    verdicts: tuple[Verdict, ...]
    shared: Annotated[float, about("seconds that more than one of them counts as its saving")]
    together: Annotated[float, about("seconds that they cost together: `explained` and `next_late`")]
    wait: Annotated[Wait | None, about("a trajectory that it waited for alone, if no verdict is about it")]
    path: tuple[Segment, ...]
    path_summed: tuple[Summed, ...]
    labels: Annotated[dict[str, str], about("names of trajectories by trace id, as far as they are known")]
    is_last: Annotated[bool, about("no step that ended follows it")]
    is_open: Annotated[bool, about("a step follows it that did not end")]
    between: Annotated[float, about("seconds to the next step, ended or not, or to the last record of the run")]
    between_summed: Annotated[tuple[Summed, ...], about("parts of it by kind and name, the longest first")]
    phases: Phases
    savings: tuple[Saving, ...]
    gpu: Devices
    devices: DeviceSum
    stragglers: tuple[Straggler, ...]
    failures: tuple[Failure, ...]
    short_ranks: tuple[ShortRank, ...]
    not_observable: Annotated[tuple[str, ...], about("evidence for late ranks that no span has")]
    cost: Cost | None
    uncertainty: Annotated[Number, about("of the clocks")]


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


class OpenSpan(Document):
    """Its open spans."""

    name: str
    what: Annotated[str, about("step, prompt and number in its group, as far as it has them")]
    age: float
    last_child: str


class Unfinished(Document):
    """Processes with open spans."""

    process: str
    pid: str
    host: str
    dead: Annotated[bool, about("it was silent while others wrote")]
    silent: Annotated[float, about("seconds")]
    text: Annotated[str, about("what was open, in words")]
    work: tuple[OpenSpan, ...]


class StartUpPart(Document):
    """In the order of time, without a gap."""

    kind: Annotated[str, about("begin, workers_start, call, weight_sync, checkpoint, validation, between, rest")]
    name: Annotated[str, about("method that was called; for between the call before")]
    seconds: float


class StartUp(Document):
    """The time before the first step of each of the newest attempts."""

    attempt: int
    step: Annotated[int | None, about("its first step; null: none has ended, or it has no number")]
    seconds: float
    parts: tuple[StartUpPart, ...]


class WholeRun(Document):
    """The whole run."""

    gpu: Devices
    devices: DeviceSum
    learned_wrong: Annotated[tuple[str, ...], about("sentences on what is learned wrong although nothing was slow")]
    balance: Balance | None
    off_policy: off_policy.OffPolicy | None
    cost: RunCost | None
    trajectories: whole_run.TrajectoryEnds
    weight_sync: tuple[whole_run.WeightSync, ...]
    spilled: tuple[whole_run.Spilled, ...]
    memory: tuple[whole_run.ProcessMemory, ...]
    asleep: tuple[whole_run.KeptMemory, ...]
    pauses: Annotated[tuple[whole_run.UsualPause, ...], about("those of usual steps, of 5% or more")]
    stragglers: tuple[Persistence, ...]
    start_up: tuple[StartUp, ...]


class Event(Document):
    """Stalls, crashes, forked children that died at work, stops by guards and alerts."""

    kind: Annotated[str, about("stall, crash, child, stopped or alert")]
    after: Annotated[float | None, about("seconds after the start of the run")]
    time: Annotated[float, about("when it was recorded, in seconds since 1970")]
    resolved: Annotated[bool, about("it is over")]
    text: str
    culprit: Annotated[str, about("process that is to blame; empty: unknown")]
    stack: Annotated[tuple[str, ...], about("FILE:LINE in FUNCTION of where the culprit was, the innermost call first")]
    stacks: Annotated[tuple[incidents.Stack, ...], about("the first of its stacks; all of them with --events")]
    stack_file: Annotated[str, about("file of the run with these stacks; empty: none")]
    other_files: Annotated[tuple[str, ...], about("files with stacks of those that waited")]
    memory: incidents.Memory | None
    log: Annotated[tuple[str, ...], about("end of its log")]
    detail: dict[str, Any]
    next: Annotated[str, about("what to do about it; empty if it is no stall and no crash")]


class Clock(Document):
    """Hosts whose clock is not the trainer's."""

    host: str
    ahead: Number
    uncertainty: Number


class Held(HeldSteps):
    """Steps that took longer than usual, or after which the next one started late."""

    share: Annotated[float, about("of the time of all steps and between them")]


class ToDo(Document):
    """What to do about causes, stalls and crashes, each kind once."""

    kind: Annotated[str, about("key of the table in docs/how-to/act-on-verdicts.md")]
    text: str


class Explain(Answer):
    """Why steps were slow."""

    run_id: RunId
    name: Annotated[str, about("what commands take to read this run again")]
    state: State
    folders: Folders
    start: Annotated[float, about("of the first record, in seconds since 1970; 0: there is none")]
    end: Annotated[float, about("of the last record, in seconds since 1970; 0: there is none")]
    headline: Annotated[
        tuple[str, ...], about("project, experiment and trainer in words, empty: unknown; then the counts")
    ]
    has_gpu: Annotated[bool, about("false: its devices are ranks on CPUs")]
    is_own: Annotated[bool, about("true: a loop of one's own, for which settings of verl are no advice")]
    counts: Annotated[
        dict[str, int], about("numbers of spans, trajectories, calls, processes and steps; held: steps with a cause")
    ]
    failed: Annotated[str, about("steps that failed or were interrupted, in words; empty: none")]
    median: Annotated[float | None, about("seconds of a usual step")]
    longest: Annotated[float | None, about("seconds of the longest step")]
    held: Held
    slow: Annotated[str, about("the slow steps without a cause, in words; empty: none")]
    starting: Annotated[str, about("the steps that contain start-up, in words; empty: none")]
    steps: tuple[Step, ...]
    run: WholeRun
    events: tuple[Event, ...]
    unfinished: tuple[Unfinished, ...]
    to_do: tuple[ToDo, ...]
    profile: Annotated[str, about("profile of the thresholds of the learning")]
    progress: Annotated[str, about("sentence about the reward; empty: too few steps have one")]
    reward_move: Move
    window: Window
    cut: Cut
    signals: tuple[Signal, ...]
    findings: tuple[Finding, ...]
    missing: Missing
    not_recorded: Annotated[tuple[str, ...], about("sentences about what the spans of this run do not say")]
    orphans: Orphans
    unknown: Annotated[tuple[str, ...], about("what no run records")]
    next: Annotated[tuple[str, ...], about("commands that show more: first of stalls and crashes, then of these steps")]
    clocks: tuple[Clock, ...]


def make_explain(
    run: model.Explanation, steps: Sequence[model.Step], *, whole: bool = False, all_stacks: bool = False
) -> Explain:
    """Return an explanation of some steps.

    Args:
        run: The explained run.
        steps: The steps to describe, the most important first.
        whole: They are shown with all detail.
        all_stacks: Whether events have all stacks, not the first ones.
    """
    held = findings.sum_held(run.steps)
    restarts = find_restarts(run.manifest)
    incidents_of_run = dict.fromkeys(event.kind for event in incidents.find_incidents(run))
    pauses = whole_run.find_pauses(run.steps)
    keys = advice.find_keys(run, steps, findings.choose_unexplained(run, steps), is_paused=bool(pauses))
    return fill(
        Explain,
        run,
        name=run_selection.name_run(run),
        start=run.start_ns / 1e9,
        end=run.end_ns / 1e9,
        headline=list(headline(run)),
        counts={
            **run.counts._asdict(),
            "steps": len(run.steps),
            "held": sum(bool(step.verdicts) for step in run.steps),
            "unexplained": len(step_lengths.find_unexplained(run.steps)),
        },
        failed=failed(run),
        median=step_lengths.find_usual(run.steps),
        longest=max((step.seconds for step in run.steps), default=None),
        held=fill(Held, held, steps=held.long, text=wording.describe_held(held)),
        slow=wording.describe_unexplained(run.steps),
        starting=wording.describe_first(run.steps),
        steps=list(map(partial(make_step, run), steps, findings.find_excesses(run.steps, steps))),
        run=fill(
            WholeRun,
            None,
            gpu=_list_devices(run.devices),
            devices=sum_devices(run.devices),
            learned_wrong=[text for text, _ in headlines.find_silent(run)],
            balance=_judge_balance(run),
            off_policy=off_policy.judge_run(run),
            cost=accounting.sum_costs(run.steps, run.unused),
            trajectories=whole_run.count_ends(run.series, restarts),
            weight_sync=whole_run.find_weight_syncs(run.series),
            spilled=whole_run.find_spilled(run.series, restarts),
            memory=whole_run.find_memory(run.series, restarts),
            asleep=whole_run.find_kept(run.series),
            pauses=pauses,
            stragglers=stragglers.find_persistent(run.steps),
            start_up=make_start_ups(run),
        ),
        events=[_make_event(run, event, all_stacks=all_stacks) for event in run.events],
        unfinished=make_unfinished(run),
        to_do=[
            *(ToDo(kind=kind, text=advice.advise_event(run, kind)) for kind in incidents_of_run),
            *(ToDo(kind=key, text=advice.word(key, run)) for key in keys),
        ],
        **describe(whole_run.judge_learning(run), has_verl=not run.is_own),
        not_recorded=list(_find_blind_spots(run, steps if whole else run.steps)),
        unknown=accounting.UNKNOWN,
        next=find_next(run, steps, whole=whole),
        clocks=[Clock(host=host, ahead=ahead, uncertainty=doubt) for host, ahead, doubt in run.offsets],
    )


def _judge_balance(run: model.Explanation) -> Balance | None:
    """Return which side is short of GPUs, and what to do; None where rollouts and trainer share GPUs."""
    sides = balance.judge(run.devices)
    return sides and fill(Balance, sides, advice=show_settings(sides.advice, has_verl=not run.is_own))


def _find_counted(kind: str) -> dict[str, Any] | None:
    """Return how often verdicts of a kind were right; None if none was counted."""
    known = counted_verdicts.RIGHT.get(kind)
    return known and {"right": known[0], "of": known[1], "series": counted_verdicts.SERIES}


def make_step(
    run: model.Explanation, step: model.Step, excess: findings.Excess, path: Sequence[model.Segment] | None = None
) -> Step:
    """Return a step.

    Args:
        run: The run.
        step: The step.
        excess: By how much it took longer than usual.
        path: What is shown of its critical path; None: all.
    """
    found = findings.find_of_step(step)
    wait = next((finding.cause for finding in found if isinstance(finding.cause, SingleWait)), None)
    labels = {trajectory.trace_id: trajectory.label for trajectory in (*run.slowest, *step.slowest)}
    labels |= {verdict.trace_id: verdict.subject for verdict in step.verdicts if verdict.kind == "trajectory"}
    return fill(
        Step,
        step,
        trace_id=f"{step.trace_id:032x}",
        title=wording.describe_length(step, excess),
        longer=excess.longer,
        explained=excess.explained,
        unexplained=excess.rest,
        next_late=excess.late,
        verdicts=[
            fill(
                Verdict,
                verdict,
                trace_id=name_id(verdict.trace_id),
                text=wording.describe_verdict(verdict),
                next=advice.advise(run, verdict),
                counted=_find_counted(verdict.kind),
            )
            for verdict in step.verdicts
        ],
        shared=sum_shared(step),
        together=sum_savings(step),
        wait=None if wait is None else make_wait(run, wait),
        path=[
            fill(
                Segment,
                segment,
                after=(segment.start_ns - step.start_ns) / 1e9,
                process=segment.instance,
                trace_id=name_id(segment.trace_id),
            )
            for segment in (step.path if path is None else path)
        ],
        path_summed=sum_parts(step.groups),
        labels={f"{trace_id:032x}": label for trace_id, label in labels.items()},
        is_last=step is run.steps[-1],
        is_open=bool(step.open_ns),
        between_summed=sum_parts(step.between_groups),
        phases={phase.key: phase.seconds for phase in step.phases},
        gpu=_list_devices(step.devices),
        devices=sum_devices(step.devices),
        not_observable=step.blind_spots,
    )


def make_wait(run: model.Explanation, wait: SingleWait) -> Wait:
    """Return the wait of a step for one trajectory alone."""
    return fill(
        Wait,
        wait,
        step=wait.step.number,
        trajectory=f"{wait.trajectory.trace_id:032x}",
        text=wording.describe_cause(wait),
        next=advice.advise(run, wait),
    )


def make_start_ups(run: model.Explanation) -> list[StartUp]:
    """Return the time before the first step of each of the newest attempts."""
    firsts = {step.attempt: step.number for step in reversed(run.steps)}
    return [fill(StartUp, start_up, step=firsts.get(start_up.attempt)) for start_up in run.start_ups]


def make_unfinished(run: model.Explanation) -> list[Unfinished]:
    """Return the processes of a run with open spans."""
    return [
        fill(
            Unfinished,
            each,
            process=each.process.instance,
            pid=each.process.resource.text(attr.PROCESS_ID),
            host=each.process.resource.text(attr.HOST_NAME),
            text=dead(each) if each.dead else _describe_open(each),
            work=[
                OpenSpan(name=work.span.name, what=_name_work(work), age=work.age, last_child=work.last_child)
                for work in each.work
            ],
        )
        for each in run.completeness.unfinished
    ]


def _describe_open(unfinished: model.UnfinishedProcess) -> str:
    """Return what a process has been doing for the longest time; empty if it has nothing open."""
    if not unfinished.work:
        return ""
    oldest = max(unfinished.work, key=lambda work: work.age)
    child = f", last in {oldest.last_child}" if oldest.last_child else ""
    more = f"; and {len(unfinished.work) - 1} more" if len(unfinished.work) > 1 else ""
    name = f"{oldest.span.name} {_name_work(oldest)}".rstrip()
    return f"{unfinished.process.label}: {name} for {seconds(oldest.age)}{child}{more}"


def _name_work(work: model.OpenSpan) -> str:
    keys = (attr.STEP_NUMBER, attr.SAMPLE_UID, attr.ROLLOUT_INDEX)
    return " ".join(str(work.span.attributes[key]) for key in keys if key in work.span.attributes)


def _make_event(run: model.Explanation, event: model.Event, *, all_stacks: bool) -> Event:
    stacks = incidents.find_stacks(run, event)
    name, others = incidents.find_stack_files(event)
    tail = event.detail.get("log_tail")
    return fill(
        Event,
        event,
        after=(event.time_ns - run.start_ns) / 1e9 if run.start_ns else None,
        time=event.time_ns / 1e9,
        culprit=str(incidents.find_culprit(event).get("instance", "")),
        stack=stacks[0].frames if stacks else (),
        stacks=stacks if all_stacks else incidents.choose_first(event, stacks),
        stack_file=name,
        other_files=others,
        memory=incidents.find_memory(event),
        log=[str(line) for line in tail] if isinstance(tail, list) else [],
        next=advice.advise_event(run, event.kind),
    )


def _list_devices(each: Iterable[model.DeviceTime]) -> dict[str, dict[str, float]]:
    return {device.device: {cause: length / 1e9 for cause, length in device.nanoseconds.items()} for device in each}


def sum_devices(each: Sequence[model.DeviceTime]) -> DeviceSum:
    """Return the time of all devices together."""
    spent, count = model.sum_causes(each), sum(device.gpus for device in each)
    total, states = spent.total(), model.sum_states(spent)
    return DeviceSum(
        gpus=count,
        seconds=total / 1e9 / max(1, count),
        states={state: states[state] / total for state in kinds.GPU_STATES if total},
        causes={cause: length / total for cause, length in spent.most_common()},
    )


def _find_blind_spots(run: model.Explanation, steps: Iterable[model.Step]) -> Iterator[str]:
    """Yield what a run does not say, where it matters: GPU time, why a rank was late, and which step scalars of verl are of."""
    if run.has_gpu and not run.devices and devices.UNKNOWN_GPUS not in run.problems:
        yield "GPU time: no process reports its GPUs"
    late = [step for step in steps if any(verdict.kind == "rank" for verdict in step.verdicts)]
    never = [evidence for evidence in stragglers.EVIDENCE if all(evidence in step.blind_spots for step in late)]
    if late:
        others = [_EVIDENCE_NAMES[evidence] for evidence in never]
        names = ", ".join([*others, "the clock or the power of its GPU"])
        yield f"whether a late rank differs from the others in {names}: not recorded"
    if run.manifest.get(attr.TRAINER_MODE) == "fully_async" and run.steps:
        yield (
            "which step verl's own scalars are of, exactly: verl logs those of a version without its last local step, "
            "and with the last one of the version before"
        )


_EVIDENCE_NAMES: Final = {
    "arrival": "when the call reached it",
    "data": "how long it prepared",
    "tokens": "its number of tokens",
    "cpu": "its CPU time",
}


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
    commands = [f"verl-otel explain {name} --events"] if incidents.find_incidents(run) else []
    if whole:
        return [*commands, f"verl-otel explain {name}"]
    unexplained = findings.choose_unexplained(run, steps)
    slow = [step for step in steps if step.verdicts or any(step is other for other in unexplained)]
    commands += [f"verl-otel explain {name} --step {step.number}" for step in slow if step.number is not None]
    commands += [f"verl-otel levers {name}"] if can_replay(run.recent_steps) else []
    return [*commands, f"verl-otel report {name}"]
