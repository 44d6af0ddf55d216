# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time: what every GPU did in every nanosecond of a window, each nanosecond once.

Per device a sweep over what ran on it (docs/guide/gpu-time.md has the picture): a worker's method, then a weight sync that holds its
requests back, then requests on its replica. What is left is idle, and `idleness` says why. All integers, so that the causes of a device
sum up to the window exactly, and windows that lie side by side to the window around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from verl_otel.analysis import idleness
from verl_otel.analysis.devices import Devices
from verl_otel.analysis.facts import DeviceTime
from verl_otel.analysis.occupancy import LEND, MARK, TAKE, VALIDATING, Part, Seen, occupy
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.traces import Node
from verl_otel.analysis.usage import COUNTED, INDEX

_STATES: Final = len(idleness.STATES)
_SERVER, _HIDDEN = INDEX["in server"], INDEX["hidden"]
_Idle = tuple[int, int, tuple[str, ...]]
"""From, to, cause by lane."""


class Ledger:
    """The account of a run's GPUs. Its memory does not grow with the run.

    Args:
        devices: The GPUs of the run.
    """

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._total: list[dict[str, int]] = [defaultdict(int) for _ in devices.known]
        self._began_ns: int | None = None
        """When the first trajectory or training was seen to begin; everything idle before that is start-up."""
        self._slept: tuple[int, bool] = (0, False)
        """When the trainer was last seen to take its GPUs back from the rollouts or to lend them, and which of the two."""

    def add_window(
        self, begin_ns: int, end_ns: int, roots: Sequence[Node], trajectories: Sequence[Packed]
    ) -> tuple[DeviceTime, ...]:
        """Account for a window of time and return what each device did in it.

        Args:
            begin_ns: Where it begins. Windows come in the order of time.
            end_ns: Where it ends.
            roots: Of every trace other than a trajectory's that touches the window, from its first start to its last end (a worker
                may outlast its step).
            trajectories: Every one that touches the window, whichever step trains on it.

        Returns:
            For each device its nanoseconds by cause, those above zero: together ``end_ns - begin_ns``.
        """
        seen = Seen(self.devices)
        for root in roots:
            seen.add_tree(root)
        for trajectory in trajectories:
            seen.add_trajectory(trajectory)
        seen.settle()
        starts = [*seen.starts, *([] if self._began_ns is None else [self._began_ns])]
        self._began_ns = min(starts, default=None)
        lanes = sorted({device.lane for device in self.devices.known})
        idle = _sweep(seen, self.devices.replicas, lanes, begin_ns, end_ns, self._began_ns, self._slept)
        self._slept = max([self._slept, *(each for each in seen.sleeps if each[0] <= end_ns)])
        found = []
        for number, device in enumerate(self.devices.known):
            spent = _spend(occupy(seen.work[number], begin_ns, end_ns), idle, lanes.index(device.lane))
            for cause, nanoseconds in spent.items():
                self._total[number][cause] += nanoseconds
            found.append(DeviceTime(device.name, spent))
        return tuple(found)

    def total(self) -> tuple[DeviceTime, ...]:
        """Return the sum of all windows so far."""
        pairs = zip(self.devices.known, self._total, strict=True)
        return tuple(DeviceTime(device.name, dict(spent)) for device, spent in pairs)


def _sweep(
    seen: Seen, replicas: int, lanes: Sequence[str], begin: int, end: int, began: int | None, slept: tuple[int, bool]
) -> list[_Idle]:
    """Return why GPUs would be idle all through the window, by their lanes: parts that cover it without a gap."""
    asleep = max([slept, *(each for each in seen.sleeps if each[0] <= begin)])[1]
    changes = [*seen.changes, *((when, TAKE if sleeps else LEND, 0) for when, sleeps in seen.sleeps), (end, MARK, 0)]
    if began is not None:
        changes.append((began, MARK, 0))
    changes.sort()
    counts = [0] * len(COUNTED)
    known: dict[tuple[int, str, bool, bool, bool], tuple[str, ...]] = {}
    parts: list[_Idle] = []
    states, reached = 0, begin  # a bit for each state that the trainer is in; the lowest one is the strongest
    for when, what, by in changes:
        moment = when if when < end else end  # noqa: FURB136 - twice as fast as min(), in the loop over every event of a run
        if moment > reached:
            if counts[_SERVER] and not counts[_HIDDEN]:
                awaited = "server"  # as `find_awaited`, without a call: so it is most of the time
            else:
                awaited = idleness.find_awaited(*counts[_STATES:VALIDATING], replicas)  # type: ignore[call-arg]  # five of them
            key = (states & -states, awaited, asleep, counts[VALIDATING] > 0, began is not None and began <= reached)
            causes = known.get(key) or known.setdefault(key, tuple(_find_cause(lane, *key) for lane in lanes))
            if parts and parts[-1][2] == causes:
                parts[-1] = (parts[-1][0], moment, causes)
            else:
                parts.append((reached, moment, causes))
            reached = moment
        if by:
            counts[what] += by
            if what < _STATES:
                states = states | 1 << what if counts[what] else states & ~(1 << what)
        elif what != MARK and when > begin:
            asleep = what == TAKE
    return parts


def _find_cause(lane: str, state: int, awaited: str, asleep: bool, validating: bool, began: bool) -> str:  # noqa: FBT001 - a key
    if not began:
        return "start_up"
    doing = idleness.STATES[state.bit_length() - 1]  # no bit: the last of them, "data"
    return idleness.find_cause(lane, doing, awaited, asleep=asleep, validating=validating)


def _spend(busy: list[Part], idle: list[_Idle], lane: int) -> dict[str, int]:
    """Return the nanoseconds by cause: those of ``busy``, and between them those of ``idle``, which covers the window."""
    spent: dict[str, int] = defaultdict(int)
    upcoming = iter(busy)
    part = next(upcoming, None)
    for start, end, causes in idle:
        reached = start
        while part is not None and part[0] < end:
            spent[causes[lane]] += max(0, part[0] - reached)
            stop = min(part[1], end)
            spent[part[2]] += max(0, stop - max(part[0], reached))
            reached = max(reached, stop)
            if part[1] > end:
                break
            part = next(upcoming, None)
        spent[causes[lane]] += end - reached
    return {cause: nanoseconds for cause, nanoseconds in spent.items() if nanoseconds}
