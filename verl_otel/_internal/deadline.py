# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Deadlines on the monotonic clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline (`time.monotonic`), not below 0."""
    return max(0.0, deadline - time.monotonic())


def run_locked(lock: threading.Lock, work: Callable[[], None], deadline: float) -> None:
    """Call a function while holding a lock. It is not called if another thread holds the lock until the deadline."""
    if lock.acquire(timeout=remaining(deadline)):
        try:
            work()
        finally:
            lock.release()
