# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads ``/proc``: identity, state and memory of processes.

Process ids are reused: a process is identified by its id and its start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal.machine import identify_machine
from verl_otel._internal.safe_files import file_word

GONE: Final = "gone"
MAX_THREADS: Final = 512
"""Threads of one process that are read."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LISTENS: Final = "0A"
"""State of a socket in ``/proc/net/tcp`` that accepts connections."""
_STATES: Final = {
    "R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced", "I": "idle", "P": "parked",
}  # fmt: skip


class Process(NamedTuple):
    """A process on this machine."""

    pid: int
    start: int
    """Clock ticks from the boot of the machine to the start of the process (field 22 of ``/proc/<pid>/stat``)."""


class ThreadState(NamedTuple):
    """What a thread does."""

    is_running: bool
    """Whether it computes or could."""
    wakes: int
    """How often it has begun to wait."""
    cpu_ns: int
    """CPU time in nanoseconds."""
    held: int
    """Mask of the signals that it blocks or has not handled yet."""


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


def read_parent(pid: int) -> int:
    """Return the id of the parent of a process; 0 if it is gone."""
    fields = _read_stat(pid)
    return 0 if fields is None else int(fields[1])


def list_children(parents: Collection[int]) -> list[int]:
    """Return the processes whose parent is one of some; of all processes of this machine, as many kernels list no children."""
    if not parents:
        return []
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - names are enough
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and read_parent(int(name)) in parents]


def list_descendants(parents: Collection[int]) -> set[int]:
    """Return the children of some processes, theirs and so on, without the processes themselves. Each generation reads all of ``/proc``."""
    known = found = set(parents)
    while found:
        found = set(list_children(found)) - known
        known = known | found
    return known - set(parents)


def read_program(pid: int) -> str:
    """Return the name of the program that a process runs, as the kernel cuts it off (15 characters); empty if it is gone."""
    try:
        return _read(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def read_command(pid: int) -> str:
    """Return the command line of a process, its arguments separated by blanks; empty if it is gone."""
    try:
        return _read(f"/proc/{pid}/cmdline").replace("\0", " ")
    except OSError:
        return ""


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


def read_threads(pid: int) -> dict[int, ThreadState]:
    """Return the threads of a process by their id: `MAX_THREADS` of them, oldest first."""
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:MAX_THREADS]  # noqa: PTH208 - names are enough
    except OSError:
        return {}
    states = {thread: read_thread(pid, thread) for thread in threads}
    return {thread: state for thread, state in states.items() if state is not None}


def read_thread(pid: int, thread: int) -> ThreadState | None:
    """Return what a thread does; None if it has ended."""
    fields = {}
    try:
        for line in _read(f"/proc/{pid}/task/{thread}/status").splitlines():
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        held = int(fields["SigBlk"], 16) | int(fields["SigPnd"], 16)
        cpu_ns = int(_read(f"/proc/{pid}/task/{thread}/schedstat").split()[0])
        return ThreadState(fields["State"].startswith("R"), int(fields["voluntary_ctxt_switches"]), cpu_ns, held)
    except (OSError, KeyError, ValueError, IndexError):
        return None


def read_wait_channel(pid: int, thread: int = 0) -> str:
    """Return the kernel function in which a process or one of its threads waits; empty if it does not wait or access is denied."""
    try:
        return _read(f"/proc/{pid}/task/{thread or pid}/wchan").strip("0\n")
    except OSError:
        return ""


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it is gone."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


class Activity(NamedTuple):
    """What a process has done since it began."""

    cpu: float
    """CPU time in seconds."""
    disk: int
    """Bytes that it has read from and written to disks; 0 if that is not known."""
    files: int
    """Bytes that it has read and written by calls, also of files that lie on no disk of this node, and of pipes; 0 if that is not known."""
    waits: bool
    """Whether its main thread waits for a disk or a file server now."""


def read_activity(pid: int) -> Activity | None:
    """Return what a process has done; None if it is gone."""
    fields = _read_stat(pid)
    if fields is None or fields[0] in "ZXx":
        return None
    try:
        rows = dict(line.split(": ") for line in _read(f"/proc/{pid}/io").splitlines())
        disk = int(rows["read_bytes"]) + int(rows["write_bytes"])
        files = int(rows["rchar"]) + int(rows["wchar"])
    except (OSError, KeyError, ValueError):  # it belongs to another user: its CPU time is known
        disk = files = 0
    return Activity((int(fields[11]) + int(fields[12])) / _TICKS, disk, files, fields[0] == "D")


def find_listener(port: int) -> int | None:
    """Return the id of the user whose process listens at a TCP port; None if none does in the network namespace of this process."""
    for name in ("tcp", "tcp6"):
        try:
            lines = _read(f"/proc/net/{name}").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and fields[1].endswith(f":{port:04X}"):
                return int(fields[7])
    return None


def read_node_name() -> str:
    """Return the name of this node, as a part of file names. A container with a pid namespace of its own is a node of its own."""
    return f"{file_word(socket.gethostname())}-{identify_machine()}"


def read_output_files() -> list[str]:
    """Return the regular files to which stderr and stdout of this process are redirected, as far as it may look at them.

    Their folder may be closed to the user of the training, as after `sudo`: the descriptor is open, the path cannot be used.
    """
    paths = []
    for number in (2, 1):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - `Path.readlink` would need a conversion back
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


def send_signal(process: Process, number: int, thread: int = 0) -> bool:
    """Send a signal to a process if it has a handler for it. Without a handler the signal would kill it.

    Args:
        process: The process.
        number: The signal.
        thread: The thread that shall handle it; 0: the main thread. The kernel prefers the thread whose id ``kill`` is given.

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
        if read_state(process) == GONE or not handles_signal(process.pid, number):
            return False
        if handle is None or thread not in (0, process.pid):  # no handle: Python was built for an old kernel
            os.kill(thread or process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def handles_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, also one that C code has set."""
    try:
        return bool(_read_signal_masks(pid, "SigCgt") >> (number - 1) & 1)
    except OSError:
        return False


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
