# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits what is kept of a long run: the detail of some steps, a summary of all steps, the slowest trajectories."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.analysis.model import DeviceTime, Step, Trajectory
from verl_otel.analysis.short_steps import Shortener

MAX_DETAILED: Final = 500
"""Steps whose path, ids and trajectories are kept; 20 kB each."""
SLOWEST_STEPS: Final = 200
"""Number of these that are the slowest ones; the others are spread evenly over the run."""
SLOWEST_OF_STEP: Final = 3
SLOWEST_OF_RUN: Final = 20


class Limits(NamedTuple):
    """How much of a run is kept."""

    waiting: int = 20_000
    """Trajectories that no step has trained on yet, 5 kB each. Beyond the limit the oldest are not found by their step."""
    spent: int = 2_000
    """Trajectories that a step trained on and that a later step may reuse."""
    replayed: int = 10_000
    """Trajectories of the newest steps, which are replayed to find levers; 0: none."""
    detailed: int = MAX_DETAILED
    slowest: int = SLOWEST_STEPS
    packed: bool = False
    """Whether steps without detail are packed and lose the names of their slowest trajectories and their savings."""


class Steps:
    """The steps of a run, in the order in which they were added.

    Args:
        asked: Numbers of steps whose detail is always kept.
        limits: For how many others it is kept.
    """

    def __init__(self, asked: frozenset[int] | None = None, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        self._limits = limits
        self._asked = asked or frozenset()
        self._steps: list[Step] = []
        self._detailed: set[int] = set()
        self._slowest: list[tuple[float, int]] = []
        self._every = 1
        self._shortener = Shortener()
        self._room = limits.detailed

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step) -> None:
        """Take a step."""
        index = len(self._steps)
        self._steps.append(step)
        self._detailed.add(index)
        heapq.heappush(self._slowest, (step.seconds, index))
        if len(self._slowest) > self._limits.slowest:
            heapq.heappop(self._slowest)
        if len(self._detailed) > self._room:
            self._thin()

    def _thin(self) -> None:
        """Keep the detail of the slowest steps, the requested ones and every n-th."""
        must = {index for _, index in self._slowest} | {index for index in self._detailed if self._is_asked(index)}
        kept = must | {index for index in self._detailed if index % self._every == 0}
        while len(kept) > self._limits.detailed and self._every < len(self._steps):
            self._every *= 2
            kept = must | {index for index in self._detailed if index % self._every == 0}
        for index in self._detailed - kept:
            short = shorten(self._steps[index])
            if self._limits.packed:
                short = self._shortener.pack(short._replace(slowest=(), savings=(), verdicts=()))
            self._steps[index] = short
        self._detailed = kept
        self._room = max(self._limits.detailed, 2 * len(must))

    def _is_asked(self, index: int) -> bool:
        return self._steps[index].number in self._asked

    def all(self) -> tuple[Step, ...]:
        """Return the steps in the order of time."""
        return tuple(sorted(self._steps, key=lambda step: step.start_ns))


def shorten(step: Step) -> Step:
    """Return a step without its detail; GPU time is replaced by the mean, so that its size does not depend on the number of GPUs."""
    return step._replace(
        phases=tuple(phase._replace(key=sys.intern(phase.key)) for phase in step.phases),
        groups=_share_names(step.groups),
        between_groups=_share_names(step.between_groups),
        path=(),
        between_path=(),
        trajectories=(),
        slowest=tuple(trajectory._replace(path=(), activities=()) for trajectory in step.slowest),
        devices=_average(step.devices),
    )


def _share_names(groups: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    """Return the groups of a path with names that all steps share: equal texts of different spans are objects of their own."""
    return tuple((sys.intern(kind), sys.intern(name), length) for kind, name, length in groups)


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
        self._heap: list[tuple[tuple[int, int, int], Trajectory]] = []

    def add(self, trajectory: Trajectory) -> None:
        """Take a trajectory."""
        key = (trajectory.end_ns - trajectory.start_ns, -trajectory.start_ns, -trajectory.trace_id)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, (key, trajectory))
        elif key > self._heap[0][0]:
            heapq.heapreplace(self._heap, (key, trajectory))

    def replace(self, trajectories: Iterable[Trajectory]) -> None:
        """Replace those that are kept by what became known of them since they were added."""
        newer = {trajectory.trace_id: trajectory for trajectory in trajectories}
        self._heap = [(key, newer.get(trajectory.trace_id, trajectory)) for key, trajectory in self._heap]

    def all(self) -> tuple[Trajectory, ...]:
        """Return the trajectories, the slowest first; of equal ones the earliest first."""
        return tuple(
            trajectory for _, trajectory in sorted(self._heap, key=lambda trajectory: trajectory[0], reverse=True)
        )
