# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a host, and of the container that bounds what its processes may take."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_UNBOUND: Final = 1 << 60
"""What version 1 of control groups says where there is no bound is a number beyond any memory."""


class Memory(NamedTuple):
    """Memory in bytes."""

    total: int
    free: int
    available: int
    """What programs can still get without swapping: free, and caches that can be given up (`MemAvailable`)."""


class Bound(NamedTuple):
    """What a container may take, in bytes."""

    limit: int
    used: int
    """Without the caches of files that the kernel gives up before it ends a process, as Kubernetes counts a working set."""


def read_memory(root: Path) -> Memory | None:
    """Return the memory of a host; None where the kernel does not say.

    Args:
        root: Folder that holds ``proc``.
    """
    try:
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
        found = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if len(line.split()) > 1}
        return Memory(found["MemTotal"], found["MemFree"], found["MemAvailable"])
    except (OSError, ValueError, LookupError):
        return None


def read_bound(root: Path) -> Bound | None:
    """Return the tightest bound of the control groups that this process is in; None where there is none.

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
    """Return the folders of a control group and of all that it is in; in a container the path may be the host's, and only ``top`` is there."""
    inner = top / path.strip("/")
    return [inner, *(each for each in inner.parents if each == top or top in each.parents)]


def _read_group(names: tuple[Path, str, str, str], folder: Path) -> Bound | None:
    _, limit, usage, cache = names
    try:
        bound = int((folder / limit).read_text("ascii"))  # "max" is no number
        used = int((folder / usage).read_text("ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return None
    return Bound(bound, max(0, used - int(statistics.get(cache, 0)))) if bound < _UNBOUND else None
