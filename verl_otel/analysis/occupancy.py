# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What happened around a window of time, sorted by the devices that it occupied and by what it says of the idle ones."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from verl_otel.analysis import idleness
from verl_otel.analysis.devices import Devices
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.traces import Node
from verl_otel.analysis.usage import COUNTED, INDEX, unite
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

Part = tuple[int, int, str]
"""From, to, cause."""

WORK: Final = ("train", "weight_sync", "checkpoint", "switch", "start_up", "sync_wait", "rollout", "validation")
"""What can occupy a device, the strongest first. ``sync_wait``: its requests are held back by a weight sync."""
VALIDATING: Final = INDEX["validating"]
MARK, LEND, TAKE = range(len(COUNTED), len(COUNTED) + 3)
"""Changes of nothing that is counted: a moment to look at, the trainer lends its GPUs to the rollouts, it takes them back."""
_PHASE, _CALL, _WORKER = SPANS["phase"].name, SPANS["call"].name, SPANS["worker"].name
_ROLLOUT, _VALIDATION = WORK.index("rollout"), WORK.index("validation")
_OPENERS: Final = {"verl.weight_sync": "weight_sync", "verl.checkpoint": "checkpoint", "verl.validation": "validation"}
_ROLLOUTER: Final = "agent_loop"
"""Role of the process that validates beside the trainer (fully asynchronous): its validation holds no GPU of the trainer's."""


class Seen:
    """What is known around a window, in lists that `ledger` sweeps over."""

    def __init__(self, devices: Devices) -> None:
        self.users = devices.users
        self.serving = [number for number, device in enumerate(devices.known) if device.serves]
        self.work: list[list[tuple[int, int, int]]] = [[] for _ in devices.known]
        """By device: from, to, index of `WORK`."""
        self.changes: list[tuple[int, int, int]] = []
        """When what (index of `COUNTED`) changed by how much."""
        self.starts: list[int] = []
        self._requests: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        """From, to, by replica and index of `WORK`."""
        self.sleeps: list[tuple[int, bool]] = []

    def add_tree(self, root: Node) -> None:
        """Add a trace other than a trajectory's."""
        stack: list[tuple[Node, str]] = [(root, "")]
        while stack:
            node, inside = stack.pop()
            if node.span.name.startswith(_WORKER):
                if node.instance != inside:  # what a method calls in its own process is part of it
                    self._add_work(node)
                inside = node.instance
            else:
                self._add_step(node)
            stack.extend((child, inside) for child in node.children)

    def _add_work(self, node: Node) -> None:
        start, end = node.span.start_ns, node.span.end_ns
        work = idleness.find_work(str(node.span.attributes.get(attr.WORKER_METHOD, node.span.name.rpartition(".")[2])))
        for device in self.users.get(node.instance, ()):
            self.work[device].append((start, end, WORK.index(work)))
        if work == "train":
            self._change(start, end, "training")
            self.starts.append(start)

    def _add_step(self, node: Node) -> None:
        span = node.span
        start, end, name = span.start_ns, span.end_ns, span.name
        state = _OPENERS.get(name, "")
        if name.startswith(_PHASE):
            key = name.removeprefix(_PHASE)
            state = idleness.find_state(key)
            if key in ("switch_to_trainer", "switch_to_rollout"):
                self.sleeps.append((end, True) if key == "switch_to_trainer" else (start, False))
            taken = [child.span.end_ns for child in node.children if child.span.name == "verl.consume"]
            if state == "samples" and taken:  # it has its samples: now the engines are put to sleep
                self._change(max(taken), end, "switch")
        elif name.startswith(_CALL):
            state = _find_called(node)
        elif name == "verl.validation":
            self._change(start, end, "validating")
            if node.instance.startswith(_ROLLOUTER):
                return
            self.sleeps.append((start, False))
        if name == "verl.weight_sync":
            for device in self.serving:
                self.work[device].append((start, end, WORK.index("sync_wait")))
        if state:
            self._change(start, end, state)

    def add_trajectory(self, each: Packed) -> None:
        """Add a trajectory: its requests occupy replicas, all else of it is what idle ones wait for."""
        self.starts.append(each.start_ns)
        work = _VALIDATION if each.validate else _ROLLOUT
        served, changes = each.use
        self.changes += changes
        for instance, start, end in served:
            self._requests[instance, work].append((start, end))

    def settle(self) -> None:
        """Nothing more is added: lay the requests over the devices, those that overlap on a replica as one."""
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
    """Return what the trainer does in a call of its workers, one of `idleness.STATES`; empty where its phase or the workers say it."""
    work = idleness.find_work(call.span.name.removeprefix(_CALL))
    if work in ("weight_sync", "checkpoint"):
        return work
    has_workers = any(child.span.name.startswith(_WORKER) for child in call.children)
    return "missing" if work == "train" and not has_workers else ""


def occupy(work: list[tuple[int, int, int]], begin: int, end: int) -> list[Part]:
    """Return what occupies one device, in parts that neither touch each other's time nor leave the window."""
    changes = []
    for start, stop, rank in work:
        if start < end and stop > begin and stop > start:
            changes.append((start, rank, 1))
            changes.append((stop, rank, -1))
    changes.sort()
    counts = [0] * len(WORK)
    parts: list[Part] = []
    present, reached = 0, begin  # a bit for each work that is going on; the lowest one is the strongest
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
