# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An event that a signal handler may set."""

from __future__ import annotations

import contextlib
import threading


class SignalSafeEvent:
    """An event that may be set from a signal handler, whatever the interrupted thread was doing.

    `threading.Event.set` holds a lock. A signal handler that interrupts it and calls it again deadlocks. Here the lock is the event:
    releasing it is atomic and never blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that waits."""
        with contextlib.suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, timeout: float) -> bool:
        """Wait until the event is set, and clear it; return whether it was set within ``timeout`` seconds."""
        return self._lock.acquire(timeout=timeout)
