# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Base class of exporters.

To add one, write a module with a subclass and its test, add its name to `verl_otel.config.EXPORTERS` and its modules to
`verl_otel.early_imports`, and create it in `verl_otel.session.outputs`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import remaining
from verl_otel._version import __version__
from verl_otel.model import Labels, Point, Scope
from verl_otel.semconv import SCHEMA_URL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verl_otel.model import Batch, LogRecord, Resource

SCOPE: Final = Scope("verl_otel", __version__, SCHEMA_URL)
"""The scope of everything that verl-otel records itself."""

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

    @property
    def version(self) -> int:
        """The number of the last update."""
        return self._version

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


# -- The user's own SDK --


class GivenProviders(NamedTuple):
    """Providers of OpenTelemetry that the user has given to the exporter ``sdk``. None: the global one, once it is set."""

    tracer: Any = None
    meter: Any = None


# -- The base class --


class Exporter(ABC):
    """Consumes batches without blocking, and sends them on a thread of its own or on the drain thread."""

    name: str
    """Name in ``VERL_OTEL_EXPORTERS``."""

    def __init__(self) -> None:
        self._count_lock = threading.Lock()
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

    def make_reader(self) -> Any:
        """Return a metric reader of the user's own instruments for this exporter alone; None if it needs none."""
        return None

    def detach_reader(self) -> None:
        """Called if the reader of this exporter for the user's instruments could not be registered."""

    def poll(self) -> None:
        """Called by the drain thread after each drain."""

    def rest(self) -> None:
        """Called by the drain thread at each drain interval in which there is nothing to drain."""

    def begin_flush(self, deadline: float) -> None:
        """Start to send without waiting, before any exporter is flushed or closed."""

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


class Sender(Exporter):
    """An exporter with a thread of its own, which sends what waits whenever it is woken or something is due.

    Flushes have numbers: one is done when the thread has sent everything in a pass that began after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._wanted = self._done = 0
        """Numbers of the last requested and of the last completed flush."""
        self._deadline: float | None = None
        """Deadline of the flush that is waited for."""
        self._stopped = False
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"verl-otel-{self.name}", daemon=True)
        thread.start()
        self._thread = thread

    @abstractmethod
    def _send(self, *, is_flush: bool) -> bool:
        """Send what waits; return whether nothing is left. Called on the thread.

        Args:
            is_flush: Whether a flush is not done yet.
        """

    def _begin_pass(self) -> None:
        """Called on the thread before the first pass of a flush."""

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until something is due; None: the thread waits until it is woken."""
        return None

    def _request_flush(self, deadline: float) -> int:
        with self._flushed:
            self._wanted += 1
            self._deadline = deadline
            self._wake.set()
            return self._wanted

    def flush(self, deadline: float) -> None:
        """Send the queue until ``deadline``. Returns at once after `close`."""
        if self._thread is None:
            return
        wanted = self._request_flush(deadline)
        with self._flushed:
            self._flushed.wait_for(lambda: self._stopped or self._done >= wanted, remaining(deadline))
            self._deadline = None

    def close(self, deadline: float) -> None:
        """Send the queue until ``deadline``, and stop."""
        self.flush(deadline)
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        wanted = 0
        while not self._stopped:
            self._wake.wait(self._seconds_until_due())
            self._wake.clear()
            if self._wanted > wanted:
                self._begin_pass()
            wanted = self._wanted
            begin, sent = time.monotonic(), False
            with error_boundary.suppress_errors(self.name):
                sent = self._send(is_flush=self._done < wanted)
            self.seconds += time.monotonic() - begin
            self.cpu_seconds = time.thread_time()
            if sent and self._done < wanted:
                with self._flushed:
                    self._done = wanted
                    self._flushed.notify_all()
