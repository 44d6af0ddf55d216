# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own OpenTelemetry instruments, collected on a thread that nobody has to wait for.

A callback of his may ask a server that does not answer. Whoever drains goes on meanwhile: what ends is recorded, signs of life are given,
and an exit takes no longer than it may.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from verl_otel import _guard
from verl_otel.exporting.exporter import remaining

if TYPE_CHECKING:
    from verl_otel.exporting.providers import PullReader

MAX_MESSAGES: Final = 16
"""Collected messages that may wait for a drain, which is due each second; a later one says more than an earlier one."""


class Collection:
    """One collection at a time, and what it found.

    Example:
        collection.begin(providers.pulled)
        collection.wait(time.monotonic() + 1.0)
        for message in collection.take(): ...
    """

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._messages: deque[bytes] = deque(maxlen=MAX_MESSAGES)
        self._missed: Sequence[PullReader] = ()
        """Who is to collect once more: what they collect just now may be older than the wish."""

    def begin(self, readers: Sequence[PullReader]) -> None:
        """Have the readers collect, unless they still do since the last time."""
        if self._is_working():
            self._missed = readers
            return
        self._missed = ()
        if not readers:
            return
        thread = threading.Thread(target=self._collect, args=(readers,), name="verl-otel-collect", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # CPython 3.12 starts none any more once the process ends
            self._collect(readers)
        else:
            self._thread = thread

    def wait(self, deadline: float) -> None:
        """Wait for the collection that was asked for last, until a deadline (``time.monotonic``)."""
        self._join(deadline)
        if self._missed and not self._is_working():
            self.begin(self._missed)
            self._join(deadline)

    def put(self, message: bytes) -> None:
        """Take what a reader has collected, encoded."""
        self._messages.append(message)

    def take(self) -> list[bytes]:
        """Return what was collected since the last call, in its order."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _is_working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _join(self, deadline: float) -> None:
        if self._thread is not None:
            self._thread.join(remaining(deadline))

    def _collect(self, readers: Sequence[PullReader]) -> None:
        begin = time.thread_time()
        for reader in readers:
            with _guard.swallowed("user metrics"):
                reader.collect()
        self.cpu_seconds += time.thread_time() - begin
