# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Leader election among the processes of one run on one node, with file locks.

The kernel releases a lock when its holder dies. A holder that is stopped, or whose interpreter lock is held by C code, keeps the lock
without doing its work. So the holder renews the modification time of its file, and a process that finds it stale acquires the next lock.

Some file systems have no locks, such as Lustre without ``-o flock``. There an abstract Unix socket is the lock: its
name can be bound once in a network namespace, and is free when its holder dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files

STALE_SECONDS: Final = 5.0
"""Seconds without a renewal after which a holder counts as frozen. The monitor renews its lock every second."""
MAX_HOLDERS: Final = 4
"""Number of locks: all but one holder may be frozen at the same time."""


class LeaderLock:
    """The lock of one process.

    Args:
        folder: The folder of the lock files.
        node: The name of this node, as a part of the file names: nodes may share a folder.
        name: The task of the holder, as a part of the file names.
        stale: Seconds without a renewal after which a holder counts as frozen.
    """

    def __init__(self, folder: Path, node: str, name: str = "watcher", stale: float = STALE_SECONDS) -> None:
        self._paths = [folder / f"{name}-{node}-{number}.lock" for number in range(MAX_HOLDERS)]
        self._stale = stale
        self._handle = -1
        self._socket: socket.socket | None = None
        self._number = 0

    @property
    def is_held(self) -> bool:
        """Whether this process holds a lock."""
        return self._handle >= 0

    def acquire(self) -> bool:
        """Acquire a lock unless a holder is active. Returns at once; raises `OSError` if the folder does not allow files."""
        for number, path in enumerate(self._paths):
            handle = safe_files.open_private(path, os.O_RDWR | os.O_CREAT)
            try:
                self._socket = _lock(handle, path)
            except BlockingIOError:
                fresh = _age(handle) < self._stale
                os.close(handle)
                if fresh:
                    return False
                continue
            except OSError:
                os.close(handle)
                raise
            self._handle, self._number = handle, number
            self.renew()
            return True
        return False

    def renew(self) -> None:
        """Renew the lock, by the clock of this node: that of a file server may differ. Does nothing if no lock is held."""
        now, handle = time.time_ns(), self._handle
        if handle < 0:
            return
        try:
            os.utime(handle, ns=(now, now))
        except OSError:
            if handle == self._handle:
                raise

    def should_step_down(self) -> bool:
        """Return whether a holder that was frozen is active again."""
        for path in self._paths[: self._number]:
            try:
                handle = safe_files.open_private(path, os.O_RDWR)
            except OSError:
                continue
            try:
                if _age(handle) < self._stale:
                    return True
            finally:
                os.close(handle)
        return False

    def release(self) -> None:
        """Release the lock; also in a forked child, which shares its parent's lock."""
        # The descriptor is cleared before it is closed: another file may get the same number, and must not be renewed.
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
        name, self._socket = self._socket, None
        if name is not None:
            name.close()


def _lock(handle: int, path: Path) -> socket.socket | None:
    """Lock a file, or a name on this machine where its file system has no locks: then return the socket that has the name.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: There are no locks of either kind.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as failed:
            failed.callback(name.close)
            try:
                name.bind(b"\0verl-otel-" + hashlib.sha256(f"{os.getuid()} {path.resolve()}".encode()).digest())
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise BlockingIOError(error.errno, error.strerror) from None
                raise
            failed.pop_all()
        return name
    return None


def _age(handle: int) -> float:
    return time.time() - os.fstat(handle).st_mtime
