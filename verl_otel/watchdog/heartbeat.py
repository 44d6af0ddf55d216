# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The heartbeat of one process, its report for the monitor, its stacks on request, and the election of the monitor.

An exporter, since it needs the same batches. All work is done on the drain thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable
from itertools import islice
from typing import Final

from verl_otel import resource
from verl_otel._internal import error_boundary, safe_files
from verl_otel._internal.call_timeout import remaining
from verl_otel._internal.ranks import find_rank
from verl_otel._internal.safe_files import process_file_name
from verl_otel.config import Config
from verl_otel.exporting.base import Exporter, MetricState
from verl_otel.model import Batch, OpenSpan, Resource, Scope
from verl_otel.recording import duration_stats
from verl_otel.recording.duration_stats import DURATIONS
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.run_state import WORDS
from verl_otel.system import procfs
from verl_otel.system.leader_lock import LeaderLock
from verl_otel.watchdog import event_loops, overdue, process_reports
from verl_otel.watchdog.monitor import Monitor
from verl_otel.watchdog.process_reports import ProcessReport, SuspectSpan
from verl_otel.watchdog.reporter import Reporter
from verl_otel.watchdog.stack_dumps import StackFile

HEARTBEAT_SECONDS: Final = 0.9
"""Seconds between two heartbeats, a little less than between two drains."""
ELECTION_SECONDS: Final = 2.0
"""Seconds between two attempts to acquire the lock of the monitor."""
IDLE_ELECTION_SECONDS: Final = 10.0
"""The same in a process in which nothing happens."""
MAX_SUSPECTS_PER_NAME: Final = 8
"""Suspects of one span name that are reported: the oldest."""
SEARCH_SECONDS: Final = 3.0
"""Seconds between two searches for suspects, at most: a span may be old when it becomes one of the oldest. What the
last search has seen is searched again when it can be one."""
GROWTH: Final = 1.05
"""How much longer the longest peer must be than in the last report for a new report to be written."""

_NEVER: Final = 1 << 63


class Heartbeat(Exporter):
    """Writes what the monitor needs to know about this process.

    Args:
        config: The settings.
        since: Unix time at which telemetry started in this process. As the monitor it takes dead processes without a later heartbeat for those
            of an earlier attempt. That time, and not that of the first record: a process may have died between the two.
    """

    name = "black_box"

    def __init__(self, config: Config, since: float) -> None:
        super().__init__()
        self._config = config
        self._folder = config.run_path / process_reports.FOLDER
        self._node = procfs.read_node_name()
        self._open: tuple[OpenSpan, ...] = ()
        self._quiet_since: dict[int, int] = {}
        self._next_suspect_ns = _NEVER
        """Unix time at which the next open span becomes a suspect, if nothing happens until then."""
        self._searched_ns = 0
        """Unix time of the last search for suspects."""
        self._progress: dict[int, int] = {}
        """When something was seen to have ended below a span, by its id, in Unix nanoseconds: since that search, or
        below a span that is not listed."""
        self._counted = self._count()
        """What the last heartbeat says."""
        self._written: ProcessReport | None = None
        self._next_heartbeat = self._next_election = 0.0
        self._monitor: Monitor | None = None
        self._loops: event_loops.LoopWatcher | None = None
        self._reporter: Reporter | None = None
        """Reports dead workers of the pools of this process."""
        self._stacks_written = False
        self._blocked = ""
        self._drain_thread = 0
        self._lock = threading.Lock()
        self._started_at = since

    # -- life cycle ---------------------------------------------------------------------------------------------------------

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - as every exporter
        """Create the files of this process. Raises `OSError` if that is not possible."""
        role, host = resource.text(attr.ROLE, "process"), resource.text(attr.HOST_NAME, "host")
        self._process_name = process_file_name(role, host)
        self._resource = resource
        safe_files.make_folder(self._folder)
        own_process = procfs.find_process(os.getpid())
        if own_process is None:
            raise OSError("this system has no /proc")
        self._process = own_process
        self._outputs = tuple(procfs.read_output_files())
        self._open_heartbeat_file()
        self._stacks = StackFile(self._folder / f"{process_reports.STACKS_PREFIX}{self._process_name}.txt")
        with error_boundary.suppress_errors("stacks"):  # without it stalls are reported without stacks
            self._stacks.open()
        self._request_path = self._folder / f"{process_reports.REQUEST_PREFIX}{self._process_name}"
        self._leader_lock = LeaderLock(self._folder, self._node)
        DURATIONS.switch(on=True)  # only a process with a report needs the statistics
        self._write_report()
        self._loops = event_loops.watch(lambda: attr.RANK in self._resource.attributes, self._report_worker)

    def _open_heartbeat_file(self) -> None:
        self._heartbeat_file = safe_files.open_private(
            self._folder / f"{process_reports.HEARTBEAT_PREFIX}{self._process_name}", os.O_RDWR | os.O_CREAT
        )
        self._identity = safe_files.identify(self._heartbeat_file)

    def _has_heartbeat_file(self) -> bool:
        """Return whether the descriptor is still that of the file: code that closes all descriptors of its process reuses the number."""
        return safe_files.identify(self._heartbeat_file) == self._identity

    def _heartbeat_descriptor(self) -> int:
        if not self._has_heartbeat_file():
            self._open_heartbeat_file()
        return self._heartbeat_file

    def update_resource(self, resource: Resource) -> None:
        """Replace the resource; the file names stay."""
        self._resource = resource
        self._written = None

    def consume(self, batch: Batch) -> None:
        """Keep the open spans, and record the end of the run."""
        self._open = batch.open_spans
        if self._loops is not None and (batch.spans or RECORDER.open_spans):
            self._loops.note_activity()
        for point in batch.points:
            if point.instrument.name == metric_names.RUN_STATE:
                state = WORDS.get(point.value)  # type: ignore[call-overload]  # a number, as the keys are
                self._mark_run_state(state if state in process_reports.MARKS else process_reports.FINISHED)

    def _mark_run_state(self, state: str) -> None:
        """Record the state of the run, and then a heartbeat: this process did not die before the end of the run."""
        process_reports.mark_run(self._config, state)
        with contextlib.suppress(OSError):
            os.utime(self._heartbeat_descriptor())

    def poll(self) -> None:
        """Write a heartbeat, answer a stack request, and become the monitor if there is none."""
        now = time.monotonic()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_SECONDS
        with self._lock:
            self._write_heartbeat(now)
        self.cpu_seconds = sum(part.cpu_seconds for part in (self._monitor, self._loops) if part is not None)

    def rest(self) -> None:
        """Renew the heartbeat, answer a stack request, and list a span that has become old meanwhile.

        The last drain may have come right after a heartbeat, and have ended what that one counts as open.
        """
        now = time.monotonic()
        if self._count() != self._counted:
            self._next_heartbeat = 0.0
            self.poll()
            return
        if now < self._next_heartbeat:
            return
        with self._lock:
            is_asked = True  # also on an error: `poll` reports it
            with contextlib.suppress(OSError):
                os.utime(self._heartbeat_descriptor())
                is_asked = os.path.exists(self._request_path)  # noqa: PTH110 - every second, at a tenth of the cost
        is_due = now >= self._next_election + IDLE_ELECTION_SECONDS - ELECTION_SECONDS
        if is_asked or is_due or time.time_ns() >= self._next_suspect_ns:
            self.poll()
        else:
            self._next_heartbeat = now + HEARTBEAT_SECONDS

    @staticmethod
    def _count() -> tuple[int, int]:
        """Return the number of open spans, and of those that have ended."""
        return len(RECORDER.open_spans), RECORDER.ended_count

    def _write_heartbeat(self, now: float) -> None:
        try:
            self._counted = self._count()
            os.pwrite(self._heartbeat_descriptor(), b"%8d %16d\n" % self._counted, 0)
            self._answer_request()
            self._drain_thread = threading.get_native_id()
            self._write_report()
            if now >= self._next_election:
                self._next_election = now + ELECTION_SECONDS
                self._acquire_leadership()
        except OSError as error:
            self.log_once("stalls", f"cannot write {self._folder}: {error.strerror}")

    def flush(self, deadline: float) -> None:
        """Do nothing: no data is queued."""

    def close(self, deadline: float) -> None:
        """Remove the report, which deregisters this process. If the drain thread is still writing, its files stay open."""
        DURATIONS.switch(on=False)
        self._next_heartbeat = math.inf
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.stop(deadline)
        if self._loops is not None:
            self._loops.stop(remaining(deadline))
        process_reports.remove(self._folder, self._process_name)
        if self._lock.acquire(timeout=remaining(deadline)):
            self._leader_lock.release()
            self._stacks.close()
            if self._has_heartbeat_file():
                os.close(self._heartbeat_file)

    def after_fork(self) -> None:
        """Release files, lock and signal handler in a forked child. The monitor thread exists in the parent only."""
        self._monitor = self._loops = None
        self._leader_lock.release()
        self._stacks.after_fork()
        if self._has_heartbeat_file():
            os.close(self._heartbeat_file)

    def _report_worker(self, pid: int, end: str) -> None:
        self._reporter = self._reporter or Reporter(self._config, self._node)
        self._reporter.report_worker(self._resource.text(attr.SERVICE_INSTANCE).rpartition("/")[2], pid, end)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _acquire_leadership(self) -> None:
        if self._monitor is not None and not self._monitor.is_alive():
            self._monitor = None
            self._leader_lock.release()
        if self._monitor is None and self._can_lead():
            monitor = Monitor(self._config, self._folder, self._node, self._started_at, self._leader_lock)
            try:
                monitor.start()
            except RuntimeError:
                # no more threads, or a program ends in its first second: CPython 3.12.0 to 3.12.2 start none then
                self._leader_lock.release()
            else:
                self._monitor = monitor

    def _can_lead(self) -> bool:
        try:
            return self._leader_lock.acquire()
        except OSError as error:
            error_boundary.warn_once(
                "watch",
                "verl-otel: stalls and crashes will not be seen: no lock in %s: %s",
                self._folder,
                error.strerror,
            )
            return False

    def _answer_request(self) -> None:
        """Write the stacks if the monitor has requested them; the report is written after them."""
        if self._request_path.exists():
            with error_boundary.suppress_errors("stacks"):
                self._stacks.write()
                self._blocked = self._loops.find_blocked() if self._loops is not None else ""
            self._stacks_written = True

    def _write_report(self) -> None:
        """Replace the report if it has changed."""
        with error_boundary.suppress_errors("watchdog"):
            now, peers, written = time.time_ns(), DURATIONS.by_name(), self._written
            room = duration_stats.MAX_ACTIVE - len(self._progress)
            self._progress.update(dict.fromkeys(islice(DURATIONS.take_active(), room), now))
            suspects: tuple[SuspectSpan, ...] = ()
            if (
                (written is not None and written.suspects)
                or now >= self._next_suspect_ns
                or abs(now - self._searched_ns) >= SEARCH_SECONDS * 1e9  # the clock may have been set back
            ):
                suspects = tuple(self._find_suspects(peers))
            if (
                written is None
                or self._stacks_written
                or suspects != written.suspects
                or self._drain_thread != written.drain_thread
                or _have_grown(written.peers, peers)
            ):
                self._written = self._describe(peers, suspects)
                process_reports.write(self._folder, self._written)
                if self._stacks_written:
                    self._stacks_written = False
                    self._request_path.unlink(missing_ok=True)  # after the answer was written

    def _describe(
        self, peers: dict[str, duration_stats.DurationStats], suspects: tuple[SuspectSpan, ...]
    ) -> ProcessReport:
        resource_ = self._resource
        rank = resource_.attributes.get(attr.RANK)
        return ProcessReport(
            self._process_name,
            self._process,
            self._node,
            resource_.text(attr.SERVICE_INSTANCE).rpartition("/")[2],
            resource_.text(attr.ROLE, "process"),
            rank if isinstance(rank, int) else find_rank(os.environ),
            resource_.text(attr.RAY_ACTOR),
            self._stacks.signal,
            max(HEARTBEAT_SECONDS, self._config.drain_interval),
            self._outputs,
            peers,
            suspects,
            tuple(f"{call.parent_id:016x}" for call in DURATIONS.served()),
            resource_.text(attr.HOST_NAME),
            self._blocked,
            self._drain_thread,
            resource.is_forked(),
        )

    def _find_suspects(self, peers: dict[str, duration_stats.DurationStats]) -> Iterable[SuspectSpan]:
        """Yield the open spans that are old, have no recent activity, and have no open children in this process."""
        now = self._searched_ns = time.time_ns()
        parents = {open_span.span.span_id: open_span.span.parent_id for open_span in self._open}
        self._track_progress(parents)
        with_children = set(parents.values())
        counts: dict[str, int] = {}
        self._next_suspect_ns = _NEVER
        for open_span in self._open:
            span = open_span.span
            if span.span_id in with_children:
                continue
            quiet_ns = max(self._quiet_since.get(span.span_id, 0), span.start_ns)
            age = clock() - open_span.start
            missing = max(overdue.QUIET - (now - quiet_ns) / 1e9, overdue.shortest_timeout(peers.get(span.name)) - age)
            if missing > 0:
                self._next_suspect_ns = min(self._next_suspect_ns, now + round(missing * 1e9))
                continue
            count = counts[span.name] = counts.get(span.name, 0) + 1
            if count <= MAX_SUSPECTS_PER_NAME:
                yield SuspectSpan(
                    f"{span.trace_id:032x}",
                    f"{span.span_id:016x}",
                    f"{span.parent_id:016x}",
                    span.name,
                    span.start_ns,
                    quiet_ns,
                )

    def _track_progress(self, parents: dict[int, int]) -> None:
        """Update the time at which a descendant of each open span has ended last.

        Args:
            parents: The parent's id of each open span, by its own.
        """
        progress = self._progress
        oldest = self._searched_ns - round(overdue.QUIET * 1e9)
        # What is not in the table yet may enter it, and must not look as if nothing had ended below it.
        self._progress = {span: ended for span, ended in progress.items() if span not in parents and ended > oldest}
        quiet_since = {span: self._quiet_since[span] for span in parents if span in self._quiet_since}
        for ended_parent, ended in progress.items():
            current = ended_parent
            while current in parents and quiet_since.get(current, 0) < ended:
                quiet_since[current] = ended
                current = parents[current]
        self._quiet_since = quiet_since


def _have_grown(
    written: dict[str, duration_stats.DurationStats], peers: dict[str, duration_stats.DurationStats]
) -> bool:
    """Return whether the report is out of date: a new span name, a longer peer, or twice as many peers."""
    return any(
        (before := written.get(name)) is None or now.longest > GROWTH * before.longest or now.ended >= 2 * before.ended
        for name, now in peers.items()
    )
