# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The lock of a series. Callers try it and never wait, and an exception of a signal handler cannot leave it held."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_FREE: Final = (True,)
POLL_SECONDS: Final = 0.001
"""Seconds between two attempts of a thread that waits. Folding a full buffer takes less."""


class FoldLock:
    """Lets one thread at a time run something.

    Its state is a list that has an item while the lock is free. ``del`` takes the item or fails, at once, and is one bytecode instruction
    after which Python runs no signal handlers. After a call such as ``lock.acquire(blocking=False)`` it does: a handler that raises there
    would leave the lock held. ``with lock`` of the standard library has no such gap, but waits.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = list(_FREE)

    def run(self, function: Callable[[], object], deadline: float = 0.0) -> bool:
        """Call a function while holding the lock.

        Args:
            function: What to call. It must not use this lock.
            deadline: Until when to wait for the lock, as `time.monotonic`; the default is to try once.

        Returns:
            Whether the function was called. False if another thread, or a frame of this thread that was interrupted, holds the lock.
        """
        items = self._items
        while True:
            try:
                del items[0]
            except IndexError:
                if not deadline or time.monotonic() >= deadline:
                    return False
                time.sleep(POLL_SECONDS)
                continue
            try:
                function()
            finally:
                items[:] = _FREE
            return True

    @property
    def is_held(self) -> bool:
        """Whether something is running."""
        return not self._items
