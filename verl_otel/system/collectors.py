# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Collectors: objects that read hardware, such as the counters of a GPU, some in one process per node.

A thread reads all of them for each collection, and ends. The drain takes the values, which have the time at which they
were read, and never waits for a driver or the kernel. A read that hangs holds up those behind it and those of later
collections; recording and exporting go on.

A collector opens nothing before its first read. The metrics of a node are read by the process that holds a lock in the run's folder.
The kernel releases the lock when its holder dies, and another process takes over from a frozen holder. Two runs on one node have one
reader each, since each has its own resource. A container with a pid namespace of its own counts as a node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal import error_boundary, safe_files
from verl_otel._internal.call_timeout import remaining
from verl_otel.config import Config
from verl_otel.recording.collection import Measurement, Observed
from verl_otel.system import procfs
from verl_otel.system.leader_lock import STALE_SECONDS, LeaderLock

MISSED_READS: Final = 3
"""Metric intervals after which values are no longer shown, and after which the holder of the lock counts as frozen if
it has not renewed it."""
FOLDER: Final = "hardware"
"""Folder of the locks, and of files that readers share, in the run's folder."""
LOCK_NAME: Final = "reader"
"""Prefix of the file name of the lock."""
END_SECONDS: Final = 1.0
"""Seconds that the end of a session waits for a read under way."""


class NodeScope(NamedTuple):
    """The folder and the node that processes of one run on one node share."""

    folder: Path
    """A folder of the run, which other nodes may share."""
    node: str
    """The name of this node, as a part of file names."""


class Collector(ABC):
    """An object that is read at each metric interval. `read` must not raise or import."""

    name: str
    """A unique name."""
    metrics: tuple[str, ...]
    """The names of all metrics that `read` may return. A series that is not returned any more is removed."""
    once_per_node: bool
    """Whether only one process per node reads it."""

    @abstractmethod
    def read(self, scope: NodeScope) -> Iterable[Measurement]:
        """Return the current measurements."""

    def read_late(self) -> Iterable[Measurement]:
        """Return what is shown while `read` does not return. Called on the drain thread, and must not block."""
        return ()

    def close(self) -> None:
        """Release all handles. `read` may be called again, by a later session or in a forked child."""


class DeltaCounter:
    """Makes foreign cumulative counters monotonic, starting at 0 at the first reading.

    A counter that falls below half of its last value was reset, and its growth is added. A counter that falls less, as ``iowait`` of the
    kernel may, counts again from its highest value.
    """

    def __init__(self) -> None:
        self._counters: dict[Hashable, tuple[float, float]] = {}

    def count(self, key: Hashable, value: float) -> float:
        """Return the growth of a counter since its first reading.

        Args:
            key: Identifies the counter.
            value: Its current value.

        Example:
            count("a", 70) == 0.0; count("a", 75) == 5.0; count("a", 74) == 5.0; count("a", 2) == 7.0
        """
        last, total = self._counters.get(key, (value, 0.0))
        if value < last / 2:
            last = 0.0
        highest = max(last, value)
        total += highest - last
        self._counters[key] = highest, total
        return total


class Reader:
    """Reads the collectors of this process for a session, on threads.

    Args:
        config: The settings.
        longest: Seconds between two collections, at most.
    """

    def __init__(self, config: Config, longest: float) -> None:
        self.cpu_seconds = 0.0
        """CPU time of the threads."""
        self._scope = find_node_scope(config)
        self._interval = config.metric_interval
        self._keep_seconds = MISSED_READS * config.metric_interval
        self._lock = LeaderLock(*self._scope, LOCK_NAME, max(STALE_SECONDS, MISSED_READS * longest))
        self._values: dict[str, tuple[float, Observed]] = {}
        """What was read last, and when (`time.monotonic`), by the name of the collector."""
        self._began = float("-inf")
        """When the last read began (`time.monotonic`)."""
        self._under_way: Collector | None = None
        """The collector that is being read."""
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.begin()

    def begin(self) -> None:
        """Start to read for a collection, unless the last read is younger than a metric interval or still under way."""
        now = time.monotonic()
        if now - self._began < self._interval or self._is_reading():
            return
        self._began = now
        try:
            self._start(self._read_all)
        except RuntimeError as error:  # as many threads as this system allows
            self._values.clear()
            error_boundary.warn_once("hardware thread", "verl-otel: %s: hardware metrics are missing", error)

    def take(self) -> list[Observed]:
        """Return what was read last, and renew the lock. Called on the drain thread.

        Old values are left out while a read hangs.

        The lock is renewed here, so that a reader that hangs in a driver keeps it: each process that took over would hang there, too.
        """
        with contextlib.suppress(OSError):
            self._lock.renew()
        collector, oldest = self._under_way, time.monotonic() - self._keep_seconds
        hangs = collector is not None and self._began < oldest
        known = [value for name, value in list(self._values.items()) if name in _COLLECTORS]
        values = [observed for at, observed in known if at >= oldest or not hangs]
        if collector is not None and hangs:
            error_boundary.warn_once(
                "hardware",
                "verl-otel: hardware metrics are missing while the kernel or the driver does not answer: %r waits for it (logged once)",
                collector.name,
            )
            values.append(Observed(time.time_ns(), tuple(collector.read_late())))
        return values

    def stop(self, deadline: float) -> None:
        """Close the collectors, and release the lock.

        Args:
            deadline: Until when (`time.monotonic`) to wait for a read under way, `END_SECONDS` at most. It is left alone afterwards.
        """
        self._stopped = True  # a read under way closes them when it ends
        if not self._is_reading():
            with contextlib.suppress(RuntimeError):  # at the exit of Python 3.12.0 and 3.12.1 no thread can be started
                self._start(_close_all)
        if self._thread is not None:
            self._thread.join(min(remaining(deadline), END_SECONDS))
        self._lock.release()

    def after_fork(self) -> None:
        """Close the collectors and the lock in a forked child, which has none of its parent's threads."""
        self._lock.release()
        _close_all()

    def _is_reading(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="verl-otel-hardware", daemon=True)
        thread.start()
        self._thread = thread

    def _read_all(self) -> None:
        for collector in list(_COLLECTORS.values()):
            with error_boundary.suppress_errors(f"read {collector.name}"):
                self._read(collector)
                continue
            self._values.pop(collector.name, None)  # it has failed
        self._under_way = None
        self.cpu_seconds += time.thread_time()
        if self._stopped:
            _close_all()

    def _read(self, collector: Collector) -> None:
        if collector.once_per_node and not self._reads_node():
            self._values.pop(collector.name, None)
            collector.close()
            return
        self._under_way = collector
        observed = Observed(time.time_ns(), tuple(collector.read(self._scope)))
        self._values[collector.name] = time.monotonic(), observed

    def _reads_node(self) -> bool:
        """Return whether this process reads the node; acquire the lock if it is free."""
        try:
            if not self._lock.is_held:
                safe_files.make_folder(self._scope.folder)
                return self._lock.acquire()
            if self._lock.should_step_down():
                self._lock.release()
            return self._lock.is_held
        except OSError as error:
            error_boundary.warn_once(
                "run folder",  # whose black box, beside it, cannot be written for the same reason
                "verl-otel: the hardware metrics of this node are not read: cannot lock in %s: %s",
                self._scope.folder,
                error.strerror or error,
            )
            return False


_COLLECTORS: Final[dict[str, Collector]] = {}
"""The collectors of this process by name; the reader of each session reads them."""


def add(collector: Collector) -> None:
    """Add a collector to this process, also to a running session. A second one with the same name replaces the first."""
    _COLLECTORS[collector.name] = collector


def remove(name: str) -> None:
    """Remove a collector."""
    collector = _COLLECTORS.pop(name, None)
    if collector is not None:
        collector.close()


def list_metrics() -> frozenset[str]:
    """Return the names of all metrics of the collectors."""
    return frozenset(name for collector in list(_COLLECTORS.values()) for name in collector.metrics)


def _close_all() -> None:
    for collector in list(_COLLECTORS.values()):
        with error_boundary.suppress_errors(f"close {collector.name}"):
            collector.close()


def find_node_scope(config: Config) -> NodeScope:
    """Return the scope of this run on this node."""
    return NodeScope(config.run_path / FOLDER, procfs.read_node_name())
