# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What scalars say of a whole run: weight syncs, how trajectories ended, memory of processes and of sleeping engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple

from verl_otel._internal.printable import counted
from verl_otel.analysis.model import Series
from verl_otel.analysis.scalars import find_rises
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import (
    ENGINE_MEMORY_ASLEEP,
    HW_GPU_MEMORY_LIMIT,
    OTEL_SPANS_DROPPED,
    PROCESS_MEMORY_USAGE,
    ROLLOUT_DROPPED,
    ROLLOUT_TRAJECTORIES,
    WEIGHT_SYNC_PART_DURATION,
    WEIGHT_SYNC_SIZE,
)

SYNCS: Final = (("gather", "load"), ("gather", "send"), ("receive", "load"))
"""The parts of each kind of sync: of a rank into the engine of its own GPU, of a rank to replicas with GPUs of their
own, and of such a replica. A rank may have both of the first ones."""


class WeightSync(NamedTuple):
    """The syncs of one process: medians of what was recorded of each."""

    instance: str
    bytes: float
    parts: dict[str, float]
    """Seconds by part, in their order."""

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts.values())


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
            WeightSync(name, sizes[name], {part: each[part] for part in kind})
            for name, each in parts.items()
            if name in sizes and each.keys() >= set(kind)
        ]
        found += [max(syncs, key=lambda sync: sync.seconds)] if syncs else []
    return found


class TrajectoryEnds(NamedTuple):
    """Numbers of trajectories, without those of validations."""

    ended: dict[str, int]
    """By how they ended, the most first."""
    dropped: dict[str, int]
    """Those that no step trained on, by reason, the most first."""


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


class ProcessMemory(NamedTuple):
    """Resident bytes of a process in the newest attempt."""

    instance: str
    first: float
    newest: float
    highest: float


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


class KeptMemory(NamedTuple):
    """Bytes of a GPU that an engine still held when it had been put to sleep."""

    instance: str
    device: str
    bytes: float
    """At its newest sleep."""
    highest: float
    limit: float | None
    """All bytes of the GPU, if they are known."""


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
            kept.append(KeptMemory(labels.get("instance", "trainer"), device, one.values[-1], max(one.values), None))
    found = [each._replace(limit=limits.get(each.device)) for each in kept]
    notable = [each for each in found if each.highest >= KEPT_SHARE * (each.limit or 0.0)]
    return sorted(notable, key=lambda each: -each.bytes)[:MOST]
