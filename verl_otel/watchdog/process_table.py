# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The process table of a node: the processes of the run, their last heartbeats, states, and memory over time."""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.recording.span import clock
from verl_otel.system import procfs
from verl_otel.watchdog import cluster_backend, process_pauses, process_reports
from verl_otel.watchdog.cluster_backend import ActorProcess
from verl_otel.watchdog.overdue import (
    ALIVE,
    DIED,
    FROZEN,
    HEARTBEAT_TIMEOUT,
    STOPPED,
    OpenSpanRow,
    merge_all,
    read_rows,
)
from verl_otel.watchdog.process_pauses import Pause
from verl_otel.watchdog.process_reports import ProcessReport
from verl_otel.watchdog.stillness import Stillness

STOPPED_SECONDS: Final = 8.0
"""Seconds without a heartbeat after which a process that the kernel reports as stopped has the state `STOPPED`, which is reported if it has work,
however long that takes otherwise. Shorter ones are causes of a slow step."""
MISSED_HEARTBEATS: Final = 3
"""Heartbeats that a process may miss before it is late: a drain may take long."""
MEMORY_SECONDS: Final = 5.0
MEMORY_SAMPLES: Final = 120
"""Ten minutes of memory."""
MAX_PROCESSES: Final = 1024
"""Processes of this node that are watched."""
FOREIGN_SECONDS: Final = 30.0
"""Seconds until the report of a process of another node is looked at again: on a shared file system there may be thousands."""
MAX_HEARTBEAT_BYTES: Final = 100
"""Bytes of a heartbeat file that are read."""
MAX_SILENT_SECONDS: Final = 600.0
HELPER_INTERVAL: Final = 1.0
"""Seconds between two looks at a process without telemetry."""
_STOPPED: Final = ("stopped", "traced")
HELPERS_SECONDS, MAX_HELPERS_SECONDS = 10.0, 320.0
"""Seconds until processes without telemetry are looked for again: each time twice as long, since most of them start with the run. The cluster is
asked for their actors only if there are some: its answer has all actors of the job."""
RAYLET: Final = "raylet"
"""Name of Ray's own process of a node, the parent of its workers."""
_ACTORS, _IDLE = "ray::", "ray::IDLE"
"""Begin of the titles of Ray's workers, and of those that run nothing."""
LATE_SECONDS: Final = 30.0
"""Seconds without a heartbeat after which a late process does not delay other reports: it may wait for a disk for hours."""


class ProcessStatus:
    """A process as the monitor sees it."""

    def __init__(self, report: ProcessReport, version: tuple[int, int, int]) -> None:
        self.report = report
        self.version = version
        self.state = ALIVE
        self.stopped: list[float] = []
        """When a process without telemetry was first and last seen to be stopped, on the clock of spans."""
        self.kernel_state = ""
        """What the kernel says that it does, see `procfs.read_state`."""
        self.heartbeat_ns = 0
        self.last_heartbeat = time.monotonic()
        """Monotonic time at which a heartbeat was seen last."""
        self.open_count = 0
        """Spans that it had open at its last heartbeat."""
        self.ended_count = -1
        self.last_progress = 0.0
        """Monotonic time at which a change of the number of ended spans was seen last."""
        self.waited_at = -math.inf
        """Monotonic time at which its heartbeat thread was seen last to wait for a disk."""
        self.died_at: float | None = None
        """Monotonic time at which it was found dead, or a span last waited for it."""
        self.memory: deque[tuple[int, int]] = deque(maxlen=MEMORY_SAMPLES)
        """Pairs of Unix seconds and resident bytes."""
        self.rows: tuple[OpenSpanRow, ...] = ()
        self.rows_version: tuple[int, int] | None = None

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last heartbeat."""
        return time.monotonic() - self.last_heartbeat

    @property
    def is_late(self) -> bool:
        """Whether it has missed heartbeats, but is not frozen."""
        return (
            self.state == ALIVE
            and MISSED_HEARTBEATS * self.report.interval
            < self.silent_seconds
            < LATE_SECONDS + MISSED_HEARTBEATS * self.report.interval
        )

    @property
    def is_report_stale(self) -> bool:
        """Whether it is alive but cannot write because its disk does not answer, so that its report may be out of date."""
        return self.state == ALIVE and self.silent_seconds > max(
            HEARTBEAT_TIMEOUT, MISSED_HEARTBEATS * self.report.interval
        )


def _note_helper(status: ProcessStatus) -> None:
    """Note whether a process without telemetry runs: that stands for its heartbeat. Record the time in which it was stopped when it goes on."""
    now = clock()
    if status.kernel_state in _STOPPED:
        status.stopped = [*status.stopped[:1], now]
        return
    if status.kernel_state != procfs.GONE:
        status.heartbeat_ns, status.last_heartbeat = time.time_ns(), time.monotonic()
    if status.stopped:  # it is looked at once in an interval
        half = HELPER_INTERVAL / 2
        pause = Pause(status.stopped[0] - half, status.stopped[-1] + half, process_pauses.PROCESS)
        process_pauses.record(pause, status.report.instance)
        status.stopped = []


class ProcessTable:
    """All processes of a run on this node.

    Args:
        run_path: The run's folder.
        node: This node.
        since: Unix time; a dead process without a heartbeat after it belongs to an earlier attempt.
    """

    def __init__(self, run_path: Path, node: str, since: float) -> None:
        self._run_path = run_path
        self._folder = run_path / process_reports.FOLDER
        self._node = node
        self._since = since
        self._paths: list[Path] = []
        """The reports in the folder."""
        self._folder_times = (0, 0)
        """When the folder had changed last, at the last two looks at it."""
        self._foreign: dict[Path, float] = {}
        """Reports of other nodes, and the monotonic time until which they are not looked at."""
        self._memory_at = 0.0
        self._stillness = Stillness()
        self._helpers_at, self._helpers_pause = 0.0, HELPERS_SECONDS
        self.statuses: dict[str, ProcessStatus] = {}
        self.departed_peers: dict[str, DurationStats] = {}
        """Peers of removed processes, which stay valid for the others."""
        self.changed = True
        """Whether a report has changed since this was set to False."""
        self.dead_children: list[tuple[ProcessReport, list[OpenSpanRow]]] = []
        """The forked children that died at work since this was emptied, with what they had open."""

    def refresh(self) -> None:
        """Read changed reports, and update the states."""
        now = time.monotonic()
        if self._has_changed():
            self._read_reports(now)
        present = set(map(process_reports.name_of, self._paths))
        self._find_helpers(now)
        reported = {status.report.process for status in self.statuses.values() if not status.report.is_helper}
        for process_name, status in list(self.statuses.items()):
            begins = status.report.is_helper and status.report.process in reported
            has_exited = not status.report.is_helper and process_name not in present
            if begins or has_exited:
                del self.statuses[process_name]
                self.changed = True
        for status in list(self.statuses.values()):
            self._check(status)
            if status.state == DIED and status.report.is_child:
                self._remove_child(status.report)
        self._sample_activity()
        if time.monotonic() >= self._memory_at:
            self._memory_at = time.monotonic() + MEMORY_SECONDS
            for status in self.statuses.values():
                self._sample_memory(status)

    def _read_reports(self, now: float) -> None:
        self._paths = process_reports.list_paths(self._folder)
        for path in self._paths:
            if self._foreign.get(path, 0.0) <= now:
                self._read(path, process_reports.name_of(path))
        if len(self._foreign) > len(self._paths):
            self._foreign = {path: self._foreign[path] for path in self._paths if path in self._foreign}

    def _sample_activity(self) -> None:
        """Note the activity of all processes while any has open work. The raylet always has a little to do."""
        works = any(status.open_count for status in self.statuses.values())
        watched = [status.report for status in self.statuses.values() if works and status.report.role != RAYLET]
        self._stillness.sample([report.process.pid for report in watched], time.monotonic())

    def _has_changed(self) -> bool:
        """Return whether a report may have been added, replaced or removed, which changes the time of the folder.

        A change within the tick of the last look has the same time: a new time counts twice.
        """
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            changed = 0
        before, self._folder_times = self._folder_times, (self._folder_times[1], changed)
        return not changed or before != (changed, changed)

    def is_still(self) -> bool:
        """Return whether no process of the run on this node has computed or written anything lately."""
        return self._stillness.is_still(time.monotonic())

    def _find_helpers(self, now: float) -> None:
        """Add the processes of the run that have no telemetry: Ray's own process of this node, and actors that do not load verl."""
        if now < self._helpers_at or not self.statuses:
            return
        self._helpers_at = now + self._helpers_pause
        self._helpers_pause = min(2 * self._helpers_pause, MAX_HELPERS_SECONDS)
        known = {status.report.process.pid for status in self.statuses.values()}
        parents = {procfs.read_parent(pid) for pid in known}
        raylets = {pid for pid in parents if procfs.read_program(pid) == RAYLET}
        titles = {pid: procfs.read_command(pid) for pid in procfs.list_children(raylets) if pid not in known}
        silent = {pid for pid, title in titles.items() if title.startswith(_ACTORS) and not title.startswith(_IDLE)}
        actors = (cluster_backend.query(lambda cluster: cluster.list_actors()) or []) if silent else []
        found = [ActorProcess(pid, RAYLET, "") for pid in raylets - known]
        found += [each for each in actors if each.pid in silent]
        for pid, role, actor in found:
            process = procfs.find_process(pid)
            if process is not None and len(self.statuses) < MAX_PROCESSES:
                instance = f"{role}-{pid}"
                report = ProcessReport(
                    f"{role}-{self._node}-{pid}", process, self._node, instance, role, None, actor, 0, HELPER_INTERVAL, (), {}, (), (),
                    socket.gethostname(), is_helper=True,
                )  # fmt: skip
                self.statuses[report.process_name] = ProcessStatus(report, (0, 0, 0))

    def remove(self, process_name: str) -> None:
        """Remove a dead process and its files."""
        process_reports.remove(self._folder, process_name)
        status = self.statuses.pop(process_name, None)
        if status is not None:
            self.departed_peers = merge_all([self.departed_peers, status.report.peers])
            self.changed = True

    def _remove_child(self, report: ProcessReport) -> None:
        """Remove a dead forked child and its open spans: its parent may have killed it. What it had open is noted."""
        path = self._run_path / report.open_name
        if rows := read_rows(path, report.process_name):
            self.dead_children.append((report, rows))
        self.remove(report.process_name)
        path.unlink(missing_ok=True)

    def reset_timeouts(self) -> None:
        """Set the last heartbeat of every process to now: this monitor itself was not running."""
        for status in self.statuses.values():
            status.last_heartbeat = time.monotonic()

    def read_rows(self) -> Iterable[OpenSpanRow]:
        """Yield the open spans of all processes. An unchanged file is not read again."""
        for process_name, status in self.statuses.items():
            path = self._run_path / status.report.open_name
            try:
                stat = path.stat()
            except OSError:
                status.rows, status.rows_version = (), None
                continue
            version = stat.st_mtime_ns, stat.st_ino
            if version != status.rows_version:
                status.rows, status.rows_version = tuple(read_rows(path, process_name)), version
            yield from status.rows

    def _read(self, path: Path, process_name: str) -> None:
        try:
            stat = path.stat()
        except OSError:
            return
        version = stat.st_mtime_ns, stat.st_ino, stat.st_size
        existing = self.statuses.get(process_name)
        if existing is not None and existing.version == version:
            return
        report = process_reports.read(path)
        if report is None:
            return
        if report.node != self._node:
            self._foreign[path] = time.monotonic() + FOREIGN_SECONDS
        if report.node != self._node or (existing is None and len(self.statuses) >= MAX_PROCESSES):
            return
        self.changed = True
        if existing is not None and existing.report.process == report.process:
            existing.report, existing.version = report, version
            return
        status = ProcessStatus(report, version)
        status.heartbeat_ns = self._read_heartbeat(process_name)
        self._read_counts(status)
        self._sample_memory(status)
        age = time.time() - status.heartbeat_ns / 1e9
        if procfs.read_state(report.process) == procfs.GONE and status.heartbeat_ns / 1e9 < self._since:
            process_reports.remove(self._folder, process_name)  # it belongs to an earlier attempt
            return
        status.last_heartbeat -= min(max(age, 0.0), MAX_SILENT_SECONDS)
        self.statuses[process_name] = status

    def _heartbeat_path(self, process_name: str) -> Path:
        return self._folder / f"{process_reports.HEARTBEAT_PREFIX}{process_name}"

    def _read_heartbeat(self, process_name: str) -> int:
        try:
            return self._heartbeat_path(process_name).stat().st_mtime_ns
        except OSError:
            return 0

    def _check(self, status: ProcessStatus) -> None:
        report = status.report
        status.kernel_state = procfs.read_state(report.process)
        heartbeat_ns = self._read_heartbeat(report.process_name)
        if report.is_helper:
            _note_helper(status)
        elif heartbeat_ns != status.heartbeat_ns:
            status.heartbeat_ns, status.last_heartbeat = heartbeat_ns, time.monotonic()
            self._read_counts(status)
        if status.kernel_state == procfs.GONE:
            status.state = DIED
            status.died_at = status.died_at or time.monotonic()
            return
        silent_seconds, overdue = status.silent_seconds, MISSED_HEARTBEATS * report.interval
        if silent_seconds > overdue and procfs.waits_for_device(report.process, report.drain_thread):
            status.waited_at = time.monotonic()
        if status.kernel_state in _STOPPED and silent_seconds > max(STOPPED_SECONDS, overdue):
            status.state = STOPPED
        elif (
            silent_seconds > max(HEARTBEAT_TIMEOUT, overdue) and time.monotonic() - status.waited_at > HEARTBEAT_TIMEOUT
        ):
            status.state = FROZEN
        else:
            status.state = ALIVE

    def _read_counts(self, status: ProcessStatus) -> None:
        """Read how many spans a process has open, and whether any has ended since the last heartbeat."""
        path = self._heartbeat_path(status.report.process_name)
        try:
            open_count, ended_count = map(int, safe_files.read_bytes(path, MAX_HEARTBEAT_BYTES, follow=False).split())
        except (OSError, ValueError):
            return
        if ended_count != status.ended_count:
            status.ended_count, status.last_progress = ended_count, time.monotonic()
        status.open_count = open_count

    def _sample_memory(self, status: ProcessStatus) -> None:
        resident = procfs.read_memory(status.report.process.pid) if status.state != DIED else 0
        if resident:
            status.memory.append((int(time.time()), resident))
