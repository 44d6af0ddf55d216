# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the processes of a node do anything at all: CPU time, or bytes from and to files.

Work that was never done before has no usual length. If nothing on the node computes or writes meanwhile, it hangs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from verl_otel.system import procfs

STILL_SECONDS: Final = 10.0
"""Seconds without activity after which work without peers hangs."""
CHILD_SECONDS: Final = 2.0
"""The same for children without telemetry, which are looked at only when everything else is still."""
CPU_SHARE: Final = 0.03
"""Share of a CPU below which a process does nothing: its telemetry and Ray's threads. While a training hung they took 0.008 to 0.016 of its workers,
on two busy cores."""
DISK_BYTES: Final = 1 << 20
"""Bytes from or to disks below which it does nothing: logs and the files of telemetry."""
FILE_BYTES: Final = 16 << 20
"""The same for all files. Those of a file system in user space, such as a mounted bucket, are on no disk; the watchdog reads a megabyte or two of
``/proc`` and of reports."""


class _Sample(NamedTuple):
    time: float
    cpu: float
    disk: int
    files: int


_Samples = dict[int, deque[_Sample]]


class Stillness:
    """The activity of some processes in the last `STILL_SECONDS`."""

    def __init__(self) -> None:
        self._own: _Samples = {}
        self._children: _Samples = {}

    def sample(self, pids: Collection[int], now: float) -> None:
        """Note the activity of processes, about once a second; forget others.

        Args:
            pids: The processes.
            now: The time in seconds.
        """
        self._own = _add(self._own, pids, now)

    def is_still(self, now: float) -> bool:
        """Return whether none of the processes and of their children has done anything lately. What is not known yet counts as activity."""
        if not self._own or not all(_rests(samples, STILL_SECONDS) for samples in self._own.values()):
            self._children = {}
            return False
        self._children = _add(self._children, procfs.list_descendants(self._own), now)
        return all(_rests(samples, CHILD_SECONDS) for samples in self._children.values())


def _add(before: _Samples, pids: Collection[int], now: float) -> _Samples:
    """Return the samples of some processes with those of now. A process that is gone has none: it will do nothing more."""
    after: _Samples = {pid: before.get(pid, deque()) for pid in pids}
    for pid, samples in after.items():
        activity = procfs.read_activity(pid)
        if activity is None or activity.waits:
            samples.clear()
        if activity is not None:
            samples.append(_Sample(now, activity.cpu, activity.disk, activity.files))
        while len(samples) > 2 and samples[1].time <= now - STILL_SECONDS:  # noqa: PLR2004 - the first and the last one
            samples.popleft()
    return after


def _rests(samples: deque[_Sample], seconds: float) -> bool:
    if not samples:
        return True
    first, last = samples[0], samples[-1]
    passed = last.time - first.time
    reads = last.disk - first.disk >= DISK_BYTES or last.files - first.files >= FILE_BYTES
    return passed >= seconds and last.cpu - first.cpu < CPU_SHARE * passed and not reads
