# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Collectors: objects whose metrics are read at each collection, such as the counters of a GPU, some by one process per node.

A collector opens nothing before the first collection. The metrics of a node are read by the process that holds a lock in the run's folder.
The kernel releases the lock when its holder dies, and another process takes over from a frozen holder. Two runs on one node have one
reader each, since each has its own resource. A container with a pid namespace of its own counts as a node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from verl_otel._internal import error_boundary, safe_files
from verl_otel._internal.call_timeout import CallTimeout, NoThreadError
from verl_otel.config import Config
from verl_otel.recording import collection
from verl_otel.recording.collection import Measurement
from verl_otel.system import procfs
from verl_otel.system.leader_lock import STALE_SECONDS, LeaderLock

MISSED_COLLECTIONS: Final = 3
"""Collections without a renewal of the lock after which its holder counts as frozen."""
FOLDER: Final = "hardware"
"""Folder of the locks, and of files that readers share, in the run's folder."""
READ_SECONDS: Final = 3.0
"""Seconds that a collection waits for one collector. One that hangs is not read again before its last read has returned."""
LOCK_NAME: Final = "reader"
"""Prefix of the file name of the lock."""


class NodeScope(NamedTuple):
    """The folder and the node that processes of one run on one node share."""

    folder: Path
    """A folder of the run, which other nodes may share."""
    node: str
    """The name of this node, as a part of file names."""


class Collector(Protocol):
    """An object that is read at each collection, on a thread of its own. `read` must not raise, import, or block for seconds."""

    @property
    def name(self) -> str:
        """A unique name."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that `read` may return. A series that is not returned any more is removed."""

    @property
    def once_per_node(self) -> bool:
        """Whether only one process per node reads it."""

    def read(self, scope: NodeScope) -> Iterable[Measurement]:
        """Return the current measurements."""

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


class _Registry:
    """The collectors of this process."""

    collectors: dict[str, Collector] = {}
    leader_lock: LeaderLock | None = None
    reads = CallTimeout(READ_SECONDS, "verl-otel-collector")
    session: tuple[NodeScope, float] | None = None
    """Scope and lock time-out in seconds of the current session; None without one."""


def add(collector: Collector) -> None:
    """Add a collector to this process, also to a running session. A second one with the same name replaces the first."""
    _Registry.collectors[collector.name] = collector
    _observe(collector)


def start(config: Config) -> None:
    """Read every collector at each collection of a session that starts, unless hardware metrics or exporters are off."""
    _Registry.leader_lock = _Registry.session = None
    if not config.hardware or not config.exporters:
        return
    _Registry.session = find_node_scope(config), max(STALE_SECONDS, MISSED_COLLECTIONS * config.metric_interval)
    for collector in list(_Registry.collectors.values()):
        _observe(collector)


def _observe(collector: Collector) -> None:
    if _Registry.session is not None:
        collection.observe_all(collector.name, collector.metrics, partial(_read, collector, *_Registry.session))


def after_fork() -> None:
    """Close every collector in a forked child, which has inherited the lock of its parent and none of its threads."""
    _Registry.reads = _Registry.reads.renew()
    stop()


def read_cpu_seconds() -> float:
    """Return the CPU time that reading the collectors has taken."""
    return _Registry.reads.cpu_seconds


def stop() -> None:
    """Close every collector and release the lock: the session ends."""
    _Registry.session = None
    if _Registry.leader_lock is not None:
        _Registry.leader_lock.release()
        _Registry.leader_lock = None
    for collector in list(_Registry.collectors.values()):
        with error_boundary.suppress_errors(f"close {collector.name}"):
            collector.close()


def remove(name: str) -> None:
    """Remove a collector."""
    collector = _Registry.collectors.pop(name, None)
    if collector is not None:
        collector.close()


def find_node_scope(config: Config) -> NodeScope:
    """Return the scope of this run on this node."""
    return NodeScope(config.run_path / FOLDER, procfs.read_node_name())


def _read(collector: Collector, scope: NodeScope, stale_seconds: float) -> Iterable[Measurement]:
    if collector.once_per_node and not _reads_node(scope, stale_seconds):
        collector.close()
        return ()
    try:
        return _Registry.reads.call(collector.name, lambda: list(collector.read(scope)))
    except NoThreadError:  # this process ends
        return ()
    except TimeoutError:
        error_boundary.warn_once(
            f"collector {collector.name}",
            "verl-otel: the metrics of %r are missing while the kernel or the driver does not answer (logged once)",
            collector.name,
        )
        return ()


def _reads_node(scope: NodeScope, stale_seconds: float) -> bool:
    """Return whether this process reads the node; acquire the lock if it is free."""
    try:
        if _Registry.leader_lock is None:
            safe_files.make_folder(scope.folder)
            _Registry.leader_lock = LeaderLock(scope.folder, scope.node, LOCK_NAME, stale_seconds)
        leader_lock = _Registry.leader_lock
        if not leader_lock.is_held:
            return leader_lock.acquire()
        leader_lock.renew()
        if leader_lock.should_step_down():
            leader_lock.release()
        return leader_lock.is_held
    except OSError as error:
        error_boundary.warn_once(
            "sources",
            "verl-otel: the hardware metrics of this node are not read: cannot lock in %s: %s",
            scope.folder,
            error,
        )
        return False
