# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How long something may take: deadlines on the monotonic clock, and calls with a timeout.

Calls of drivers and of the kernel run on daemon threads, with one deadline for all calls of a batch. A thread that hangs there cannot be
stopped. It keeps running, its call is not repeated before it returns, and the number of threads is bounded. A late result is returned by the next
batch, unless that one gets a newer result in time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar


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
MAX_THREADS: Final = 16
"""Maximum number of concurrent threads: as many as a node has devices."""
TIMEOUT: Final = "timeout"


class NoThreadError(TimeoutError):
    """No thread could be started for a call: CPython 3.12.0 to 3.12.2 start none at the end of the interpreter."""


class CallTimeout:
    """Calls functions that may hang.

    Args:
        seconds: Timeout of one batch of calls.
        thread_name: Name of the threads.
    """

    def __init__(self, seconds: float, thread_name: str) -> None:
        self.cpu_seconds = 0.0
        """CPU time of the calls that have returned."""
        self._seconds = seconds
        self._thread_name = thread_name
        self._waiting: deque[tuple[str, Callable[[], Any]]] = deque()
        self._pending: set[str] = set()
        """Keys of calls that have not returned."""
        self._results: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    @property
    def is_stuck(self) -> bool:
        """Whether a call has not returned yet."""
        return bool(self._pending)

    def renew(self) -> CallTimeout:
        """Return a new instance without pending calls; calls of this one that have not started are dropped."""
        self._waiting.clear()
        return CallTimeout(self._seconds, self._thread_name)

    def call(self, key: str, function: Callable[[], T]) -> T:
        """Return the result of a function, or raise its exception, or `TimeoutError`; see `call_all`."""
        result = self.call_all({key: function})[key]
        if isinstance(result, BaseException):
            raise result
        return result

    def call_all(self, functions: Mapping[str, Callable[[], T]]) -> dict[str, T | BaseException]:
        """Return the result or the exception of each function.

        Args:
            functions: Functions by key, such as the id of a device or the name of a collector. A function whose earlier call has not returned is not called.

        Returns:
            Results by key: that of this call; otherwise a late result of the previous call; otherwise a `TimeoutError`.
        """
        deadline = time.monotonic() + self._seconds
        late = {key: self._results.pop(key) for key in functions if key in self._results}
        for key, function in functions.items():
            if key not in self._pending:
                self._pending.add(key)
                self._waiting.append((key, function))
        for thread in self._start():
            thread.join(max(0.0, deadline - time.monotonic()))
        missing = TimeoutError(TIMEOUT)
        return {key: self._results.pop(key, late.get(key, missing)) for key in functions}

    def _start(self) -> list[threading.Thread]:
        """Start a thread for each waiting call, up to the maximum; return the new threads."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        count = min(len(self._waiting), MAX_THREADS - len(self._threads))
        started: list[threading.Thread] = []
        for _ in range(count):
            thread = threading.Thread(target=self._work, name=self._thread_name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._abandon(NoThreadError(str(error)))
                break
            started.append(thread)
            self._threads.append(thread)
        return started

    def _abandon(self, error: NoThreadError) -> None:
        """Answer the calls that wait with an error, unless another thread takes them."""
        while self._waiting and not self._threads:
            key, _ = self._waiting.pop()
            self._pending.discard(key)
            self._results[key] = error

    def _work(self) -> None:
        while True:
            try:
                key, function = self._waiting.popleft()
            except IndexError:  # other threads have taken the rest
                self.cpu_seconds += time.thread_time()
                return
            try:
                self._results[key] = function()
            except BaseException as error:
                self._results[key] = error
            self._pending.discard(key)
