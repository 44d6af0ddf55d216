# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Resident memory of processes over a run: those that grew most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.analysis.model import Series
from verl_otel.semconv.metric_names import PROCESS_MEMORY_USAGE

MOST: Final = 3
"""Processes that are named."""


class ProcessMemory(NamedTuple):
    """Resident bytes of a process in the newest attempt."""

    instance: str
    first: float
    newest: float
    highest: float


def find(series: Iterable[Series], restarts: Iterable[int] = ()) -> list[ProcessMemory]:
    """Return the processes that grew most from their first to their newest value, the most first. Those with one value are unknown.

    Args:
        series: Series of the run. Those without a process are the trainer's.
        restarts: When each attempt but the first one began, in nanoseconds since 1970.
    """
    begin_ns = max(restarts, default=0)
    found = []
    for one in series:
        pairs = zip(one.times_ns, one.values, strict=True) if one.name == PROCESS_MEMORY_USAGE else ()
        values = [value for time_ns, value in pairs if time_ns >= begin_ns]
        if len(values) > 1:
            name = dict(one.labels).get("instance", "trainer")
            found.append(ProcessMemory(name, values[0], values[-1], max(values)))
    return sorted(found, key=lambda one: one.first - one.newest)[:MOST]
