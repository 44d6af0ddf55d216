# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits what is kept of a long run: the detail of some steps, a summary of all steps, the slowest trajectories."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from verl_otel.analysis.io.packing import Packed
from verl_otel.analysis.model import DeviceTime, Step

MAX_DETAILED: Final = 500
"""Steps whose path, ids and trajectories are kept; 20 kB each."""
SLOWEST_STEPS: Final = 200
"""Number of these that are the slowest ones; the others are spread evenly over the run."""
SLOWEST_OF_STEP: Final = 3
SLOWEST_OF_RUN: Final = 20


class Steps:
    """The steps of a run, in the order in which they were added.

    Args:
        asked: Numbers of steps whose detail is always kept.
    """

    def __init__(self, asked: frozenset[int] | None = None) -> None:
        self._asked = asked or frozenset()
        self._steps: list[Step] = []
        self._detailed: set[int] = set()
        self._slowest: list[tuple[float, int]] = []
        self._every = 1
        self._room = MAX_DETAILED

    def add(self, step: Step) -> None:
        """Take a step."""
        index = len(self._steps)
        self._steps.append(step)
        self._detailed.add(index)
        heapq.heappush(self._slowest, (step.seconds, index))
        if len(self._slowest) > SLOWEST_STEPS:
            heapq.heappop(self._slowest)
        if len(self._detailed) > self._room:
            self._thin()

    def _thin(self) -> None:
        """Keep the detail of the slowest steps, the requested ones and every n-th."""
        must = {index for _, index in self._slowest} | {index for index in self._detailed if self._is_asked(index)}
        kept = must | {index for index in self._detailed if index % self._every == 0}
        while len(kept) > MAX_DETAILED and self._every < len(self._steps):
            self._every *= 2
            kept = must | {index for index in self._detailed if index % self._every == 0}
        for index in self._detailed - kept:
            self._steps[index] = shorten(self._steps[index])
        self._detailed = kept
        self._room = max(MAX_DETAILED, 2 * len(must))

    def _is_asked(self, index: int) -> bool:
        return self._steps[index].number in self._asked

    def all(self) -> tuple[Step, ...]:
        """Return the steps in the order of time."""
        return tuple(sorted(self._steps, key=lambda step: step.start_ns))


def shorten(step: Step) -> Step:
    """Return a step without its detail; GPU time is replaced by the mean, so that its size does not depend on the number of GPUs."""
    return step._replace(
        path=(),
        trajectories=(),
        slowest=tuple(trajectory._replace(path=(), activities=()) for trajectory in step.slowest),
        devices=_average(step.devices),
    )


def _average(devices: tuple[DeviceTime, ...]) -> tuple[DeviceTime, ...]:
    """Return the mean GPU time of a step. It sums up to exactly the window, like the GPU times that it replaces."""
    if len(devices) <= 1:
        return devices
    sums: dict[str, int] = {}
    for device in devices:
        for cause, nanoseconds in device.nanoseconds.items():
            sums[cause] = sums.get(cause, 0) + nanoseconds
    count = sum(device.gpus for device in devices)
    means = {cause: nanoseconds // count for cause, nanoseconds in sums.items()}
    if means:
        means[max(means, key=lambda cause: means[cause])] += sum(sums.values()) // count - sum(means.values())
    return (DeviceTime(f"mean of {count} GPUs", means, count),)


class Slowest:
    """The slowest of the trajectories that were added.

    Args:
        count: Number of trajectories to keep.
    """

    def __init__(self, count: int = SLOWEST_OF_RUN) -> None:
        self._count = count
        self._heap: list[tuple[tuple[int, int, int], Packed]] = []

    def add(self, trajectory: Packed) -> None:
        """Take a trajectory."""
        key = (trajectory.end_ns - trajectory.start_ns, -trajectory.start_ns, -trajectory.trace_id)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, (key, trajectory))
        elif key > self._heap[0][0]:
            heapq.heapreplace(self._heap, (key, trajectory))

    def replace(self, trajectories: Iterable[Packed]) -> None:
        """Replace those that are kept by what became known of them since they were added."""
        newer = {trajectory.trace_id: trajectory for trajectory in trajectories}
        self._heap = [(key, newer.get(trajectory.trace_id, trajectory)) for key, trajectory in self._heap]

    def all(self) -> tuple[Packed, ...]:
        """Return the trajectories, the slowest first; of equal ones the earliest first."""
        return tuple(
            trajectory for _, trajectory in sorted(self._heap, key=lambda trajectory: trajectory[0], reverse=True)
        )
