# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Resident memory of processes over a run: those that grew most. What engines keep on GPUs while they sleep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.analysis.model import Series
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import ENGINE_MEMORY_ASLEEP, HW_GPU_MEMORY_LIMIT, PROCESS_MEMORY_USAGE

MOST: Final = 3
"""Processes that are named."""
KEPT_SHARE: Final = 0.05
"""Share of a GPU that is remarkable if a sleeping engine keeps it."""


class ProcessMemory(NamedTuple):
    """Resident bytes of a process in the newest attempt."""

    instance: str
    first: float
    newest: float
    highest: float


def find(series: Iterable[Series], restarts: Iterable[int] = ()) -> list[ProcessMemory]:
    """Return the processes that grew most from their first to their newest value, the most first. One value, or none above the first, is no growth.

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
    """Return the GPUs of which sleeping engines keep most, the most first; none of which it is less than `KEPT_SHARE`."""
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
