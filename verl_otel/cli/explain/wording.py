# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The texts for verdicts, stragglers, savings, GPU time and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from verl_otel._internal.printable import show
from verl_otel.analysis.gpu import token_cost
from verl_otel.analysis.model import CAUSES, STATES, DeviceTime, Saving, Straggler, Verdict
from verl_otel.analysis.verdicts.stragglers import Persistence
from verl_otel.cli.formatting import seconds

KINDS: Final = {
    "step": "the trainer, between its phases",
    "phase": "the trainer itself",
    "call": "transport to the workers and back",
    "worker": "the workers",
    "weight_sync": "the weight sync",
    "checkpoint": "the checkpoint",
    "validation": "the validation",
    "poll": "rollouts had ended, the trainer had not noticed",
    "start": "no rollout had started",
    "trajectory": "own code and waiting time",
    "llm": "LLM call, transport to its server and back",
    "server": "LLM server",
    "queue": "queue of the engine",
    "prefill": "prefill in the engine",
    "decode": "decoding in the engine",
    "tool": "tool",
    "reward": "reward",
    "unknown": "unknown: covered by no span",
}
"""Texts for kinds of segments."""
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
"""Smaller shares round to 0 % and are not shown."""


def doing(kind: str, name: str) -> str:
    """Return a noun phrase for a kind of segment.

    Example:
        doing("tool", "python") == "tool python"
    """
    if name and kind == "tool":
        return f"tool {name}"
    if name and kind in _NAMED:
        return f"{KINDS[kind]} ({name})"
    return KINDS.get(kind, kind)


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict in two sentences: what was slow, and the saving without it."""
    more, subject = seconds(verdict.seconds), show(verdict.subject)
    at = _place(verdict)
    text = {
        "trajectory": f"Trajectory {subject} delayed it: {_cause(verdict)}{at} took {more} longer than for its peers.",
        "replica": f"Replica {subject} delayed it: its calls took {more} longer than those of the others{at}.",
        "tool": f"Tool {subject} delayed it: {more} longer than usual{at}.",
        "reward": f"The reward delayed it: {more} longer than usual{at}.",
        "phase": f"Phase {subject} delayed it: {more} longer than in other steps{_within(verdict)}{at}.",
        "rank": f"{subject.capitalize()} delayed it: the others of its group waited {more} for it in {_cause(verdict)}{at}.",
    }.get(verdict.kind, f"{verdict.kind} {subject} delayed it: {_cause(verdict)}{at} took {more} too long.")
    return f"{show(text)} Without that the step would have been {seconds(verdict.saved)} shorter."


def _place(verdict: Verdict) -> str:
    turn = "" if verdict.turn is None else f"turn {verdict.turn}"
    where = f"on {verdict.instance}" if verdict.instance and verdict.instance not in verdict.subject else ""
    details = ", ".join(detail for detail in (turn, where) if detail)
    return f" ({details})" if details else ""


def _within(verdict: Verdict) -> str:
    is_itself = verdict.cause == "phase" or verdict.cause_name == verdict.subject
    return "" if is_itself else f", most of it in {_cause(verdict)}"


def _cause(verdict: Verdict) -> str:
    if verdict.cause == "worker" and verdict.cause_name:
        return verdict.cause_name
    return doing(verdict.cause, verdict.cause_name)


def describe_straggler(straggler: Straggler) -> str:
    """Return the text about a late rank in one step."""
    return show(
        f"rank {straggler.rank} ({straggler.instance}) {seconds(straggler.seconds)} in {straggler.method}: {EVIDENCE.get(straggler.evidence, straggler.evidence)}"
    )


def describe_persistence(persistence: Persistence) -> str:
    """Return the text about a rank that was late in several steps."""
    return show(
        f"rank {persistence.rank} ({persistence.instance}) was late in {persistence.late} of the last {persistence.steps} steps, by {seconds(persistence.seconds)} in all; "
        f"mostly {EVIDENCE.get(persistence.evidence, persistence.evidence)} ({persistence.method})"
    )


def describe_savings(savings: Sequence[Saving], step_seconds: float) -> Iterator[str]:
    """Yield the savings of a step, the largest first."""
    words = {"slowest": "without its slowest trajectory", "reward": "with rewards that take no time"}
    described: set[tuple[int, float]] = set()
    for saving in sorted(savings, key=lambda saving: -saving.seconds):
        is_share = saving.what.endswith("%")
        same = (saving.trajectories, saving.seconds) if is_share or saving.what == "slowest" else None
        if saving.seconds < 2 * SMALL_SHARE * step_seconds or same in described:
            continue
        if same:
            described.add(same)
        if is_share:
            what = f"without the slowest {saving.what} ({saving.trajectories} of its trajectories)"
        elif saving.what.startswith("tool "):
            what = f"if {show(saving.what)} had never been slower than its median"
        else:
            what = words.get(saving.what, f"without {show(saving.what)}")
        yield f"{seconds(saving.seconds)} {what}"


def describe_devices(devices: Sequence[DeviceTime]) -> Iterator[str]:
    """Yield GPU time: one line per state, with its causes."""
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
        large = [pair for pair in sorted(causes.items(), key=lambda pair: -pair[1]) if pair[1] / total >= SMALL_SHARE]
        detail = ", ".join(f"{cause.replace('_', ' ')} {count / total:.0%}" for cause, count in large)
        yield f"{state:<10} {share:4.0%}  {detail}".rstrip()


def device_seconds(devices: Iterable[DeviceTime]) -> float:
    """Return the sum over all GPUs in seconds."""
    return sum(device.gpus * sum(device.nanoseconds.values()) for device in devices) / 1e9


def describe_cost(gpu_seconds: float, trained: int, wasted: Mapping[str, int]) -> Iterator[str]:
    """Yield the cost per token and the wasted tokens."""
    if gpu_seconds and trained:
        price = gpu_seconds / trained
        text = f"{figure(price * 1000)} GPU ms" if price < 1 else f"{figure(price)} GPU s"
        yield f"{seconds(gpu_seconds)} of GPU time for {trained:,} tokens that were trained on: {text} a token"
    elif trained:
        yield f"{trained:,} tokens were trained on; GPU time is not known"
    generated = token_cost.count_generated(trained, wasted)
    for reason, tokens in sorted(wasted.items(), key=lambda pair: -pair[1]):
        yield f"{tokens:,} of {generated:,} tokens ({tokens / max(1, generated):.0%}) {WASTE.get(reason, reason)}"


def figure(value: float) -> str:
    """Return a number with three significant digits and all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def share(value: float) -> str:
    """Return a share as a percentage; "less than 1%" instead of 0 %."""
    return "less than 1%" if 0 < value < SMALL_SHARE else f"{value:.0%}"
