# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a process: whether it is the one that is meant, in what state it is, what memory it holds.

A process id is given to somebody else sooner or later: a process is its id and the time at which it was started.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.exporting.exporter import file_word

GONE: Final = "gone"
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATES: Final = {
    "R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced", "I": "idle", "P": "parked",
}  # fmt: skip


class Process(NamedTuple):
    """A process on this machine."""

    pid: int
    start: int
    """Clock ticks between the start of the machine and its own (field 22 of ``/proc/<pid>/stat``)."""


def find(pid: int) -> Process | None:
    """Return the process that has an id now; None if nobody has it, or only somebody who ended and was not reaped."""
    fields = _fields(pid)
    return None if fields is None or fields[0] in "ZXx" else Process(pid, int(fields[19]))


def state(process: Process) -> str:
    """Return what a process does, in a word: ``running``, ``sleeping``, ``stopped`` … or `GONE`."""
    fields = _fields(process.pid)
    if fields is None or fields[0] in "ZXx" or int(fields[19]) != process.start:
        return GONE
    return _STATES.get(fields[0], fields[0])


def waits_for_device(process: Process, thread: int) -> bool:
    """Return whether a thread is inside of a read or write that a disk or a file server does not answer."""
    fields = _fields(process.pid, thread) if thread else None
    return fields is not None and fields[0] == "D"


def _fields(pid: int, thread: int = 0) -> list[str] | None:
    """Return what follows the name of the program, which may hold anything."""
    try:
        fields = _read(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None  # noqa: PLR2004 - the start time, counted from the state


def read_wait(pid: int) -> str:
    """Return the kernel function in which a process waits; empty if it waits for nothing or may not be asked."""
    try:
        return _read(f"/proc/{pid}/wchan").strip("0\n")
    except OSError:
        return ""


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it is gone."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def read_space() -> str:
    """Return the space in which process ids are counted; that of a container is not that of its machine."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - this is no path
    except OSError:
        return ""


def read_place() -> str:
    """Return this node, as a part of the names of files; a container that hides the processes of others is a node of its own."""
    space = "".join(filter(str.isdigit, read_space())) or "0"
    return f"{file_word(socket.gethostname())}-{space}"


def read_outputs() -> list[str]:
    """Return the files that this process writes its output and errors to."""
    found = []
    for number in (2, 1):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - `Path` has no word for it that keeps "deleted"
        except OSError:
            continue
        if path.startswith("/") and path not in found and Path(path).is_file():
            found.append(path)
    return found


def find_free_signal() -> int:
    """Return a real-time signal that nobody uses in this process; 0 if there is none."""
    used = _masks(os.getpid(), "SigCgt", "SigIgn", "SigBlk")
    for number in range(signal.SIGRTMAX - 4, signal.SIGRTMIN + 4, -1):
        if not used >> (number - 1) & 1 and signal.getsignal(number) is signal.SIG_DFL:
            return number
    return 0


def send(process: Process, number: int) -> bool:
    """Send a signal to a process that waits for it, and to nobody else: it would kill whoever does not.

    Returns:
        Whether it was sent.
    """
    if number <= 0:
        return False
    try:
        # The handle names the process, whatever becomes of its id; so it is looked at after the handle was made.
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return False
    try:
        if not _awaits(process, number):
            return False
        if handle is None:  # a Python that was built for old kernels
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _awaits(process: Process, number: int) -> bool:
    """Return whether this very process has a handler for a signal."""
    return state(process) != GONE and bool(_masks(process.pid, "SigCgt") >> (number - 1) & 1)


def _masks(pid: int, *names: str) -> int:
    """Return the signals that stand in some of the masks of a process."""
    found = 0
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found |= int(value, 16)
    return found


def count_kills() -> int:
    """Return how often the kernel has killed somebody of this control group for want of memory."""
    for path, key in _memory_files():
        try:
            rows = dict(line.split(None, 1) for line in _read(path).splitlines() if " " in line)
        except OSError:
            continue
        if key in rows:
            return int(rows[key])
    return 0


def _memory_files() -> list[tuple[str, str]]:
    groups = []
    try:
        for line in _read("/proc/self/cgroup").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                groups += [
                    (f"/sys/fs/cgroup{path}/memory.events", "oom_kill"),
                    ("/sys/fs/cgroup/memory.events", "oom_kill"),
                ]
            elif "memory" in kinds.split(","):
                groups.append((f"/sys/fs/cgroup/memory{path}/memory.oom_control", "oom_kill"))
    except (OSError, ValueError):
        return groups
    return groups


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a fifth faster, once a second for everybody
        return file.read()
