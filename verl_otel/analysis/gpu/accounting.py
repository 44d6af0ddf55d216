# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Accounts for GPU time: what each GPU did in a window, every nanosecond counted once.

For each device a sweep over its activity (docs/explanation/gpu-time.md has the picture): a worker's method first, then a weight sync that
delays its requests, then requests on its replica. The rest is idle, and `idle_causes` gives the cause. All integers, so that the
causes of a device sum up to exactly the window, and adjacent windows to the window around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from verl_otel.analysis.gpu import idle_causes
from verl_otel.analysis.gpu.devices import Devices
from verl_otel.analysis.gpu.occupancy import LEND, MARK, TAKE, VALIDATING, Part, WindowActivity, occupy
from verl_otel.analysis.gpu.trajectory_usage import COUNTED, INDEX
from verl_otel.analysis.io.packing import Packed
from verl_otel.analysis.model import DeviceTime
from verl_otel.analysis.traces.tree import Node

_STATES: Final = len(idle_causes.STATES)
_SERVER, _HIDDEN, _OPEN, _BLOCKED = INDEX["in server"], INDEX["hidden"], INDEX["open"], INDEX["blocked"]
_Idle = tuple[int, int, tuple[str, ...]]
"""Start, end, cause by lane."""


class GpuAccount:
    """The GPU time of a run. Its memory does not grow with the run.

    Args:
        devices: GPUs of the run.
    """

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._total: list[dict[str, int]] = [defaultdict(int) for _ in devices.gpus]
        self._began_ns: int | None = None
        """Start of the first trajectory or training of the attempt; all idle time before it is start-up."""
        self._slept: tuple[int, bool] = (0, False)
        """When the trainer last took its GPUs back from the rollouts or lent them, and which of the two."""

    def add_window(
        self,
        begin_ns: int,
        end_ns: int,
        roots: Sequence[Node],
        trajectories: Sequence[Packed],
        blocked: Sequence[tuple[int, int]] = (),
    ) -> tuple[DeviceTime, ...]:
        """Add a window of time and return what each device did in it.

        Args:
            begin_ns: Its start. Windows come in the order of time.
            end_ns: Its end.
            roots: The root of every trace other than a trajectory's that overlaps the window, from its first start to its last end (a worker
                may outlast its step).
            trajectories: All that overlap the window, whichever step trains on them.
            blocked: Intervals in which the event loops of trajectories were blocked: start, end.

        Returns:
            For each device its nanoseconds by cause, those above zero: together ``end_ns - begin_ns``.
        """
        activity = WindowActivity(self.devices)
        for root in roots:
            activity.add_tree(root)
        for trajectory in trajectories:
            activity.add_trajectory(trajectory)
        for start, end in blocked:
            activity.add_blocked(start, end)
        activity.settle()
        starts = [*activity.starts, *([] if self._began_ns is None else [self._began_ns])]
        self._began_ns = min(starts, default=None)
        lanes = sorted({device.lane for device in self.devices.gpus})
        idle = _sweep(activity, self.devices.replicas, lanes, begin_ns, end_ns, self._began_ns, self._slept)
        self._slept = max([self._slept, *(switch for switch in activity.sleeps if switch[0] <= end_ns)])
        device_times = []
        for number, device in enumerate(self.devices.gpus):
            spent = _spend(occupy(activity.work[number], begin_ns, end_ns), idle, lanes.index(device.lane))
            for cause, nanoseconds in spent.items():
                self._total[number][cause] += nanoseconds
            device_times.append(DeviceTime(device.name, spent))
        return tuple(device_times)

    def restart(self) -> None:
        """Begin another attempt, with a start-up of its own."""
        self._began_ns, self._slept = None, (0, False)

    def total(self) -> tuple[DeviceTime, ...]:
        """Return the sum of all windows so far."""
        pairs = zip(self.devices.gpus, self._total, strict=True)
        return tuple(DeviceTime(device.name, dict(spent)) for device, spent in pairs)


def _sweep(
    activity: WindowActivity,
    replicas: int,
    lanes: Sequence[str],
    begin: int,
    end: int,
    began: int | None,
    slept: tuple[int, bool],
) -> list[_Idle]:
    """Return the causes of idle time throughout the window, by lane: parts that cover it without a gap."""
    asleep = max([slept, *(switch for switch in activity.sleeps if switch[0] <= begin)])[1]
    changes = [
        *activity.changes,
        *((time_ns, TAKE if sleeps else LEND, 0) for time_ns, sleeps in activity.sleeps),
        (end, MARK, 0),
    ]
    if began is not None:
        changes.append((began, MARK, 0))
    changes.sort()
    counts = [0] * len(COUNTED)
    causes_by_key: dict[tuple[int, str, bool, bool, bool], tuple[str, ...]] = {}
    parts: list[_Idle] = []
    states, reached = 0, begin  # a bit for each state of the trainer; the lowest one takes precedence
    for time_ns, index, delta in changes:
        moment = time_ns if time_ns < end else end  # noqa: FURB136 - twice as fast as min(), in the loop over every event of a run
        if moment > reached:
            if counts[_SERVER] and not counts[_HIDDEN]:
                awaited = "server"  # as `find_awaited` returns, inlined because it is the most frequent case
            elif counts[_BLOCKED] and counts[_OPEN]:
                awaited = "blocked"
            else:
                awaited = idle_causes.find_awaited(*counts[_STATES:VALIDATING], replicas)  # type: ignore[call-arg]  # five of them
            key = (states & -states, awaited, asleep, counts[VALIDATING] > 0, began is not None and began <= reached)
            causes = causes_by_key.get(key) or causes_by_key.setdefault(
                key, tuple(_find_cause(lane, *key) for lane in lanes)
            )
            if parts and parts[-1][2] == causes:
                parts[-1] = (parts[-1][0], moment, causes)
            else:
                parts.append((reached, moment, causes))
            reached = moment
        if delta:
            counts[index] += delta
            if index < _STATES:
                states = states | 1 << index if counts[index] else states & ~(1 << index)
        elif index != MARK and time_ns > begin:
            asleep = index == TAKE
    return parts


def _find_cause(lane: str, state: int, awaited: str, asleep: bool, validating: bool, began: bool) -> str:  # noqa: FBT001 - a key
    if not began:
        return "start_up"
    doing = idle_causes.STATES[state.bit_length() - 1]  # no bit: the last of them, "data"
    return idle_causes.find_cause(lane, doing, awaited, asleep=asleep, validating=validating)


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
