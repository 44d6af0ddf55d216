# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What verdicts, stragglers, savings, GPU time and cost are called in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from verl_otel.analysis import cost
from verl_otel.analysis.facts import CAUSES, STATES, DeviceTime, Saving, Straggler, Verdict
from verl_otel.analysis.stragglers import Persistence
from verl_otel.cli.words import seconds, show

KINDS: Final = {
    "step": "the trainer, between its phases",
    "phase": "the trainer itself",
    "call": "the way to the workers and back",
    "worker": "the workers",
    "weight_sync": "the weight sync",
    "checkpoint": "the checkpoint",
    "validation": "the validation",
    "poll": "rollouts had ended, the trainer had not noticed",
    "start": "no rollout had started yet",
    "trajectory": "own code and waiting",
    "llm": "LLM call, on the way to its server and back",
    "server": "LLM server",
    "queue": "queue of the engine",
    "prefill": "prefill in the engine",
    "decode": "decoding in the engine",
    "tool": "tool",
    "reward": "reward",
    "unknown": "not known: nobody's span lies there",
}
"""What a segment of a critical path waited for."""
EVIDENCE: Final = {
    "arrival": "the call reached it late",
    "data": "it prepared longer before it computed",
    "tokens": "it was given more tokens; that is about what it costs",
    "cpu": "it needed more CPU time; that is about what it costs",
}
WASTE: Final = {
    "aborted": "aborted, never trained on",
    "failed": "of failed trajectories, never trained on",
    "dropped": "never trained on (stale, or the run ended before)",
    "zero_variance": "trained on without a gradient (all scores of their group are equal)",
    "truncated": "trained on although cut at the limit of tokens",
}
_NAMED: Final = {"tool", "worker", "phase", "call"}
SMALL_SHARE: Final = 0.005
"""What rounds to 0 % is not shown."""


def doing(kind: str, name: str) -> str:
    """Return what something waited for, as a noun.

    Example:
        doing("tool", "python") == "tool python"
    """
    if name and kind == "tool":
        return f"tool {name}"
    if name and kind in _NAMED:
        return f"{KINDS[kind]} ({name})"
    return KINDS.get(kind, kind)


def tell(verdict: Verdict) -> str:
    """Return a verdict in two sentences: what was slow, and what that cost the step."""
    more, subject = seconds(verdict.seconds), show(verdict.subject)
    at = _place(verdict)
    text = {
        "trajectory": f"Trajectory {subject} held it: {_cause(verdict)}{at} took {more} longer than for its peers.",
        "replica": f"Replica {subject} held it: its calls took {more} longer than those of the others{at}.",
        "tool": f"Tool {subject} held it: {more} longer than usual{at}.",
        "reward": f"The reward held it: {more} longer than usual{at}.",
        "phase": f"Phase {subject} held it: {more} longer than in other steps{_within(verdict)}{at}.",
        "rank": f"{subject.capitalize()} held it: the others of its group waited {more} for it in {_cause(verdict)}{at}.",
    }.get(verdict.kind, f"{verdict.kind} {subject} held it: {_cause(verdict)}{at} took {more} too long.")
    return f"{show(text)} Without that the step would have been {seconds(verdict.saved)} shorter."


def _place(verdict: Verdict) -> str:
    turn = "" if verdict.turn is None else f"turn {verdict.turn}"
    where = f"on {verdict.instance}" if verdict.instance and verdict.instance not in verdict.subject else ""
    told = ", ".join(each for each in (turn, where) if each)
    return f" ({told})" if told else ""


def _within(verdict: Verdict) -> str:
    is_itself = verdict.cause == "phase" or verdict.cause_name == verdict.subject
    return "" if is_itself else f", most of it in {_cause(verdict)}"


def _cause(verdict: Verdict) -> str:
    if verdict.cause == "worker" and verdict.cause_name:
        return verdict.cause_name
    return doing(verdict.cause, verdict.cause_name)


def tell_straggler(each: Straggler) -> str:
    """Return in words how a rank kept the others waiting."""
    return show(
        f"rank {each.rank} ({each.instance}) {seconds(each.seconds)} in {each.method}: {EVIDENCE.get(each.evidence, each.evidence)}"
    )


def tell_persistence(each: Persistence) -> str:
    """Return in words how often a rank was late."""
    return show(
        f"rank {each.rank} ({each.instance}) was late in {each.late} of the last {each.steps} steps, by {seconds(each.seconds)} in all; "
        f"mostly {EVIDENCE.get(each.evidence, each.evidence)} ({each.method})"
    )


def tell_savings(savings: Sequence[Saving], step_seconds: float) -> Iterator[str]:
    """Yield how much shorter a step would have been without something, what would have mattered most first."""
    words = {"slowest": "without its slowest trajectory", "reward": "with rewards that take no time"}
    told: set[tuple[int, float]] = set()
    for each in sorted(savings, key=lambda saving: -saving.seconds):
        is_share = each.what.endswith("%")
        same = (each.trajectories, each.seconds) if is_share or each.what == "slowest" else None
        if each.seconds < 2 * SMALL_SHARE * step_seconds or same in told:
            continue
        if same:
            told.add(same)
        if is_share:
            what = f"without the slowest {each.what} ({each.trajectories} of its trajectories)"
        elif each.what.startswith("tool "):
            what = f"if {show(each.what)} had never been slower than its median"
        else:
            what = words.get(each.what, f"without {show(each.what)}")
        yield f"{seconds(each.seconds)} {what}"


def tell_devices(devices: Sequence[DeviceTime]) -> Iterator[str]:
    """Yield what GPUs spent their time on: one line for each state, with its causes."""
    sums: dict[str, int] = {}
    for device in devices:
        for cause, nanoseconds in device.nanoseconds.items():
            sums[cause] = sums.get(cause, 0) + nanoseconds
    total = sum(sums.values())
    if not total:
        return
    for state in STATES:
        causes = {cause: count for cause, count in sums.items() if CAUSES.get(cause) == state}
        share = sum(causes.values()) / total
        large = [each for each in sorted(causes.items(), key=lambda pair: -pair[1]) if each[1] / total >= SMALL_SHARE]
        detail = ", ".join(f"{cause.replace('_', ' ')} {count / total:.0%}" for cause, count in large)
        yield f"{state:<10} {share:4.0%}  {detail}".rstrip()


def device_seconds(devices: Iterable[DeviceTime]) -> float:
    """Return the seconds of all GPUs together."""
    return sum(device.gpus * sum(device.nanoseconds.values()) for device in devices) / 1e9


def tell_cost(gpu_seconds: float, trained: int, wasted: Mapping[str, int]) -> Iterator[str]:
    """Yield what tokens cost and which were of no use."""
    if gpu_seconds and trained:
        price = gpu_seconds / trained
        text = f"{figure(price * 1000)} GPU ms" if price < 1 else f"{figure(price)} GPU s"
        yield f"{seconds(gpu_seconds)} of GPU time for {trained:,} tokens that were trained on: {text} a token"
    elif trained:
        yield f"{trained:,} tokens were trained on; GPU time is not known"
    generated = trained + sum(wasted.get(reason, 0) for reason in cost.NEVER_TRAINED)
    for reason, tokens in sorted(wasted.items(), key=lambda pair: -pair[1]):
        yield f"{tokens:,} of {generated:,} tokens ({tokens / max(1, generated):.0%}) {WASTE.get(reason, reason)}"


def figure(value: float) -> str:
    """Return a number with three digits that count, and all those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def share(value: float) -> str:
    """Return a share as a percentage; one that would read as nothing is said to be less than 1 %."""
    return "less than 1%" if 0 < value < SMALL_SHARE else f"{value:.0%}"
