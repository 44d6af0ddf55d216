# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The texts for verdicts, stragglers, savings, GPU time and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import model, step_lengths
from verl_otel.analysis.findings import Excess, Held, SingleWait, find_single_wait
from verl_otel.analysis.gpu import accounting
from verl_otel.analysis.levers.ranking import Lever
from verl_otel.analysis.model import Part, Step, Verdict
from verl_otel.analysis.traces.timeline import NOT_KEPT, UNLINKED
from verl_otel.analysis.verdicts import blocked_loops, off_policy, own_workers
from verl_otel.cli.formatting import end_of, name_error, number, show_bytes, show_settings
from verl_otel.semconv.kinds import GPU_CAUSES, NOTHING_DELAYED, SUBJECTS, TOO_FEW, TOO_FEW_COMPARED, WORK

if TYPE_CHECKING:
    from verl_otel.analysis import whole_run
    from verl_otel.cli.documents import explain

EVIDENCE: Final = {
    "arrival": "the call reached it late",
    "data": "it prepared longer before it computed",
    "tokens": "it was given more tokens; that is about what it costs",
    "cpu": "it needed more CPU time; that is about what it costs",
    own_workers.BEGAN: "its method began later than on the others",
    own_workers.TOOK: "its method took longer than on the others",
}
WASTE: Final = {
    "aborted": "aborted, never trained on",
    "failed": "of failed trajectories, never trained on",
    "dropped": "never trained on (filtered, stale, or the run ended before)",
    "lost": "lost: their step failed, or the run went on from an earlier checkpoint",
    "zero_variance": "trained on without a signal (all scores of their group are equal)",
    "truncated": "with a signal, trained on although cut at the limit of tokens",
}
ENDS: Final = {
    "finished": "finished by the model",
    "length": "cut at the limit of tokens",
    "turn_limit": "ended at the limit of turns",
    "timeout": "ended by a time-out",
    "tool_failed": "ended by the exception of a tool",
    "failed": "ended by an exception outside of tools",
    "aborted": "ended because the engine dropped their last request",
    "cancelled": "cancelled",
}
DROPPED: Final = {
    "stale": "older than the limit of staleness",
    "no_signal": "of groups without a signal",
    "failed": "of failed groups",
    "surplus": "more than a batch needed",
    "filtered": "received by a step that trained without them",
}
NOTABLE_WASTE: Final = 0.3
"""Share of tokens without a signal for which there is advice."""
NO_SIGNAL: Final = (
    "prompts that are never or always solved have no gradient: filter their groups, as DAPO does "
    "[algorithm.filter_groups.enable=True], or take other prompts"
)
"""That advice, with settings of verl in brackets."""
SMALL_SHARE: Final = 0.005
"""Smaller shares round to 0% and are not shown."""
NOTABLE_BETWEEN: Final = 0.1
"""Time between two steps of at least this share of the step is shown."""
LISTED_STEPS: Final = 5
"""Maximum number of unexplained steps that are listed; the others are counted."""
LONGEST_NAME: Final = 80
"""Characters of a name in a sentence; longer ones are cut, so that the sentence is whole."""
SMALLEST_ROW: Final = 0.01
"""Rows of less than this share of a step are left out."""


def doing(kind: str, name: str) -> str:
    """Return a noun phrase for a kind of segment.

    Example:
        doing("tool", "python") == "tool python"
    """
    name = show(name, LONGEST_NAME)
    if name and kind == "tool":
        return f"tool {name}"
    if kind == "unknown" and name == UNLINKED:
        return "unknown: no trajectory is linked to this step"
    if kind == "unknown" and name == NOT_KEPT:
        return "unknown: only the root span of the trajectory was kept"
    if name and kind in ("step", "between"):
        return f"own span {name}"
    work = WORK.get(kind)
    if work is None:
        return kind
    return f"{work.words} ({name})" if name and work.is_named else work.words


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict in two sentences: what was slow, and the saving without it."""
    verdict = verdict._replace(
        subject=show(verdict.subject, LONGEST_NAME),
        cause_name=show(verdict.cause_name, LONGEST_NAME),
        instance=show(verdict.instance, LONGEST_NAME),
        line=show(verdict.line),
    )
    waited = f"; {counted(verdict.waiting, 'other trajectory', 'other trajectories')} waited" if verdict.waiting else ""
    place = verdict.line.partition(" in ")[0].rpartition("/")[2]
    is_itself = verdict.cause == "phase" or verdict.cause_name == verdict.subject
    is_worker = verdict.kind == "rank" and verdict.subject.startswith("worker")
    is_in_no_phase = verdict.kind == "phase" and verdict.cause != "phase" and verdict.subject == "step"
    kind = "worker" if is_worker else "step" if is_in_no_phase else verdict.kind
    subject = SUBJECTS.get("paused loop" if blocked_loops.is_pause(verdict) else kind)
    sentence = (
        subject.sentence
        if subject is not None
        else f"{verdict.kind} {{subject}} delayed it: {{cause}}{{at}} took {{more}} too long."
    )
    text = sentence.format(
        subject=f"{verdict.subject}, which {_end(cancelled=verdict.cancelled)}," if verdict.failed else verdict.subject,
        Subject=verdict.subject.capitalize(),
        cause=_cause(verdict),
        cause_name=verdict.cause_name,
        Cause_name=begin_sentence(verdict.cause_name),
        more=seconds(verdict.seconds),
        at=_place(verdict),
        within="" if is_itself else f", most of it in {_cause(verdict)}",
        where=f", at {verdict.line}" if place and place not in verdict.cause_name else "",
        waited=waited,
        during=f" in {show(verdict.during, LONGEST_NAME)}" if verdict.during else "",
    )
    what = "the next one would have started" if verdict.kind == "between" else "the step would have been"
    by = "earlier" if verdict.kind == "between" else "shorter"
    return f"{text} Without that {what} {seconds(verdict.saved)} {by}."


def _end(*, cancelled: bool) -> str:
    return "was cancelled" if cancelled else "failed"


def _name_late(late: model.Straggler | explain.Straggler | explain.Persistence) -> str:
    return f"{'worker' if late.evidence in own_workers.EVIDENCE else 'rank'} {late.rank} ({late.instance})"


def begin_sentence(name: str) -> str:
    """Return words with a capital; the name of a function, which is followed by its place, stays as it is."""
    return name if name.endswith(")") else f"{name[:1].upper()}{name[1:]}"


def _place(verdict: Verdict) -> str:
    lost = counted(verdict.lost_calls, "failed call") if verdict.lost_calls else ""
    turn = "" if verdict.turn is None else f"turn {verdict.turn}"
    where = f"on {verdict.instance}" if verdict.instance and verdict.instance not in verdict.subject else ""
    details = ", ".join(detail for detail in (lost, turn, where) if detail)
    return f" ({details})" if details else ""


def _cause(verdict: Verdict) -> str:
    if verdict.cause == "worker" and verdict.cause_name:
        return verdict.cause_name
    return doing(verdict.cause, verdict.cause_name)


def describe_cause(cause: Verdict | SingleWait) -> str:
    """Return what delayed a step."""
    if isinstance(cause, Verdict):
        return describe_verdict(cause)
    wait, part = cause, cause.part
    return (
        f"It waited up to {seconds(wait.lead)} for trajectory {wait.trajectory.label} alone, "
        f"which spent {seconds(part.seconds)} of its {seconds(wait.trajectory.seconds)} in "
        f"{name_part(part)}{'' if part.turn is None else f' (turn {part.turn})'}"
        f"{f', and {_end(cancelled=wait.trajectory.cancelled)}' if wait.trajectory.stopped else ''}."
    )


def name_part(part: Part) -> str:
    """Return what a trajectory spent time on."""
    words = {
        "llm": "LLM calls",
        "tool": f"tool {part.name}",
        "reward": "its reward",
        "wait": "waiting (queue, transfer, own code)",
    }
    return words[part.kind]


def describe_held(held: Held) -> str:
    """Return how many of the steps of a run were delayed, and by how much in all, or that they are too few to say so."""
    if not held.long and not held.late:
        if held.usual < step_lengths.FEWEST:
            return TOO_FEW_COMPARED.format(usual=held.usual, of=held.of, needed=step_lengths.FEWEST)
        if held.slow:
            return f"{held.slow:,} of {counted(held.of, 'step')} {'was' if held.slow == 1 else 'were'} slow without a known cause"
        return NOTHING_DELAYED.format(steps=counted(held.of, "step"))
    after = f", after {held.late:,} the next one started late" if held.late else ""
    unexplained = f", of which {seconds(held.rest)} are not explained" if held.rest else ""
    were = "was" if held.long == 1 else "were"
    text = f"{held.long:,} of {counted(held.of, 'step')} {were} delayed{after}"
    of_time = f"{share(held.share)} of the time of all steps and between them"
    return f"{text}, by {seconds(held.seconds)} in all ({of_time}){unexplained}"


def describe_length(step: Step, excess: Excess) -> str:
    """Return how long a step took beside the others, and whether that is known to have a cause.

    Args:
        step: The step.
        excess: By how much it took longer than usual.
    """
    usual = "" if excess.usual is None else f" (others: median {seconds(excess.usual)})"
    if excess.other is not None:
        usual = f" (step {number(excess.other)}: {seconds(excess.other.seconds)})"
    name = f"Step {number(step)} took {seconds(step.seconds)}"
    if step.failed:
        name = f"Step {number(step)} {end_of(step)} after {seconds(step.seconds)}{show(name_error(step.error, step.error_line, step.error_instance))}"
    if step.verdicts:
        late = f", and the next one started {seconds(excess.late)} late" if excess.late else ""
        if excess.is_measured:
            rest = f", of which {seconds(excess.rest)} are not explained" if excess.rest else ""
            return f"{name}, {seconds(excess.longer)} longer than usual{usual}{rest}{late}."
        shorter = f"; without its causes {seconds(excess.longer)} less" if excess.longer else ""
        return f"{name}{usual}{shorter}{late}."
    return " ".join(filter(None, [f"{name}{usual}.", describe_no_cause(step, excess)]))


def describe_no_cause(step: Step, excess: Excess) -> str:
    """Return what is known of the length of a step without a verdict; empty where it failed, or waited for one trajectory alone."""
    if excess.is_starting:
        return "It includes the start-up, so that it is longer than later steps."
    if step.failed or find_single_wait(step) is not None:
        return ""
    if not excess.has_baseline:
        return f"{begin_sentence(TOO_FEW)}."
    if excess.is_unexplained:
        return "No single cause was found."
    if excess.is_longer:
        return "No single cause was found; from twice the median on a step counts as slow."
    return "Nothing delayed it noticeably."


def describe_unexplained(steps: Sequence[Step]) -> str:
    """Return the slow steps without a verdict, the longest first; empty if there are none."""
    slow = step_lengths.find_unexplained(steps)
    texts = [f"step {number(step)} ({seconds(step.seconds)})" for step in slow[:LISTED_STEPS]]
    more = [f"{len(slow) - LISTED_STEPS:,} more"] if len(slow) > LISTED_STEPS else []
    return ", ".join([*texts, *more])


def describe_first(steps: Sequence[Step]) -> str:
    """Return the message about the steps that contain start-up; empty if there are none."""
    starting = step_lengths.find_start_up(steps)
    if not starting:
        return ""
    first, again = starting[0], len(starting) - 1
    top = first.longest_phase
    phase = f" ({show(top.key)} {top.share:.0%})" if top is not None else ""
    name = f"Step {number(first)}, the first one," if first is steps[0] else f"Step {number(first)}"
    more = f" {counted(again, 'later step')} also contain{'s' if again == 1 else ''} start-up." if again else ""
    return f"{name} took {seconds(first.seconds)}, which includes the start-up{phase}.{more}"


def describe_failure(failure: model.Failure | explain.Failure) -> str:
    """Return the text about a model, a tool, or the reward, whose calls failed in the trajectories of a step."""
    name = f"{WORK[failure.kind].words.partition(',')[0]} {failure.name}".rstrip()
    zero = f", {failure.unrewarded} of them with score 0 or none" if failure.unrewarded else ""
    calls, trajectories = counted(failure.calls, "call"), counted(failure.trajectories, "trajectory", "trajectories")
    return show(f"{name}: {calls} in {trajectories}{zero}")


def describe_short_rank(short: model.ShortRank | explain.ShortRank) -> str:
    """Return the text about a rank that trained on less than the others."""
    return show(f"rank {short.rank}: {counted(short.samples, 'sample')} in {short.method}, the others {short.usual:g}")


def describe_straggler(straggler: model.Straggler | explain.Straggler) -> str:
    """Return the text about a late rank in one step."""
    return show(
        f"{_name_late(straggler)} {seconds(straggler.seconds)} in {straggler.method}: "
        f"{EVIDENCE.get(straggler.evidence, straggler.evidence)}"
    )


def describe_persistence(persistence: explain.Persistence) -> str:
    """Return the text about a rank that was late in several steps."""
    return show(
        f"{_name_late(persistence)} was late in {persistence.late} of the last {counted(persistence.steps, 'step')}, "
        f"by {seconds(persistence.seconds)} in all; mostly "
        f"{EVIDENCE.get(persistence.evidence, persistence.evidence)} ({persistence.method})"
    )


def describe_pauses(pauses: Iterable[whole_run.UsualPause]) -> Iterator[str]:
    """Yield what pauses processes in usual steps."""
    for pause in pauses:
        yield f"{seconds(pause.seconds):>9} {pause.share:4.0%}  {show(pause.reason)}"


def describe_savings(savings: Sequence[model.Saving | explain.Saving], step_seconds: float) -> Iterator[str]:
    """Yield the savings of a step, the largest first."""
    words = {
        "slowest": "without its slowest trajectory",
        "reward": "with rewards that take no time",
        "blocked": "if no code had blocked an event loop",
    }
    described: set[tuple[int, float]] = set()
    for saving in sorted(savings, key=lambda saving: -saving.seconds):
        is_share = saving.what.endswith("%")
        same = (saving.trajectories, saving.seconds) if is_share or saving.what == "slowest" else None
        if saving.seconds < SMALLEST_ROW * step_seconds or same in described:
            continue
        if same:
            described.add(same)
        if is_share:
            what = f"without the slowest {saving.what} ({saving.trajectories} of its trajectories)"
        elif saving.what.startswith("tool "):
            what = f"if {show(saving.what, LONGEST_NAME)} had never been slower than its median"
        else:
            what = words.get(saving.what, f"without the trajectories of {show(saving.what)}")
        yield f"{seconds(saving.seconds)} {what}"


def device_time(*, has_gpu: bool) -> str:
    """Return what the time of the devices of a run is called; without GPUs its ranks on CPUs are the devices."""
    return "GPU time" if has_gpu else "device time (CPU)"


def device_title(devices: explain.DeviceSum, when: str = "", *, has_gpu: bool) -> str:
    """Return the title of an account of device time: how many devices, and how long each of them was observed.

    Args:
        devices: The time of all devices.
        when: The interval; empty: the whole run.
        has_gpu: False: the devices are ranks on CPUs.
    """
    size = f"{devices.gpus} x {seconds(devices.seconds)}"
    return f"GPU time{when} ({size})" if has_gpu else f"Device time{when} (CPU, {size})"


def describe_balance(sides: explain.Balance | None, *, has_gpu: bool = True) -> Iterator[str]:
    """Yield which side is short of GPUs, and what to do; nothing where rollouts and trainer share GPUs."""
    if sides is None:
        return
    unit = "GPU" if has_gpu else "device"
    yield (
        f"the trainer's {counted(sides.trainer_gpus, unit)} waited for samples {share(sides.trainer_waits)} "
        f"of the time after the start-up, the {counted(sides.rollout_gpus, unit)} of the rollouts "
        f"for the trainer {share(sides.rollouts_wait)}; "
        f"both {share(sides.both_wait)}, with no trajectory open"
    )
    yield sides.advice


def describe_off_policy(found: off_policy.OffPolicy | None) -> Iterator[str]:
    """Yield how far engine and trainer are apart, and how much of it comes with old samples; nothing if unknown."""
    if found is None:
        return
    means = []
    if found.fresh is not None:
        means.append(f"{figure(found.fresh)} in {counted(found.fresh_steps, 'step')} with fresh samples")
    if found.stale is not None:
        means.append(f"{figure(found.stale)} in {counted(found.stale_steps, 'step')} with older ones")
    yield f"{off_policy.DIFFERENCES[found.key]}: {', '.join(means)} (mean age {found.age:.1f} versions)"
    if found.stale is None:
        why = "" if found.suspicious else " (precision, kernels)"
        yield f"all of it is between engine and trainer{why}: no sample was old"
    elif found.from_age is None:
        why = (
            f": {found.local_updates} updates make a version, and only the first trains on fresh ones"
            if found.local_updates > 1
            else ""
        )
        yield f"how much of it comes with the age of the samples is not known: no step had only fresh ones{why}"
    else:
        yield (
            f"{share(found.from_age)} of it comes with the age of the samples (a lower "
            f"trainer.v1.sampler.max_off_policy_threshold makes them fresher), "
            f"{share(1 - found.from_age)} is between engine and trainer"
        )
    if found.suspicious:
        yield (
            f"precision and kernels do not explain that much (verl's FAQ: usual is less than {off_policy.USUAL}, "
            f"more than {off_policy.MOST} is wrong)"
        )
        yield (
            "compare attention, sampling settings, chat template and tokenizer of the engine with the trainer's, "
            "and whether weights arrive"
        )


def describe_devices(devices: explain.DeviceSum) -> Iterator[str]:
    """Yield GPU time: one line per state, with its causes. Idle and overhead of less than 1% have no line."""
    for state, part in devices.states.items():
        if part >= SMALLEST_ROW or state == "productive":
            detail = ", ".join(
                f"{cause.replace('_', ' ')} {of_cause:.0%}"
                for cause, of_cause in devices.causes.items()
                if GPU_CAUSES[cause].state == state and of_cause >= SMALL_SHARE
            )
            yield f"{state:<10} {percent(part):>4}  {detail}".rstrip()


def describe_syncs(syncs: Iterable[whole_run.WeightSync]) -> Iterator[str]:
    """Yield bytes, seconds and parts of a weight sync, on ranks and on replicas."""
    for sync in syncs:
        parts = ", ".join(f"{part} {seconds(value)}" for part, value in sync.parts.items())
        rate = f", {show_bytes(sync.bytes / sync.seconds)} a second" if sync.seconds else ""
        yield f"{show_bytes(sync.bytes)} in {seconds(sync.seconds)}{rate}: {parts} (medians of {show(sync.instance)})"


def describe_spilled(spilled: Iterable[whole_run.Spilled]) -> Iterator[str]:
    """Yield what Ray's object stores wrote to disk, and read back."""
    for one in spilled:
        verb = "written to disk, because it was full" if one.direction == "write" else "read back"
        rate = f", {show_bytes(one.bytes / one.seconds)} a second" if one.seconds else ""
        yield f"{show_bytes(one.bytes):>10}  {verb}: {seconds(one.seconds)}{rate}"


def describe_memory(processes: Iterable[whole_run.ProcessMemory]) -> Iterator[str]:
    """Yield the resident memory of processes: what each had first, and has now."""
    for one in processes:
        highest = f", at most {show_bytes(one.highest)}" if one.highest > one.newest else ""
        first = f"{show_bytes(one.first)} at its first record"
        yield f"{show_bytes(one.newest):>10}  {show(one.instance)}: {first}{highest}"


def describe_kept(kept: Iterable[whole_run.KeptMemory]) -> Iterator[str]:
    """Yield what engines keep on GPUs while they sleep."""
    for one in kept:
        of = f" of {show_bytes(one.limit)} ({percent(one.bytes / one.limit)})" if one.limit else ""
        highest = f", at most {show_bytes(one.highest)}" if one.highest > one.bytes else ""
        yield f"{show_bytes(one.bytes):>10}{of}  {show(one.instance)} on {show(one.device)}{highest}"


def describe_ends(ends: whole_run.TrajectoryEnds) -> Iterator[str]:
    """Yield how trajectories ended, and how many no step trained on; nothing if the model finished all."""
    total = sum(ends.ended.values())
    rows = [(number, ENDS.get(end, end)) for end, number in ends.ended.items()]
    rows += [(number, f"never trained on: {DROPPED.get(reason, reason)}") for reason, number in ends.dropped.items()]
    if ends.ended.keys() - {"finished"} or ends.dropped:
        yield from (
            f"{number:>7,}  {percent(number / max(1, total)):>4}  {show(text)}" for number, text in rows if number
        )


def describe_cost(
    cost: model.Cost | explain.Cost | None, *, has_gpu: bool = True, has_verl: bool = True, when: str = ""
) -> Iterator[str]:
    """Yield the cost per token and the wasted tokens; nothing where it is unknown.

    Args:
        cost: The cost of a step, or of the run.
        has_gpu: False: the devices are ranks on CPUs.
        has_verl: Whether settings of verl are advice.
        when: The interval, if it is not clear from the context.
    """
    if cost is None:
        return
    gpu_seconds, trained, wasted = cost.gpu_seconds, cost.trained_tokens, cost.wasted_tokens
    if gpu_seconds and trained:
        price = gpu_seconds / trained
        unit = "GPU" if has_gpu else "device"
        text = f"{figure(price * 1000)} {unit} ms" if price < 1 else f"{figure(price)} {unit} s"
        tokens_trained = f"{counted(trained, 'token')} that {'was' if trained == 1 else 'were'} trained on"
        yield f"{seconds(gpu_seconds)} of {device_time(has_gpu=has_gpu)}{when} for {tokens_trained}: {text} a token"
    elif trained:
        were = "was" if trained == 1 else "were"
        yield f"{counted(trained, 'token')} {were} trained on; {device_time(has_gpu=has_gpu)} is not known"
    generated = accounting.count_generated(trained, wasted)
    for reason, tokens in sorted(wasted.items(), key=lambda pair: -pair[1]):
        if tokens:
            part = f"{tokens:,} of {counted(generated, 'token')}"
            yield f"{part} ({percent(tokens / max(1, generated))}) {WASTE.get(reason, reason)}"
            if reason == "zero_variance" and tokens >= NOTABLE_WASTE * generated:
                yield f"  {show_settings(NO_SIGNAL, has_verl=has_verl)}"


def figure(value: float) -> str:
    """Return a number with three significant digits and all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


NOTED_START_UP: Final = 1.0
"""Shorter start-ups in seconds are not described."""
START_UP: Final = {
    "begin": "until the first call to workers: Ray, imports, data, placement",
    "workers_start": "{name}: start and imports of the workers",
    "call": "{name} on the workers",
    "between": "after {name}: no spans; engines and agent loops start here",
    "weight_sync": "weight sync",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "rest": "more calls",
}
"""Texts for the parts of a start-up."""


def title_start_up(start_up: explain.StartUp) -> str:
    """Return before which step a start-up was, and how long it took."""
    name = "the first step" if start_up.step is None else f"step {start_up.step}"
    return f"Before {name}: {seconds(start_up.seconds)} from the start of the program"


def describe_start_up(start_up: explain.StartUp) -> list[tuple[str, float]]:
    """Return text and seconds of each part of a start-up, in the order of time; short ones are one part, the last."""
    parts = start_up.parts
    if len(parts) == 1 and parts[0].kind == "begin":  # no worker was called: an own loop
        return [("not divided: no call to workers in it", parts[0].seconds)]
    shown = [part for part in parts if part.seconds >= SMALLEST_ROW * start_up.seconds]
    lines = [(START_UP[part.kind].format(name=START_UP.get(part.name, part.name)), part.seconds) for part in shown]
    rest = sum(part.seconds for part in parts if part not in shown)
    return [*lines, (counted(len(parts) - len(shown), "shorter part"), rest)] if rest else lines


def percent(value: float) -> str:
    """Return a share as a percentage for a table; no part rounds to 0%, and none to 100% beside others."""
    if 0 < value < SMALL_SHARE:
        return "<1%"
    return ">99%" if 1 - SMALL_SHARE <= value < 1 else f"{value:.0%}"


def share(value: float) -> str:
    """Return a share as a percentage for a sentence; see `percent`."""
    return percent(value).replace("<", "less than ").replace(">", "more than ")


LEVERS: Final = {
    "tool": "tool {} takes half of its time",
    "unblocked_tool": "tool {} does not block its event loop",
    "unblocked_reward": "reward {} does not block its event loop",
    "reward": "reward {} takes half of its time",
    "tail": "the slowest {} of the trajectories take no longer than the others",
    "agent_loop_workers": "twice as many agent loop workers",
    "replicas": "twice as many replicas",
    "reward_workers": "twice as many reward workers",
    "between": "the time between two steps is half as long",
    "logging": "logging ({}) takes half of its time",
    "data_loading": "loading the next batch takes half of its time",
    "weight_sync": "weights are sent in the background",
    "asynchrony": "trajectories are submitted one step earlier, on devices of their own",
}
"""What is changed by each kind of lever; ``{}`` is its subject."""


def describe_lever(lever: Lever) -> str:
    """Return what is changed by a lever.

    Example:
        ``tool search takes half of its time``
    """
    text = LEVERS.get(lever.kind, f"{lever.kind} {{}}").format(show(lever.subject))
    return " ".join(text.split())
