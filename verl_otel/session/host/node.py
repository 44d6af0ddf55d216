# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""CPU, memory, disks and networks of a node, from ``/proc`` and ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.host import fabric, memory
from verl_otel.session.sources import Place, Since

MAX_DEVICES: Final = 16
"""Disks, and network interfaces, of a node that are read."""
SECTOR: Final = 512
"""Bytes of a sector in ``/proc/diskstats``, whatever the disk has."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MODES: Final = {"user": (0, 1), "system": (2, 5, 6), "idle": (3,), "iowait": (4,), "steal": (7,)}
"""Columns of ``/proc/stat`` that make up each mode; nice time is user time, and that of interrupts is the system's."""


class NodeSource:
    """Reads the node that this process runs on.

    Args:
        root: Folder that holds ``proc`` and ``sys``.
    """

    name = "node"
    metrics = (
        "system.cpu.time", "system.memory.usage", "system.network.io", "system.disk.io", "hw.network.io", "hw.errors",
        "verl.host.memory.limit", "verl.host.memory.available",
    )  # fmt: skip
    once_per_node = True

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._since = Since()

    def read(self, place: Place) -> Iterable[Measurement]:  # noqa: ARG002 - as every source
        """Return what the kernel says; what it does not say is left out."""
        yield from self._read_cpu()
        yield from self._read_memory()
        yield from self._read_network()
        yield from self._read_disks()
        yield from fabric.read_ports(self._root, self._since)

    def close(self) -> None:
        """Forget where the counters were: whoever reads next begins at 0."""
        self._since = Since()

    def _read_cpu(self) -> Iterator[Measurement]:
        fields = next(iter(self._lines("proc/stat")), "").split()[1:]
        for mode, columns in _MODES.items():
            if len(fields) > max(columns):
                ticks = sum(int(fields[column]) for column in columns)
                yield "system.cpu.time", ((attr.CPU_MODE, mode),), self._since.count(mode, ticks / _TICKS)

    def _read_memory(self) -> Iterator[Measurement]:
        found = memory.read_memory(self._root)
        if found is None:
            return
        parts = {"used": found.total - found.available, "cached": found.available - found.free, "free": found.free}
        for state, size in parts.items():
            yield "system.memory.usage", ((attr.MEMORY_STATE, state),), max(0, size)
        limit, available = found.total, found.available
        bound = memory.read_bound(self._root)
        if bound is not None:
            limit, available = min(limit, bound.limit), max(0, min(available, bound.limit - bound.used))
        yield "verl.host.memory.limit", (), limit
        yield "verl.host.memory.available", (), available

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
                yield "system.network.io", labels, self._since.count((name, direction), size)

    def _read_disks(self) -> Iterator[Measurement]:
        counts = {}
        for line in self._lines("proc/diskstats"):
            fields = line.split()
            if len(fields) > 9 and (self._root / "sys/block" / fields[2]).exists():  # noqa: PLR2004 - partitions are counted in their disk
                counts[fields[2]] = {"read": int(fields[5]) * SECTOR, "write": int(fields[9]) * SECTOR}
        for name in self._choose(counts, "sys/block"):
            for direction, size in counts[name].items():
                labels = ((attr.DISK, name), (attr.DISK_DIRECTION, direction))
                yield "system.disk.io", labels, self._since.count((name, direction), size)

    def _choose(self, names: Iterable[str], folder: str) -> list[str]:
        """Return what is a device and no bridge, loop or map of one; in a container, where nothing is, all but the loopback."""
        known = sorted(names)
        real = [name for name in known if (self._root / folder / name / "device").exists()]
        return (real or [name for name in known if not name.startswith(("lo", "ram", "zram", "dm-"))])[:MAX_DEVICES]

    def _lines(self, path: str) -> list[str]:
        try:
            return (self._root / path).read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
