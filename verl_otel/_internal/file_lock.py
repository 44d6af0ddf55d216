# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Locks of files and folders that are waited for with a limit."""

from __future__ import annotations

import errno
import fcntl
import time
from typing import IO, Final

POLLS: Final = 50
"""Attempts within the time that is waited for a lock. Hundreds of processes that try a hundred times a second would leave its holder no CPU."""
MAX_POLL: Final = 0.25


def acquire(lock: IO[str] | int, seconds: float) -> None:
    """Acquire a lock, whose holder may be stopped or on a machine that is gone.

    Args:
        lock: An open file, or a descriptor.
        seconds: Time to wait.

    Raises:
        TimeoutError: Another process holds it.
        OSError: The file system has no locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
            time.sleep(min(seconds / POLLS, MAX_POLL))
        else:
            return
