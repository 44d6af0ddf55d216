# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How one thread wakes another where a signal handler may do it, too."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """An event that may be set from a signal handler, whatever its thread was doing.

    `threading.Event` holds a lock of its own while it is set: a handler that interrupts it there, and sets it again, waits for
    itself for ever. Here the lock is the event: releasing it is one step, and never waits.
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake whoever waits, or who waits next."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silence.release()

    def wait(self, timeout: float) -> bool:
        """Wait for a ring and take it; return whether there was one within ``timeout`` seconds."""
        return self._silence.acquire(timeout=timeout)
