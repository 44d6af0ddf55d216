# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who watches, or reads the hardware: one process of a node and run, which holds a lock; a deputy where that one is frozen itself.

The kernel gives the lock free when its holder dies. One that is stopped, or whose interpreter is held by a thread inside of C, keeps
it and sees nothing; so the holder touches its file, and whoever finds it untouched takes the next lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

STALE: Final = 5.0
"""Seconds without a touch after which a watcher is taken to be frozen; it touches its file once a second."""
DEPUTIES: Final = 4
"""Watchers that may be frozen at the same time."""


class Post:
    """The post of the watcher, as one process sees it.

    Args:
        folder: Where the locks are.
        place: This node, as a part of their names: a folder may be shared by nodes.
        name: What is done there.
        stale: Seconds without a touch after which its holder is taken to be frozen.
    """

    def __init__(self, folder: Path, place: str, name: str = "watcher", stale: float = STALE) -> None:
        self._paths = [folder / f"{name}-{place}-{number}.lock" for number in range(DEPUTIES)]
        self._stale = stale
        self._handle = -1
        self._number = 0

    @property
    def is_held(self) -> bool:
        """Whether this process is the watcher."""
        return self._handle >= 0

    def take(self) -> bool:
        """Become the watcher if nobody is who watches. Returns at once; raises `OSError` where nothing can be written or locked."""
        for number, path in enumerate(self._paths):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fresh = _age(handle) < self._stale
                os.close(handle)
                if fresh:
                    return False
                continue
            except OSError:  # this file system has no locks
                os.close(handle)
                raise
            self._handle, self._number = handle, number
            self.touch()
            return True
        return False

    def touch(self) -> None:
        """Show that this watcher watches, by this node's clock: that of a file server may be another. One who has left shows nothing."""
        now, handle = time.time_ns(), self._handle
        if handle < 0:
            return
        try:
            os.utime(handle, ns=(now, now))
        except OSError:
            if handle == self._handle:
                raise

    def is_relieved(self) -> bool:
        """Return whether a watcher that this one stands in for watches again."""
        for path in self._paths[: self._number]:
            try:
                handle = os.open(path, os.O_RDWR)
            except OSError:
                continue
            try:
                if _age(handle) < self._stale:
                    return True
            finally:
                os.close(handle)
        return False

    def leave(self) -> None:
        """Give the post up, also as a forked child, which holds its parent's lock together with it."""
        # The number is forgotten before it is free: whoever gets it next must not be touched in our name.
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _age(handle: int) -> float:
    return time.time() - os.fstat(handle).st_mtime
