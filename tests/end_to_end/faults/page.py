# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page "Faults" (docs/reference/faults.md), from the results that are kept beside this module."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.end_to_end.faults.judging import find_false, judge
from tests.end_to_end.faults.kinds import CRASHED, DATA, HUNG, KINDS, SLOW

KEPT = Path(__file__).resolve().parent / "results"
BEFORE = "before.jsonl"
"""Results of the same plan before the detectors were changed."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "faults.md"
SOON = 15
"""Seconds within which what hangs or dies is to be named."""


def read_kept(pattern="seed-*.jsonl"):
    """Return the results that are kept."""
    return [json.loads(line) for path in sorted(KEPT.glob(pattern)) for line in path.read_text("utf-8").splitlines()]


def keep(seed, path):
    """Keep the results of a seed, and write the page from all that are kept."""
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"seed-{seed}.jsonl").write_text(path.read_text("utf-8"), "utf-8")
    PAGE.write_text(write(read_kept()), "utf-8")


def write(results):
    """Return the page: counts by kind, the time to the name, false verdicts, and what was not named."""
    by_kind = defaultdict(list)
    for judgement in (judgement for result in results for judgement in judge(result)):
        by_kind[judgement.kind].append(judgement)
    missed = [judgement for name in KINDS for judgement in by_kind[name] if not judgement.named]
    return _TEXT.format(
        trainings=len(results),
        steps=sum(len(result["steps"]) for result in results),
        kinds=len(KINDS),
        tried=sum(bool(by_kind[name]) for name in KINDS),
        held=sum(kind.held_out for kind in KINDS.values()),
        totals=_table(
            ["", "planted", "found", "named rightly", "named rightly, of the held-out kinds"], _total(by_kind)
        ),
        delays=_describe_delays(by_kind),
        before=_describe_before(results),
        false=_describe_false(results),
        kinds_table=_table(
            ["kind", "sort", "where", "held out", "planted", "found", "named rightly", "time to the name"],
            [_count(name, by_kind[name]) for name in KINDS],
        ),
        missed="\n".join(map(_describe_miss, missed)) or "Nothing.",
    )


def _describe_before(results):
    """Return what was named before the detectors were changed, and which recordings are from then."""
    judged = [judgement for result in read_kept(BEFORE) for judgement in judge(result)]
    held = [judgement for judgement in judged if KINDS[judgement.kind].held_out]
    early = [result["training"] for result in results if result.get("early")]
    text = (
        f"Before detectors were changed, {sum(judgement.named for judgement in judged)} of {len(judged)} were named rightly, of the held-out kinds "
        f"{sum(judgement.named for judgement in held)} of {len(held)}."
    )
    if early:
        text += (
            f" Trainings {' and '.join(map(str, early))} were recorded then, without spans of paused processes, and were read again with the present analysis: "
            "what they plant of pauses cannot be named in them."
        )
    return text


def _table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _total(by_kind):
    """Return a row for each series, and one for all."""
    rows = []
    for title, series in (
        ("slow or starved", SLOW),
        ("hung", HUNG),
        ("crashed", CRASHED),
        ("wrong data", DATA),
        ("all", ""),
    ):
        named = [name for name, kind in KINDS.items() if not series or kind.series == series]
        every = [judgement for name in named for judgement in by_kind[name]]
        held = [judgement for name in named if KINDS[name].held_out for judgement in by_kind[name]]
        right = sum(judgement.named for judgement in every)
        rows.append([
            title, str(len(every)), str(sum(judgement.found for judgement in every)),
            f"{right}{_share(right, len(every))}", f"{sum(judgement.named for judgement in held)} of {len(held)}",
        ])  # fmt: skip
    return rows


def _share(count, total):
    return f" ({count / total:.0%})" if total else ""


def _count(name, judgements):
    kind = KINDS[name]
    delays = [judgement.delay for judgement in judgements if judgement.delay is not None]
    return [
        name, kind.sort, kind.where, "yes" if kind.held_out else "", str(len(judgements)),
        str(sum(judgement.found for judgement in judgements)), str(sum(judgement.named for judgement in judgements)),
        f"{max(delays):.1f} s" if delays else "",
    ]  # fmt: skip


def _describe_delays(by_kind):
    judged = [
        judgement for name, kind in KINDS.items() if kind.series in (HUNG, CRASHED) for judgement in by_kind[name]
        if not any(right.startswith("failed") for right in kind.right)
    ]  # fmt: skip
    delays = [judgement.delay for judgement in judged if judgement.delay is not None]
    if not delays:
        return "No fault that hangs or kills a process was planted."
    soon = sum(delay <= SOON for delay in delays)
    return (
        f"Of {len(judged)} faults that hang or kill a process {soon} were named within {SOON} s while the training went on "
        f"(median {median(delays):.1f} s, longest {max(delays):.1f} s)."
    )


def _describe_false(results):
    counted = [find_false(result) for result in results]
    steps, false = sum(count for count, _ in counted), [each for _, found in counted for each in found]
    text = f"{len(false)} verdicts on {steps} healthy steps"
    return text + (f", {1000 * len(false) / steps:.0f} in 1,000." if steps else ".")


def _describe_miss(judgement):
    reason = WHY.get(judgement.kind, "")
    reported = judgement.reported or "nothing"
    size = f" of {judgement.seconds} s" if judgement.seconds else ""
    return f"* {judgement.kind}{size}: reported: *{reported}*." + (f" {reason}" if reason else "")


_OUTSIDE = "It was planted around the span of the method, not in it; the plant lies inside since."
_EARLY = "Recorded before pauses were."
WHY = {
    "slow sampling from the buffer": "All rollouts had ended: that looks like the trainer's poll, which is never judged.",
    "slow clearing of TransferQueue": "The plant was reached inside of the step, where it looks like the trainer's poll; it lies after the step since.",
    "slow reference on all ranks": _OUTSIDE,
    "slow update on all ranks": _OUTSIDE,
    "slow validation": _OUTSIDE,
    "collections of garbage in the agent loop": _EARLY,
    "collections of garbage in the trainer": _EARLY,
    "collections of garbage on a rank": "To make the heap took longer than the collections; it is made before the training since.",
    "interpreter lock held in the agent loop": _EARLY,
    "no free thread in the reward worker": _EARLY,
    "stopped agent loop": _EARLY,
    "stopped trainer": _EARLY,
    "stopped reward worker": _EARLY,
    "stopped storage of TransferQueue": _EARLY,
    "stopped raylet": "Ray's own process has no telemetry.",
    "CPU taken by other programs": "A thread that sleeps gets a CPU at once; the run queue time of threads that compute is read since.",
    "agent loop stopped for long": "The watchdog of the node was in this process, and another process takes over only later.",
}
"""Why a kind was not named, where it is known. Only for what is not named in the results that are kept."""
_TEXT = """# Faults

How many planted faults verl-otel finds and names, counted in real trainings. This page is made from the results in
`tests/end_to_end/faults/results`; `make test-extra ONLY=faults` plants them again.

Each training is real verl (v1 `sync`, GRPO, a tool agent, two ranks with a replica each) on a CPU with two cores. A seed decides which
kinds are planted in which steps, and for how long: 1.5 to 4 s, or 25 s for those that hang. {kinds} kinds were written down before
detectors were made for them, {tried} of them were planted; {held} are held out: they are only counted, and no detector was changed because of one.

* **found**: there is a verdict on the step, or an event at that time.
* **named rightly**: the first verdict on the step, or an event, has the kind and the cause that were written down for it. For the two kinds
  about executors the words were changed when the detector was made.

## In short

{totals}

{delays}

{before}

A hang in a process that does nothing else is listed for the watchdog up to 5 s earlier since these results were recorded.

False verdicts: {false} The machine also ran other work. {trainings} trainings of {steps} steps were read.

## By kind

{kinds_table}

## What was not named rightly

{missed}

## What was not planted

Other modes than `sync`; a clock that jumps, which a container cannot set; rewards that are not numbers, which end the training of a
model as small as this one; several nodes; GPUs. The first checkpoint of a training is not made to hang: it has no peers, so that it is reported
only after half an hour (`VERL_OTEL_STALL_SECONDS`).
"""
