# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept of a long run: the detail of some steps, a summary of all of them, the slowest trajectories."""

from __future__ import annotations

import heapq
from typing import Final

from verl_otel.analysis.facts import DeviceTime, Step
from verl_otel.analysis.packing import Packed

MAX_DETAILED: Final = 500
"""Steps of which path, ids and trajectories are kept; 20 kB each."""
SLOWEST_STEPS: Final = 200
"""So many of them are the slowest ones; the others lie evenly over the run."""
SLOWEST_OF_STEP: Final = 3
SLOWEST_OF_RUN: Final = 20


class Steps:
    """The steps of a run, in the order in which they were explained.

    Args:
        asked: Numbers of steps whose detail is kept whatever happens; None: none in particular.
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
        """Leave the slowest, those that were asked for and every n-th."""
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
        """Return them in the order of time."""
        return tuple(sorted(self._steps, key=lambda step: step.start_ns))


def shorten(step: Step) -> Step:
    """Return a step without its detail; of its GPUs the mean, so that it takes as much room however many there are."""
    return step._replace(
        path=(),
        trajectories=(),
        slowest=tuple(each._replace(path=(), activities=()) for each in step.slowest),
        devices=_average(step.devices),
    )


def _average(devices: tuple[DeviceTime, ...]) -> tuple[DeviceTime, ...]:
    """Return the mean of the GPUs of a step, which all have the same window; it sums up to the window to the nanosecond."""
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
    """The slowest trajectories of those that were added.

    Args:
        count: How many.
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

    def all(self) -> tuple[Packed, ...]:
        """Return them, the slowest first; of equals the one that began first."""
        return tuple(each for _, each in sorted(self._heap, key=lambda each: each[0], reverse=True))
