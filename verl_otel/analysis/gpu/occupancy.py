# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Collects the activity around a window of time: by the devices that it occupied, and by what explains idle ones."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from verl_otel.analysis.gpu import idle_causes
from verl_otel.analysis.gpu.devices import Devices
from verl_otel.analysis.gpu.trajectory_usage import COUNTED, INDEX, unite
from verl_otel.analysis.io.packing import Packed
from verl_otel.analysis.traces.span_names import (
    CALL_PREFIX,
    CHECKPOINT,
    CONSUME,
    DATA_LOADING,
    LOGGING,
    PHASE_PREFIX,
    VALIDATION,
    WEIGHT_SYNC,
    WORKER_PREFIX,
)
from verl_otel.analysis.traces.tree import Node
from verl_otel.semconv import attributes as attr

Part = tuple[int, int, str]
"""Start, end, cause."""

WORK: Final = ("train", "weight_sync", "checkpoint", "switch", "start_up", "sync_wait", "rollout", "validation")
"""Work that occupies a device, in the order of precedence. ``sync_wait``: its requests are delayed by a weight sync."""
VALIDATING: Final = INDEX["validating"]
MARK, LEND, TAKE = range(len(COUNTED), len(COUNTED) + 3)
"""Changes that are not counted: a mark, the trainer lends its GPUs to the rollouts, the trainer takes them back."""
_ROLLOUT, _VALIDATION = WORK.index("rollout"), WORK.index("validation")
_OPENERS: Final = {
    WEIGHT_SYNC: "weight_sync",
    CHECKPOINT: "checkpoint",
    VALIDATION: "validation",
    LOGGING: "logging",
    DATA_LOADING: "data_loading",
}
_ROLLOUTER: Final = "agent_loop"
"""Role of the process that validates in parallel to the trainer (fully asynchronous): its validation occupies no GPU of the trainer."""


class WindowActivity:
    """Activity around a window, in lists that `accounting` sweeps over."""

    def __init__(self, devices: Devices) -> None:
        self.users = devices.users
        self.serving = [number for number, device in enumerate(devices.gpus) if device.serves]
        self.work: list[list[tuple[int, int, int]]] = [[] for _ in devices.gpus]
        """By device: start, end, index of `WORK`."""
        self.changes: list[tuple[int, int, int]] = []
        """Time, index of `COUNTED`, delta."""
        self.starts: list[int] = []
        self._requests: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        """Start and end of requests by replica and index of `WORK`."""
        self.sleeps: list[tuple[int, bool]] = []

    def add_tree(self, root: Node) -> None:
        """Add a trace other than a trajectory's."""
        stack: list[tuple[Node, str]] = [(root, "")]
        while stack:
            node, inside = stack.pop()
            if node.span.name.startswith(WORKER_PREFIX):
                if node.instance != inside:  # a nested method in the same process is part of the outer one
                    self._add_work(node)
                inside = node.instance
            else:
                self._add_step(node)
            stack.extend((child, inside) for child in node.children)

    def _add_work(self, node: Node) -> None:
        start, end = node.span.start_ns, node.span.end_ns
        work = idle_causes.find_work(
            str(node.span.attributes.get(attr.WORKER_METHOD, node.span.name.rpartition(".")[2]))
        )
        for device in self.users.get(node.instance, ()):
            self.work[device].append((start, end, WORK.index(work)))
        if work == "train":
            self._change(start, end, "training")
            self.starts.append(start)

    def _add_step(self, node: Node) -> None:
        span = node.span
        start, end, name = span.start_ns, span.end_ns, span.name
        state = _OPENERS.get(name, "")
        if name.startswith(PHASE_PREFIX):
            key = name.removeprefix(PHASE_PREFIX)
            state = idle_causes.find_state(key)
            if key in ("switch_to_trainer", "switch_to_rollout"):
                self.sleeps.append((end, True) if key == "switch_to_trainer" else (start, False))
            taken = [child.span.end_ns for child in node.children if child.span.name == CONSUME]
            if state == "samples" and taken:  # it has received its samples: the engines are put to sleep
                self._change(max(taken), end, "switch")
        elif name.startswith(CALL_PREFIX):
            state = _find_called(node)
        elif name == VALIDATION:
            self._change(start, end, "validating")
            if node.instance.startswith(_ROLLOUTER):
                return
            self.sleeps.append((start, False))
        if name == WEIGHT_SYNC:
            for device in self.serving:
                self.work[device].append((start, end, WORK.index("sync_wait")))
        if state:
            self._change(start, end, state)

    def add_trajectory(self, trajectory: Packed) -> None:
        """Add a trajectory: its requests occupy replicas, its other activities explain idle ones."""
        self.starts.append(trajectory.start_ns)
        work = _VALIDATION if trajectory.validate else _ROLLOUT
        served, changes = trajectory.use
        self.changes += changes
        for instance, start, end in served:
            self._requests[instance, work].append((start, end))

    def add_blocked(self, start: int, end: int) -> None:
        """Add an interval in which the event loop of trajectories was blocked."""
        self._change(start, end, "blocked")

    def settle(self) -> None:
        """Finish: assign the requests to the devices, with overlapping requests on a replica merged."""
        generating: list[tuple[int, int]] = []
        for (instance, work), times in self._requests.items():
            together = list(unite(times))
            for device in self.users.get(instance, ()):
                self.work[device] += [(start, end, work) for start, end in together]
            if work == _ROLLOUT:
                generating += together
        for start, end in unite(generating):
            self._change(start, end, "in server")

    def _change(self, start: int, end: int, name: str) -> None:
        if end > start:
            what = INDEX[name]
            self.changes.append((start, what, 1))
            self.changes.append((end, what, -1))


def _find_called(call: Node) -> str:
    """Return the state of the trainer in a call, one of `idle_causes.STATES`; empty where its phase or its workers determine it."""
    work = idle_causes.find_work(call.span.name.removeprefix(CALL_PREFIX))
    if work in ("weight_sync", "checkpoint"):
        return work
    has_workers = any(child.span.name.startswith(WORKER_PREFIX) for child in call.children)
    return "missing" if work == "train" and not has_workers else ""


def occupy(work: list[tuple[int, int, int]], begin: int, end: int) -> list[Part]:
    """Return what occupies one device, in parts that do not overlap and lie within the window."""
    changes = []
    for start, stop, rank in work:
        if start < end and stop > begin and stop > start:
            changes.append((start, rank, 1))
            changes.append((stop, rank, -1))
    changes.sort()
    counts = [0] * len(WORK)
    parts: list[Part] = []
    present, reached = 0, begin  # a bit for each kind of work; the lowest one takes precedence
    for when, rank, by in changes:
        if when > reached:
            if present:
                cause = WORK[(present & -present).bit_length() - 1]
                if parts and parts[-1][1] == reached and parts[-1][2] == cause:
                    parts[-1] = (parts[-1][0], min(when, end), cause)
                else:
                    parts.append((reached, min(when, end), cause))
            reached = min(when, end)
        counts[rank] += by
        present = present | 1 << rank if counts[rank] else present & ~(1 << rank)
    return parts
