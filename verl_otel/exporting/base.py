# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Base class of exporters.

To add one, write a module with a subclass and its test, add its name to `verl_otel._internal.setting_parsers.EXPORTERS` and create it in
`verl_otel.session.exporters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Lock
from typing import TYPE_CHECKING

from verl_otel._internal import error_boundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verl_otel.exporting.metric_state import MetricState
    from verl_otel.model import Batch, LogRecord, Resource, Scope


class Exporter(ABC):
    """Consumes batches without blocking, and sends them on a thread of its own or on the drain thread."""

    name: str
    """Name in ``VERL_OTEL_EXPORTERS``."""

    def __init__(self) -> None:
        self._count_lock = Lock()
        self._dropped: dict[tuple[str, str], int] = {}
        self.seconds = 0.0
        """Seconds spent sending."""
        self.cpu_seconds = 0.0
        """CPU seconds of the exporter's own thread, if it has one."""

    @abstractmethod
    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:
        """Start. Called at the first record of this process.

        Raises:
            OSError: It cannot start and is left out.
        """

    def consume(self, batch: Batch) -> None:
        """Queue a batch. Never blocks; what does not fit is dropped and counted."""

    def consume_logs(self, records: Sequence[LogRecord]) -> None:
        """Queue records of the run log. Never blocks; what does not fit is dropped and counted."""

    def update_resource(self, resource: Resource) -> None:
        """Replace the resource: attributes were added after `open`."""

    def consume_metrics(self, message: bytes) -> None:
        """Queue an encoded ``ExportMetricsServiceRequest`` of the user's OpenTelemetry instruments."""

    def detach_reader(self) -> None:
        """Called if the reader of this exporter for the user's instruments could not be registered."""

    def poll(self) -> None:
        """Called by the drain thread after each drain."""

    def rest(self) -> None:
        """Called by the drain thread at each drain interval in which there is nothing to drain."""

    def flush(self, deadline: float) -> None:
        """Send the queue until ``deadline`` (`time.monotonic`)."""

    def close(self, deadline: float) -> None:
        """Send the queue until ``deadline`` (`time.monotonic`), and stop."""
        self.flush(deadline)

    def after_fork(self) -> None:
        """Close file handles and sockets in a forked child without sending anything."""

    def drop(self, what: str, count: int, reason: str) -> None:
        """Count dropped ``spans`` or ``points``, and log once for each reason."""
        if count <= 0:
            return
        with self._count_lock:
            key = (what, reason)
            self._dropped[key] = self._dropped.get(key, 0) + count
        self.log_once(what, reason)

    def log_once(self, what: str, reason: str) -> None:
        """Log once for each reason that telemetry is dropped."""
        error_boundary.warn_once(
            f"drop {self.name} {reason}",
            "verl-otel: %s exporter: %s; telemetry is being dropped, training goes on (logged once; see verl.otel.%s.dropped)",
            self.name,
            reason,
            what,
        )

    def dropped(self, what: str) -> dict[str, int]:
        """Return the number of dropped ``spans`` or ``points`` by reason."""
        with self._count_lock:
            return {reason: count for (kind, reason), count in self._dropped.items() if kind == what}
