# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What distinguishes machines, containers and processes that have the same host name or process id."""

from __future__ import annotations

import hashlib
import os
from typing import Final

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
DIGITS: Final = 8


def identify_machine() -> str:
    """Return what is common to all processes that see the same process ids, in hexadecimal: the boot of the kernel and the pid namespace.

    ``0`` where the system does not provide it.
    """
    try:
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - this is no path
    except OSError:
        space = ""
    return _hash(_read(BOOT_ID).strip(), space)


def identify_process(pid: int | None = None) -> str:
    """Return what no other process has, in hexadecimal: of the machine, the id and the start of a process. ``0`` where the system does not provide it.

    Args:
        pid: The process; None: this one.
    """
    pid = os.getpid() if pid is None else pid
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    start = fields[19] if len(fields) > 19 else ""  # noqa: PLR2004 - see proc(5)
    return _hash(identify_machine() if start else "", str(pid) if start else "", start)


def _hash(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:DIGITS] if any(parts) else "0"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as `procfs`
            return file.read()
    except OSError:
        return ""
