# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Base class of exporters.

To add one, write a module with a subclass and its test, add its name to `verl_otel.config.EXPORTERS` and create it in
`verl_otel.session.exporters`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable
from threading import Lock
from typing import TYPE_CHECKING, Final

from verl_otel._internal import error_boundary
from verl_otel.model import Labels, Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verl_otel.model import Batch, LogRecord, Resource, Scope


# -- Metric state: the latest point of every series with a version, so that each exporter reads from its own cursor --

MAX_HISTORY: Final = 5_000
"""Replaced gauge values that are held: several steps may end between two reads."""


class MetricState:
    """The latest point of every series of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[tuple[str, Labels], tuple[int, Point]] = {}
        self._history: deque[tuple[int, Point]] = deque(maxlen=MAX_HISTORY)
        self._version = 0

    def update(self, points: Iterable[Point], asked: Collection[str] = ()) -> None:
        """Update the state.

        Args:
            points: The changed points.
            asked: Metrics of which ``points`` has every series. Other series of them are removed, such as those of a GPU that is lost:
                its last value must not be exported any more.
        """
        with self._lock:
            self._version += 1
            points = list(points)
            if asked:
                current = {(point.instrument.name, point.labels) for point in points}
                for key in [key for key in self._points if key[0] in asked and key not in current]:
                    del self._points[key]
            for point in points:
                self._points[(point.instrument.name, point.labels)] = (self._version, point)
                if point.instrument.kind == "gauge":
                    self._history.append((self._version, point))

    def read(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return the current version and the points that changed after version ``since`` (0: all points)."""
        with self._lock:
            return self._version, [point for version, point in self._points.values() if version > since]

    def read_history(self, since: int = 0) -> tuple[int, list[Point]]:
        """Return the result of `read`, preceded by the gauge values that were replaced after ``since``, oldest first.

        A later value of a gauge does not include the earlier ones, unlike that of a counter or histogram.
        """
        with self._lock:
            newer: deque[Point] = deque()
            for version, point in reversed(self._history):
                if version <= since:
                    break
                latest = self._points.get((point.instrument.name, point.labels))
                if latest is None or latest[1] is not point:
                    newer.appendleft(point)
            newer.extend(point for version, point in self._points.values() if version > since)
            return self._version, list(newer)


# -- The base class --


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
