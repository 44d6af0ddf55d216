# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits what is kept of a long run: the detail of some steps, a summary of all steps, the slowest trajectories."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from verl_otel.analysis import saved_state
from verl_otel.analysis.model import DeviceTime, Segment, Step, Trajectory, sum_causes
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.what_if import Wait, find_waits

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
    bare: bool = False
    """Whether steps without detail lose their slowest trajectories and their savings, too."""
    packed: int = 32 << 20
    """Bytes for the compressed detail of the other steps: 11 kB each with 256 trajectories, 240 kB with 8,192.

    Beyond it the oldest have none.
    """


class Steps(msgspec.Struct, dict=True):
    """The steps of a run, in the order in which they were added."""

    _limits: Limits = Limits()
    _steps: list[Step] = []
    _detailed: set[int] = msgspec.field(default_factory=set)
    _slowest: list[tuple[float, int]] = []
    _every: int = 1
    _packed: dict[int, bytes] = {}
    """Steps as they were before they were shortened."""
    _packed_bytes: int = 0

    def __post_init__(self) -> None:
        """Begin without a question."""
        self.asked: frozenset[int] = frozenset()
        """Numbers of steps that `all` returns with their detail, which is not given up while more steps are added."""

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
        if len(self._detailed) > self._limits.detailed:
            self._thin()

    def _thin(self) -> None:
        """Keep the detail of the slowest steps and every n-th, and pack that of the others."""
        must = {index for _, index in self._slowest}
        kept = must | {index for index in self._detailed if index % self._every == 0}
        while len(kept) > self._limits.detailed and self._every < len(self._steps):
            self._every *= 2
            kept = must | {index for index in self._detailed if index % self._every == 0}
        for index in sorted(self._detailed - kept):
            step = self._steps[index]
            if self._limits.packed or step.number in self.asked:
                self._packed[index] = saved_state.pack(step)
                self._packed_bytes += len(self._packed[index])
            short = shorten(step)
            self._steps[index] = short._replace(slowest=(), savings=(), verdicts=()) if self._limits.bare else short
        self._detailed = kept
        if self._packed_bytes > self._limits.packed:
            for index in [index for index in self._packed if self._steps[index].number not in self.asked]:
                self._packed_bytes -= len(self._packed.pop(index))
                if self._packed_bytes <= self._limits.packed:
                    break

    def all(self) -> tuple[Step, ...]:
        """Return the steps in the order of time."""
        whole = {
            index: saved_state.unpack(packed, Step)
            for index, packed in self._packed.items()
            if self._steps[index].number in self.asked
        }
        steps = (whole.get(index, step) for index, step in enumerate(self._steps))
        return tuple(sorted(steps, key=lambda step: step.start_ns))


def shorten(step: Step) -> Step:
    """Return a step without its detail; GPU time is replaced by the mean, so that its size does not depend on the number of GPUs."""
    return step._replace(
        phases=tuple(phase._replace(key=sys.intern(phase.key)) for phase in step.phases),
        groups=_share_names(step.groups),
        between_groups=_share_names(step.between_groups),
        path=(),
        between_path=(),
        trajectories=(),
        lifetimes=b"",
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
    sums = sum_causes(devices)
    count = sum(device.gpus for device in devices)
    means = {cause: nanoseconds // count for cause, nanoseconds in sums.items()}
    if means:
        means[max(means, key=lambda cause: means[cause])] += sums.total() // count - sum(means.values())
    return (DeviceTime(f"mean of {count} GPUs", means, count),)


class Slowest(msgspec.Struct):
    """The slowest of the trajectories that were added."""

    _count: int = SLOWEST_OF_RUN
    _heap: list[tuple[tuple[int, int, int], Trajectory]] = []

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


# -- Keeps the newest steps of a run with all their trajectories, in bounded memory: what is replayed --

MAX_STEPS: Final = 64


class RecentStep(NamedTuple):
    """A step, as far as a replay needs it."""

    number: int | None
    trace_id: int
    start_ns: int
    end_ns: int
    next_ns: int
    """Start of the next step, or end of the run."""
    failed: bool
    path: tuple[Segment, ...]
    between_path: tuple[Segment, ...]
    waits: tuple[Wait, ...]
    consumed: int
    """Number of trajectories that it trained on."""
    members: tuple[Trajectory, ...]
    """Those of them that were found."""
    is_first: bool
    """Whether it is the first step of an attempt, which contains the start-up."""
    is_last: bool
    """Whether the run, an attempt, or what is known of it, ends with it."""


class RecentSteps(msgspec.Struct):
    """The newest steps, added in the order of time."""

    _limit: int
    """Trajectories that are kept, 5 kB each. Fewer steps are kept if they have more, but at least one; 0: none are kept."""
    _steps: list[RecentStep] = []
    _trajectories: int = 0
    _attempt: int = 0

    def add(self, step: Step, members: tuple[Trajectory, ...], roots: tuple[Node, ...], *, is_last: bool) -> None:
        """Add a step.

        Args:
            step: With its period, its critical path and the one after it.
            members: The trajectories that it trained on.
            roots: Roots of all traces that overlap its period, including its own.
            is_last: Whether no step follows.
        """
        if not self._limit:
            return
        root = next((root for root in roots if root.span.trace_id == step.trace_id and not root.span.parent_id), None)
        self._steps.append(
            RecentStep(
                step.number,
                step.trace_id,
                step.start_ns,
                step.end_ns,
                step.next_ns,
                step.failed,
                step.path,
                step.between_path,
                find_waits(step.path, root),
                len(step.trajectories),
                members,
                step.attempt != self._attempt,
                is_last,
            )
        )
        self._attempt = step.attempt
        self._trajectories += len(members)
        while len(self._steps) > MAX_STEPS or (self._trajectories > self._limit and len(self._steps) > 1):
            self._trajectories -= len(self._steps.pop(0).members)

    def all(self) -> tuple[RecentStep, ...]:
        """Return the steps in the order of time."""
        return tuple(self._steps)
