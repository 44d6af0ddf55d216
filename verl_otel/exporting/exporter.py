# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What an exporter is.

A new one is a file with a subclass, its test, a word in `verl_otel.parsers.EXPORTERS` and its making in `verl_otel.session.exporters`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from threading import Lock
from typing import TYPE_CHECKING

from verl_otel import _guard

if TYPE_CHECKING:
    from verl_otel.exporting.fold import State
    from verl_otel.model import Batch, Resource, Scope


class Exporter(ABC):
    """Takes batches without ever making the caller wait, and sends them on a thread of its own or on the drain thread."""

    name: str
    """The word in ``VERL_OTEL_EXPORTERS``."""

    def __init__(self) -> None:
        self._count_lock = Lock()
        self._dropped: dict[tuple[str, str], int] = {}
        self.seconds = 0.0
        """Time spent sending."""
        self.cpu_seconds = 0.0
        """CPU time of the exporter's own thread, if it has one."""

    @abstractmethod
    def open(self, resource: Resource, scope: Scope, state: State) -> None:
        """Start, at the first record of this process. May raise `OSError`: the exporter is then left out."""

    def put(self, batch: Batch) -> None:
        """Take a batch. Never blocks; what does not fit is dropped and counted."""

    def put_resource(self, resource: Resource) -> None:
        """Take the resource again: what was said of this process after `open` has been added."""

    def put_metrics(self, message: bytes) -> None:
        """Take an encoded ``ExportMetricsServiceRequest`` of the user's ordinary instruments."""

    def lose_reader(self) -> None:
        """Learn that nobody serves the reader of the user's instruments that this exporter has for itself."""

    def tick(self) -> None:
        """Do the work that is done on the drain thread."""

    def flush(self, deadline: float) -> None:
        """Send what waits, until ``deadline`` (`time.monotonic`)."""

    def close(self, deadline: float) -> None:
        """Send what waits, until ``deadline``, and stop."""
        self.flush(deadline)

    def abandon(self) -> None:
        """Let go of file handles and sockets in a forked child, without sending anything."""

    def drop(self, what: str, count: int, reason: str) -> None:
        """Count ``spans`` or ``points`` that are lost, and say so once for each reason."""
        if count <= 0:
            return
        with self._count_lock:
            key = (what, reason)
            self._dropped[key] = self._dropped.get(key, 0) + count
        self.complain(what, reason)

    def complain(self, what: str, reason: str) -> None:
        """Say once for each reason that telemetry cannot be kept or sent."""
        _guard.say(
            f"drop {self.name} {reason}",
            "verl-otel: %s exporter: %s; telemetry is being dropped, training goes on (said once; see verl.otel.%s.dropped)",
            self.name,
            reason,
            what,
        )

    def dropped(self, what: str) -> dict[str, int]:
        """Return how many ``spans`` or ``points`` were dropped, by reason."""
        with self._count_lock:
            return {reason: count for (kind, reason), count in self._dropped.items() if kind == what}


def file_word(text: str) -> str:
    """Return a text as a part of a file's name, which never begins with a point.

    Example:
        file_word("../node 1") == "_node_1"
    """
    return "".join(char if char.isalnum() or char in "-." else "_" for char in text).lstrip(".")


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline, not below 0."""
    return max(0.0, deadline - time.monotonic())
