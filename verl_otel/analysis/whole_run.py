# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What scalars say of a whole run: learning, weight syncs, how trajectories ended, memory, and what Ray's object store wrote to disk."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from statistics import median
from typing import Annotated, Final

from verl_otel._internal.printable import counted
from verl_otel.analysis.document import Document, about
from verl_otel.analysis.model import Explanation, Series, Step, Verdict
from verl_otel.analysis.scalars import (
    ABOUT_STEP,
    StepJoiner,
    find_keys,
    find_limit,
    find_rises,
    read_component,
    read_steps,
)
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE
from verl_otel.analysis.verdicts.blocked_loops import NO_CPU, PAUSED_KIND
from verl_otel.health import signals
from verl_otel.health.conditions import CUT
from verl_otel.health.profiles import from_manifest
from verl_otel.health.signals import Learning
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import (
    ENGINE_MEMORY_ASLEEP,
    HW_GPU_MEMORY_LIMIT,
    OTEL_SPANS_DROPPED,
    PROCESS_MEMORY_USAGE,
    RAY_SPILL_IO,
    RAY_SPILL_TIME,
    ROLLOUT_DROPPED,
    ROLLOUT_TRAJECTORIES,
    WEIGHT_SYNC_PART_DURATION,
    WEIGHT_SYNC_SIZE,
)
from verl_otel.semconv.scalar_keys import CORE_VALIDATION

# -- pauses --

PAUSED_SHARE: Final = 0.05
"""Share of a step from which on pauses that every step has are shown."""
_COMPARED: Final = 3
"""Fewest steps that say what is usual."""


class UsualPause(Document):
    """What pauses the processes that a usual step waits for. Verdicts name only what makes a step longer than others."""

    reason: Annotated[str, about("why, as on the critical path")]
    seconds: Annotated[float, about("median of the seconds of a step's critical path")]
    share: Annotated[float, about("the same as a share of the median step")]
    steps: Annotated[int, about("steps that were counted")]


def find_pauses(steps: Iterable[Step]) -> list[UsualPause]:
    """Return the reasons for which processes on the critical paths of most steps were paused, the longest first."""
    ended = [step for step in steps if step.groups and not step.failed and not step.repeated]
    if len(ended) < _COMPARED:
        return []
    paused = [
        Counter({name: ns / 1e9 for kind, name, ns in step.groups if kind == PAUSED_KIND} | {NO_CPU: step.starved})
        for step in ended
    ]
    usual = median(step.seconds for step in ended)
    medians = {reason: median(each[reason] for each in paused) for reason in set().union(*paused)}
    found = [UsualPause(reason, length, length / usual, len(ended)) for reason, length in medians.items()]
    return sorted((each for each in found if each.share >= PAUSED_SHARE), key=lambda each: -each.seconds)


# -- learning --

LONGEST_RESPONSE: Final = "response_length/max"


def judge_learning(run: Explanation) -> Learning:
    """Return how a run learned, by the thresholds of its profile; steps that were trained again do not count."""
    scores = [key for key in find_keys(run.series) if key.startswith(CORE_VALIDATION)]
    joiner = StepJoiner()
    limit = find_limit(run.series, "response_tokens") or 0.0
    components = [key for one in run.series if (key := read_component(one)) is not None]
    for one in read_steps(run.series, [*signals.KEYS, *ABOUT_STEP, *scores, *components, LONGEST_RESPONSE]):
        longest = one.values.pop(LONGEST_RESPONSE, math.inf)
        if longest < limit:  # verl compares with the width of the batch, which may be that of its longest response
            one.values.pop(CUT, None)
        joiner.add(one.step, one.values)
    return signals.judge([(step.number, step.values) for step in joiner.keep_last()], from_manifest(run.manifest))


# -- weight syncs, trajectories, memory --

SYNCS: Final = (("gather", "load"), ("gather", "send"), ("receive", "load"))
"""The parts of each kind of sync: of a rank into the engine of its own GPU, of a rank to replicas with GPUs of their
own, and of such a replica. A rank may have both of the first ones."""


class WeightSync(Document):
    """Weight syncs of the slowest process of each kind: gather and load, gather and send, receive and load."""

    instance: Annotated[str, about("the process")]
    bytes: Annotated[float, about("median of the bytes of a sync")]
    seconds: Annotated[float, about("of all parts")]
    parts: Annotated[dict[str, float], about("median of the host seconds by part: gather, send, receive, load")]


def find_weight_syncs(series: Iterable[Series]) -> list[WeightSync]:
    """Return the process that took longest in each of `SYNCS`; nothing where no sizes were recorded."""
    sizes: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    for one in series:
        labels = dict(one.labels)
        instance = labels.get("instance", "")
        if one.name == WEIGHT_SYNC_SIZE:
            sizes[instance] = median(one.values)
        elif one.name == WEIGHT_SYNC_PART_DURATION:
            parts.setdefault(instance, {})[labels.get(attr.PART, "")] = median(one.values)
    found = []
    for kind in SYNCS:
        syncs = [
            WeightSync(name, sizes[name], sum(each[part] for part in kind), {part: each[part] for part in kind})
            for name, each in parts.items()
            if name in sizes and each.keys() >= set(kind)
        ]
        found += [max(syncs, key=lambda sync: sync.seconds)] if syncs else []
    return found


class TrajectoryEnds(Document):
    """Numbers of trajectories of the training."""

    ended: Annotated[dict[str, int], about("by how they ended")]
    dropped: Annotated[dict[str, int], about("those that no step trained on, by reason")]


def count_ends(series: Iterable[Series], restarts: Iterable[int] = ()) -> TrajectoryEnds:
    """Add up the counters of a run.

    Args:
        series: The scalars of the run.
        restarts: The start of each attempt but the first: the counters begin again, whatever their values are.
    """
    starts = sorted(restarts)
    found: dict[str, Counter[str]] = {ROLLOUT_TRAJECTORIES: Counter(), ROLLOUT_DROPPED: Counter()}
    for one in series:
        labels = dict(one.labels)
        if one.name in found and labels.get(attr.VALIDATE) != "true":
            key = labels.get(attr.TRAJECTORY_END) or labels.get(attr.REASON, "")
            found[one.name][key] += round(sum(rise for _, rise in find_rises(one, starts)))
    return TrajectoryEnds(*(dict(counts.most_common()) for counts in found.values()))


_LOST: Final = ("file", "memory")
"""Beginnings of the reasons for which spans are in no file of the run."""


def describe_lost(series: Iterable[Series], restarts: Iterable[int] = ()) -> str:
    """Return how many spans are in no file of the run, and why; empty: none, as far as is known.

    Args:
        series: The scalars of the run.
        restarts: As of `count_ends`.
    """
    starts, lost = sorted(restarts), Counter[str]()
    for one in series:
        reason = dict(one.labels).get(attr.REASON, "")
        if one.name == OTEL_SPANS_DROPPED and reason.startswith(_LOST):
            lost[reason] += round(sum(rise for _, rise in find_rises(one, starts)))
    if not lost.total():
        return ""
    return f"spans: {counted(lost.total(), 'span')} could not be written ({', '.join(sorted(lost))}): steps and parts of steps may be missing"


MOST: Final = 3
"""Processes, and GPUs, that are named."""
KEPT_SHARE: Final = 0.05
"""Share of a GPU that is remarkable if a sleeping engine keeps it."""


class ProcessMemory(Document):
    """Resident memory of the processes that grew most in the newest attempt, the most first."""

    instance: Annotated[str, about("the process")]
    first: Annotated[float, about("bytes at the first record")]
    newest: Annotated[float, about("bytes at the newest record")]
    highest: Annotated[float, about("bytes")]


def find_memory(series: Iterable[Series], restarts: Iterable[int] = ()) -> list[ProcessMemory]:
    """Return the processes that grew most from their first to their newest value, the most first.

    Args:
        series: Series of the run. Those without a process are the trainer's.
        restarts: When each attempt but the first one began, in nanoseconds since 1970.
    """
    begin_ns = max(restarts, default=0)
    found = []
    for one in series:
        pairs = zip(one.times_ns, one.values, strict=True) if one.name == PROCESS_MEMORY_USAGE else ()
        values = [value for time_ns, value in pairs if time_ns >= begin_ns]
        if values and max(values) > values[0]:
            name = dict(one.labels).get("instance", "trainer")
            found.append(ProcessMemory(name, values[0], values[-1], max(values)))
    return sorted(found, key=lambda one: one.first - one.newest)[:MOST]


class KeptMemory(Document):
    """Memory of the GPUs of which sleeping engines keep most, and at least 5%, the most first."""

    instance: Annotated[str, about("the process of the engine's server")]
    device: Annotated[str, about("id of the GPU")]
    bytes: Annotated[float, about("at the newest sleep")]
    highest: Annotated[float, about("bytes")]
    limit: Annotated[float | None, about("all bytes of the GPU")]


def find_kept(series: Iterable[Series]) -> list[KeptMemory]:
    """Return the GPUs of which sleeping engines keep most, at least `KEPT_SHARE`, the most first."""
    limits: dict[str, float] = {}
    kept = []
    for one in series:
        labels = dict(one.labels)
        device = labels.get(attr.HW_ID, "")
        if one.name == HW_GPU_MEMORY_LIMIT:
            limits[device] = one.values[-1]
        elif one.name == ENGINE_MEMORY_ASLEEP:
            kept.append((labels.get("instance", "trainer"), device, one.values[-1], max(one.values)))
    found = [KeptMemory(*each, limits.get(each[1])) for each in kept]
    notable = [each for each in found if each.highest >= KEPT_SHARE * (each.limit or 0.0)]
    return sorted(notable, key=lambda each: -each.bytes)[:MOST]


# -- what Ray's object store wrote to disk and read back, and the steps that waited for it --

LATE_NS: Final = 15 * 10**9
"""The log of the raylet is read every 10 s (`OTEL_METRIC_EXPORT_INTERVAL`): what a step read may be recorded that much later."""


class Spilled(Document):
    """What Ray's object stores wrote to disk and read back, as raylets log it."""

    direction: Annotated[str, about("write or read")]
    bytes: Annotated[float, about("of all nodes")]
    seconds: Annotated[float, about("of all nodes")]


def find_spilled(series: Iterable[Series], restarts: Iterable[int] = ()) -> list[Spilled]:
    """Return what was written and read, if anything was.

    Args:
        series: The scalars of the run.
        restarts: As of `find_rises`.
    """
    known, starts = list(series), sorted(restarts)
    found = []
    for direction in ("write", "read"):
        size = sum(rise for _, rise in _find_rises(known, RAY_SPILL_IO, direction, starts))
        if size:
            length = sum(rise for _, rise in _find_rises(known, RAY_SPILL_TIME, direction, starts))
            found.append(Spilled(direction, size, length))
    return found


def name_reads(steps: Iterable[Step], series: Iterable[Series], restarts: Iterable[int] = ()) -> tuple[Step, ...]:
    """Return steps in which a long wait for transport is named after what Ray read back from disk meanwhile, where that explains most of it.

    Writes name nothing: the raylet logs them too rarely to be those of one step.
    """
    rises = sorted(_find_rises(series, RAY_SPILL_TIME, "read", sorted(restarts)))
    if not rises:
        return tuple(steps)
    times_ns = [time_ns for time_ns, _ in rises]
    sums = [0.0, *accumulate(rise for _, rise in rises)]
    named = []
    for step in steps:
        begin, end = bisect_right(times_ns, step.start_ns), bisect_right(times_ns, step.end_ns + LATE_NS)
        length = sums[end] - sums[begin]
        named.append(step._replace(verdicts=tuple(_name(verdict, length) for verdict in step.verdicts)))
    return tuple(named)


def _name(verdict: Verdict, seconds: float) -> Verdict:
    is_read = verdict.cause == "call" and seconds >= DETAIL_SHARE * verdict.seconds
    return verdict._replace(cause="spill", cause_name="", rests_on="counters") if is_read else verdict


def _find_rises(
    series: Iterable[Series], name: str, direction: str, starts: Sequence[int]
) -> Iterator[tuple[int, float]]:
    for one in series:
        if one.name == name and dict(one.labels).get(attr.DISK_DIRECTION) == direction:
            yield from find_rises(one, starts)
