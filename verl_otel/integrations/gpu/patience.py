# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of a driver that may take long or never return: on threads of their own, all of a collection waited for only so long.

A thread inside of a driver cannot be ended. It is left alone, what it was asked for is not asked for again before it returns, and there
are never more than a few of them. What comes late is the answer at the next collection, if that one gets no newer in time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from verl_otel.integrations.gpu.device import Unreadable

T = TypeVar("T")
SECONDS: Final = 1.0
"""For how long a collection waits for all devices together; one that answers takes milliseconds."""
MAX_THREADS: Final = 16
"""Threads that may be in a driver at the same time: as many as a node has devices."""
TIMEOUT: Final = "timeout"


class Patience:
    """Calls functions that may hang.

    Args:
        seconds: For how long all that are asked at once are waited for together.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._waiting: deque[tuple[str, Callable[[], Any]]] = deque()
        self._pending: set[str] = set()
        """What is asked for and has not been answered."""
        self._answers: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    @property
    def is_stuck(self) -> bool:
        """Whether a call has not returned yet."""
        return bool(self._pending)

    def renew(self) -> Patience:
        """Return one like this that is not stuck; what this one has not begun is not asked any more."""
        self._waiting.clear()
        return Patience(self._seconds)

    def call(self, key: str, function: Callable[[], T]) -> T:
        """Return what a function returns, or raise what it raises; arguments and errors as in `call_all`."""
        answer = self.call_all({key: function})[key]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def call_all(self, functions: Mapping[str, Callable[[], T]]) -> dict[str, T | BaseException]:
        """Return what each function returns, or what it raises.

        Args:
            functions: Each asks for something, such as a device, which is its key. One that has not yet returned from an earlier
                call is not called.

        Returns:
            By key: the answer; the one of the call before if that came late and there is no newer one; or `Unreadable` if there
            is none in time.
        """
        deadline = time.monotonic() + self._seconds
        late = {key: self._answers.pop(key) for key in functions if key in self._answers}
        for key, function in functions.items():
            if key not in self._pending:
                self._pending.add(key)
                self._waiting.append((key, function))
        for thread in self._start():
            thread.join(max(0.0, deadline - time.monotonic()))
        missing = Unreadable(TIMEOUT)
        return {key: self._answers.pop(key, late.get(key, missing)) for key in functions}

    def _start(self) -> list[threading.Thread]:
        """Start as many threads as there are calls to make; return them."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        count = min(len(self._waiting), MAX_THREADS - len(self._threads))
        started = [threading.Thread(target=self._work, name="verl-otel-gpu", daemon=True) for _ in range(count)]
        self._threads += started
        for thread in started:
            thread.start()
        return started

    def _work(self) -> None:
        while True:
            try:
                key, function = self._waiting.popleft()
            except IndexError:  # others have taken the rest
                return
            try:
                self._answers[key] = function()
            except BaseException as error:
                self._answers[key] = error
            self._pending.discard(key)
