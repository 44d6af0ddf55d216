# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What Ray's object store wrote to disk and read back over a run, and the steps that waited for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from verl_otel.analysis.model import Series, Step, Verdict
from verl_otel.analysis.scalars import find_rises
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import RAY_SPILL_IO, RAY_SPILL_TIME

LATE_NS: Final = 15 * 10**9
"""The log of the raylet is read every 10 s (`OTEL_METRIC_EXPORT_INTERVAL`): what a step read may be recorded that much later."""


class Spilled(NamedTuple):
    """What the object stores of all nodes wrote to disk, or read back."""

    direction: str
    """``write`` or ``read``."""
    bytes: float
    seconds: float


def find(series: Iterable[Series], restarts: Iterable[int] = ()) -> list[Spilled]:
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
