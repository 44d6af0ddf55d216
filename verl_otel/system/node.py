# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""CPU, memory, disks and networks of a node, from ``/proc`` and ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system import procfs
from verl_otel.system.collectors import Collector, DeltaCounter, NodeScope


class ProcessCollector(Collector):
    """Reads this process, in every process."""

    name = "process"
    metrics = (metric_names.PROCESS_CPU_TIME, metric_names.PROCESS_MEMORY_USAGE)
    once_per_node = False

    def read(self, scope: NodeScope) -> Iterable[Measurement]:  # noqa: ARG002 - as every collector
        """Return the CPU seconds since the start of the process, and its resident bytes."""
        times = os.times()
        yield metric_names.PROCESS_CPU_TIME, ((attr.CPU_MODE, "user"),), times.user
        yield metric_names.PROCESS_CPU_TIME, ((attr.CPU_MODE, "system"),), times.system
        resident = procfs.read_memory(os.getpid())
        if resident:
            yield metric_names.PROCESS_MEMORY_USAGE, (), resident


# -- Memory of a host, and the memory limit of its container --

_UNBOUND: Final = 1 << 60
"""Version 1 of control groups represents "no limit" by a number that exceeds any memory."""


class Memory(NamedTuple):
    """Memory in bytes."""

    total: int
    free: int
    available: int
    """Memory that programs can allocate without swapping (``MemAvailable``)."""


class Bound(NamedTuple):
    """Memory limit and usage of a control group, in bytes."""

    limit: int
    used: int
    """Without reclaimable file caches, as the working set of Kubernetes."""


def read_memory(root: Path) -> Memory | None:
    """Return the memory of a host; None if ``meminfo`` cannot be read.

    Args:
        root: Folder that holds ``proc``.
    """
    try:
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
        values = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if len(line.split()) > 1}
        return Memory(values["MemTotal"], values["MemFree"], values["MemAvailable"])
    except (OSError, ValueError, LookupError):
        return None


def read_bound(root: Path) -> Bound | None:
    """Return the limit with the least memory left among the control groups of this process; None if there is none.

    Args:
        root: Folder that holds ``proc`` and ``sys``.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    bounds = []
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            names = (root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = (
                root / "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        bounds += [bound for bound in (_read_group(names, folder) for folder in _list_folders(names[0], path)) if bound]
    return min(bounds, key=lambda bound: bound.limit - bound.used, default=None)


def _list_folders(top: Path, path: str) -> list[Path]:
    """Return the folders of a control group and its ancestors. In a container only ``top`` may exist."""
    inner = top / path.strip("/")
    return [inner, *(folder for folder in inner.parents if folder == top or top in folder.parents)]


def _read_group(names: tuple[Path, str, str, str], folder: Path) -> Bound | None:
    _, limit, usage, cache = names
    try:
        bound = int((folder / limit).read_text("ascii"))  # "max" is no number
        used = int((folder / usage).read_text("ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return None
    return Bound(bound, max(0, used - int(statistics.get(cache, 0)))) if bound < _UNBOUND else None


# -- Counters of InfiniBand and RoCE ports, from ``/sys/class/infiniband`` --

MAX_PORTS: Final = 16
WORD: Final = 4
"""Bytes that ``port_xmit_data`` and ``port_rcv_data`` count as one (InfiniBand Architecture, PortCounters)."""
_DATA: Final = (("port_rcv_data", "receive"), ("port_xmit_data", "transmit"))
_ERRORS: Final = {
    "link_downed": ("link_downed",),
    "port": ("symbol_error", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors"),
}
"""The counters that are added up for each kind of error."""


def read_ports(root: Path, counters: DeltaCounter) -> Iterable[Measurement]:
    """Return bytes and errors of every port since the first reading.

    Args:
        root: Folder that holds ``sys``.
        counters: The counters of earlier readings.
    """
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*/counters"))[:MAX_PORTS]:
        port = f"{folder.parents[2].name}/{folder.parent.name}"
        labels = ((attr.HW_ID, port), (attr.HW_TYPE, "network"))
        for name, direction in _DATA:
            value = _read(folder / name)
            if value is not None:
                bytes_ = counters.count((port, name), value * WORD)
                yield metric_names.HW_NETWORK_IO, (*labels, (attr.HW_DIRECTION, direction)), bytes_
        for kind, names in _ERRORS.items():
            counts = [
                counters.count((port, name), value) for name in names if (value := _read(folder / name)) is not None
            ]
            if counts:
                yield metric_names.HW_ERRORS, (*labels, (attr.ERROR_TYPE, kind)), sum(counts)


def _read(path: Path) -> int | None:
    """Return one counter; None if the driver does not provide it."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


# -- the collector of a node --

MAX_DEVICES: Final = 16
"""Largest number of disks, and of network interfaces, that are read."""
SECTOR: Final = 512
"""Bytes of a sector in ``/proc/diskstats``, whatever the sector size of the disk."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MODES: Final = {"user": (0, 1), "system": (2, 5, 6), "idle": (3,), "iowait": (4,), "steal": (7,)}
"""Columns of ``/proc/stat`` that are added up for each mode: nice time is user time, interrupt time is system time."""


class NodeCollector(Collector):
    """Reads the node of this process.

    Args:
        root: Folder that holds ``proc`` and ``sys``.
    """

    name = "node"
    metrics = (
        metric_names.SYSTEM_CPU_TIME, metric_names.SYSTEM_MEMORY_USAGE, metric_names.SYSTEM_NETWORK_IO,
        metric_names.SYSTEM_DISK_IO, metric_names.HW_NETWORK_IO, metric_names.HW_ERRORS,
        metric_names.HOST_MEMORY_LIMIT, metric_names.HOST_MEMORY_AVAILABLE,
    )  # fmt: skip
    once_per_node = True

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._counters = DeltaCounter()

    def read(self, scope: NodeScope) -> Iterable[Measurement]:  # noqa: ARG002 - as every collector
        """Return the measurements; files that cannot be read are left out."""
        yield from self._read_cpu()
        yield from self._read_memory()
        yield from self._read_network()
        yield from self._read_disks()
        yield from read_ports(self._root, self._counters)

    def close(self) -> None:
        """Reset the counters: the next reader starts at 0."""
        self._counters = DeltaCounter()

    def _read_cpu(self) -> Iterator[Measurement]:
        fields = next(iter(self._lines("proc/stat")), "").split()[1:]
        for mode, columns in _MODES.items():
            if len(fields) > max(columns):
                ticks = sum(int(fields[column]) for column in columns)
                yield metric_names.SYSTEM_CPU_TIME, ((attr.CPU_MODE, mode),), self._counters.count(mode, ticks / _TICKS)

    def _read_memory(self) -> Iterator[Measurement]:
        host = read_memory(self._root)
        if host is None:
            return
        states = {"used": host.total - host.available, "cached": host.available - host.free, "free": host.free}
        for state, size in states.items():
            yield metric_names.SYSTEM_MEMORY_USAGE, ((attr.MEMORY_STATE, state),), max(0, size)
        limit, available = host.total, host.available
        bound = read_bound(self._root)
        if bound is not None:
            limit, available = min(limit, bound.limit), max(0, min(available, bound.limit - bound.used))
        yield metric_names.HOST_MEMORY_LIMIT, (), limit
        yield metric_names.HOST_MEMORY_AVAILABLE, (), available

    def _read_network(self) -> Iterator[Measurement]:
        counts = {}
        for line in self._lines("proc/net/dev"):
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and len(fields) > 8:  # noqa: PLR2004 - eight columns of what is received, then those of what is sent
                counts[name.strip()] = {"receive": int(fields[0]), "transmit": int(fields[8])}
        for name in self._choose(counts, "sys/class/net"):
            for direction, size in counts[name].items():
                labels = ((attr.INTERFACE, name), (attr.NETWORK_DIRECTION, direction))
                yield metric_names.SYSTEM_NETWORK_IO, labels, self._counters.count((name, direction), size)

    def _read_disks(self) -> Iterator[Measurement]:
        counts = {}
        for line in self._lines("proc/diskstats"):
            fields = line.split()
            if len(fields) > 9 and (self._root / "sys/block" / fields[2]).exists():  # noqa: PLR2004 - partitions are counted in their disk
                counts[fields[2]] = {"read": int(fields[5]) * SECTOR, "write": int(fields[9]) * SECTOR}
        for name in self._choose(counts, "sys/block"):
            for direction, size in counts[name].items():
                labels = ((attr.DISK, name), (attr.DISK_DIRECTION, direction))
                yield metric_names.SYSTEM_DISK_IO, labels, self._counters.count((name, direction), size)

    def _choose(self, names: Iterable[str], folder: str) -> list[str]:
        """Return the names of physical devices; without any, as in a container, all but loopback and virtual ones."""
        ordered = sorted(names)
        real = [name for name in ordered if (self._root / folder / name / "device").exists()]
        return (real or [name for name in ordered if not name.startswith(("lo", "ram", "zram", "dm-"))])[:MAX_DEVICES]

    def _lines(self, path: str) -> list[str]:
        try:
            return (self._root / path).read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
