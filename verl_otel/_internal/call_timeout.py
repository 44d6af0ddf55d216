# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How long something may take: deadlines on the monotonic clock, and calls with a timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar


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


T = TypeVar("T")


def call_for(seconds: float, thread_name: str, function: Callable[[], T]) -> T:
    """Return the result of a function that may hang, or raise its exception. A thread that hangs cannot be stopped: it is left alone.

    Args:
        seconds: How long to wait for it.
        thread_name: Name of the thread that calls it.
        function: The function. Its result is dropped if it comes later.

    Raises:
        TimeoutError: It did not return in time, or no thread could be started: CPython 3.12.0 to 3.12.2 start none at
            the end of the interpreter.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=thread_name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise TimeoutError(str(error)) from error
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError("timeout")
    return results[0]
