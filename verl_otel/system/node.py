# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""CPU, memory, disks and networks of a node, from ``/proc`` and ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system import memory
from verl_otel.system.collectors import DeltaCounter, NodeScope

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


# -- CPU, memory, disks and networks of a node, from ``/proc`` and ``/sys`` --

MAX_DEVICES: Final = 16
"""Largest number of disks, and of network interfaces, that are read."""
SECTOR: Final = 512
"""Bytes of a sector in ``/proc/diskstats``, whatever the sector size of the disk."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MODES: Final = {"user": (0, 1), "system": (2, 5, 6), "idle": (3,), "iowait": (4,), "steal": (7,)}
"""Columns of ``/proc/stat`` that are added up for each mode: nice time is user time, interrupt time is system time."""


class NodeCollector:
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
        host = memory.read_memory(self._root)
        if host is None:
            return
        states = {"used": host.total - host.available, "cached": host.available - host.free, "free": host.free}
        for state, size in states.items():
            yield metric_names.SYSTEM_MEMORY_USAGE, ((attr.MEMORY_STATE, state),), max(0, size)
        limit, available = host.total, host.available
        bound = memory.read_bound(self._root)
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
