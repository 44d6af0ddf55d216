# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Collects the user's own OpenTelemetry instruments on a separate thread.

A callback of the user may wait for a server that does not answer. Meanwhile the drain thread records spans and writes heartbeats, and
an exit keeps its time-out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.deadline import remaining

if TYPE_CHECKING:
    from verl_otel.exporting.providers import PullReader

MAX_MESSAGES: Final = 16
"""Collected messages that are queued for the drain, which runs every second; the oldest are dropped."""


class UserMetricsThread:
    """Runs one collection at a time and queues the results.

    Example:
        collection.begin(providers.pull_readers)
        collection.wait(time.monotonic() + 1.0)
        for message in collection.take(): ...
    """

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._messages: deque[bytes] = deque(maxlen=MAX_MESSAGES)
        self._collect_again: Sequence[PullReader] = ()
        """Readers that collect once more: the collection that is running may have begun before the request."""

    def begin(self, readers: Sequence[PullReader]) -> None:
        """Start a collection; if one is running, another follows it in `wait`."""
        if self._is_running():
            self._collect_again = readers
            return
        self._collect_again = ()
        if not readers:
            return
        thread = threading.Thread(target=self._collect, args=(readers,), name="verl-otel-collect", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # CPython 3.12 starts no threads during interpreter shutdown
            self._collect(readers)
        else:
            self._thread = thread

    def wait(self, deadline: float) -> None:
        """Wait for the collection that was started last, until a deadline (``time.monotonic``)."""
        self._join(deadline)
        if self._collect_again and not self._is_running():
            self.begin(self._collect_again)
            self._join(deadline)

    def put(self, message: bytes) -> None:
        """Queue an encoded message of a reader."""
        self._messages.append(message)

    @property
    def has_messages(self) -> bool:
        """Whether a message is queued."""
        return bool(self._messages)

    def take(self) -> list[bytes]:
        """Return the messages since the last call, oldest first."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _join(self, deadline: float) -> None:
        if self._thread is not None:
            self._thread.join(remaining(deadline))

    def _collect(self, readers: Sequence[PullReader]) -> None:
        begin = time.thread_time()
        for reader in readers:
            with error_boundary.suppress_errors("user metrics"):
                reader.collect()
        self.cpu_seconds += time.thread_time() - begin
