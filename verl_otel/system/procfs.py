# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads ``/proc``: identity, state and memory of processes.

Process ids are reused: a process is identified by its id and its start time.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal.file_names import file_word

GONE: Final = "gone"
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATES: Final = {
    "R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced", "I": "idle", "P": "parked",
}  # fmt: skip


class Process(NamedTuple):
    """A process on this machine."""

    pid: int
    start: int
    """Clock ticks from the boot of the machine to the start of the process (field 22 of ``/proc/<pid>/stat``)."""


def find_process(pid: int) -> Process | None:
    """Return the process with an id; None if there is none or only a zombie."""
    fields = _read_stat(pid)
    return None if fields is None or fields[0] in "ZXx" else Process(pid, int(fields[19]))


def read_state(process: Process) -> str:
    """Return the state of a process: ``running``, ``sleeping``, ``stopped`` … or `GONE`."""
    fields = _read_stat(process.pid)
    if fields is None or fields[0] in "ZXx" or int(fields[19]) != process.start:
        return GONE
    return _STATES.get(fields[0], fields[0])


def waits_for_device(process: Process, thread: int) -> bool:
    """Return whether a thread waits for a disk or a file server."""
    fields = _read_stat(process.pid, thread) if thread else None
    return fields is not None and fields[0] == "D"


def _read_stat(pid: int, thread: int = 0) -> list[str] | None:
    """Return the fields of ``stat`` after the name of the program, which may contain any character."""
    try:
        fields = _read(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None  # noqa: PLR2004 - the start time, counted from the state


def read_wait_channel(pid: int) -> str:
    """Return the kernel function in which a process waits; empty if it does not wait or access is denied."""
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


def read_pid_namespace() -> str:
    """Return the pid namespace, which differs between a container and its machine; empty if it is unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - this is no path
    except OSError:
        return ""


def read_node_name() -> str:
    """Return the name of this node, as a part of file names. A container with a pid namespace of its own is a node of its own."""
    space = "".join(filter(str.isdigit, read_pid_namespace())) or "0"
    return f"{file_word(socket.gethostname())}-{space}"


def read_output_files() -> list[str]:
    """Return the regular files to which stderr and stdout of this process are redirected."""
    paths = []
    for number in (2, 1):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - `Path.readlink` would need a conversion back
        except OSError:
            continue
        if path.startswith("/") and path not in paths and Path(path).is_file():
            paths.append(path)
    return paths


def find_free_signal() -> int:
    """Return a real-time signal that this process does not use; 0 if there is none."""
    used = _read_signal_masks(os.getpid(), "SigCgt", "SigIgn", "SigBlk")
    for number in range(signal.SIGRTMAX - 4, signal.SIGRTMIN + 4, -1):
        if not used >> (number - 1) & 1 and signal.getsignal(number) is signal.SIG_DFL:
            return number
    return 0


def send_signal(process: Process, number: int) -> bool:
    """Send a signal to a process if it has a handler for it. Without a handler the signal would kill it.

    Returns:
        Whether it was sent.
    """
    if number <= 0:
        return False
    try:
        # The handle keeps naming the same process if its id is reused, so the process is checked after the handle was opened.
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return False
    try:
        if not _handles_signal(process, number):
            return False
        if handle is None:  # Python was built for an old kernel
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _handles_signal(process: Process, number: int) -> bool:
    """Return whether the process exists and has a handler for a signal."""
    return read_state(process) != GONE and bool(_read_signal_masks(process.pid, "SigCgt") >> (number - 1) & 1)


def _read_signal_masks(pid: int, *names: str) -> int:
    """Return the union of some signal masks of a process."""
    mask = 0
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            mask |= int(value, 16)
    return mask


def count_oom_kills() -> int:
    """Return how many processes of this control group the kernel has killed because it was out of memory."""
    for path, key in _list_oom_files():
        try:
            rows = dict(line.split(None, 1) for line in _read(path).splitlines() if " " in line)
        except OSError:
            continue
        if key in rows:
            return int(rows[key])
    return 0


def _list_oom_files() -> list[tuple[str, str]]:
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
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a fifth faster than `Path.open`, and called every second for every process
        return file.read()
