# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a host, and the memory limit of its container."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

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
    """Return the folders of a control group and its ancestors. In a container the path may be that of the host, so that only ``top`` exists."""
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
