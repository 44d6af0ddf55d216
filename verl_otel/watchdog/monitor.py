# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The monitor of a node: checks each second for stalls and crashes, requests stacks (also by py-spy), and reports each incident once."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from verl_otel._internal import error_boundary, safe_files
from verl_otel._internal.call_timeout import remaining
from verl_otel._internal.process_state import SignalSafeEvent
from verl_otel.config import Config
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.system.leader_lock import LeaderLock
from verl_otel.watchdog import diagnosis, process_reports, stack_dumps
from verl_otel.watchdog.diagnosis import OVERDUE, Finding
from verl_otel.watchdog.overdue import (
    ALIVE,
    DIED,
    FROZEN,
    QUIET,
    STOPPED,
    HungWork,
    Snapshot,
    could_be_overdue,
    heartbeat_timeout,
    is_users_own,
    merge_all,
)
from verl_otel.watchdog.process_reports import ProcessReport
from verl_otel.watchdog.process_table import ProcessStatus, ProcessTable
from verl_otel.watchdog.reporter import Reporter

# -- stacks of a process that cannot write its own, by the program ``py-spy``, where it is installed --

PROGRAM: Final = "py-spy"


def start_py_spy(pid: int, path: Path) -> subprocess.Popen[bytes] | None:
    """Begin to write the stacks of a process into a file, without stopping it further.

    Args:
        pid: The process.
        path: The file; it is replaced.

    Returns:
        The program, to be asked whether it has ended; None where it is not installed or cannot be started.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    handle = -1
    try:
        handle = safe_files.open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return subprocess.Popen(  # noqa: S603 - no shell, and a number
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    finally:
        if handle >= 0:
            os.close(handle)


# -- incidents, and the stack requests for them --

MAX_REQUESTS: Final = 12
"""Largest number of processes whose stacks are requested: the culprit, the waiting processes, the ranks of a call."""


class Incident:
    """A finding from its detection until it is resolved."""

    def __init__(self, finding: Finding, now: float) -> None:
        self.finding = finding
        self.first_seen = now
        self.requested: dict[str, float] = {}
        """Names of the processes whose stacks were requested, and the Unix time of the request."""
        self.unsignalled: set[str] = set()
        """Names of frozen processes that no signal was sent to yet."""
        self.programs: list[subprocess.Popen[bytes]] = []
        """Programs that write stacks of processes that cannot do it themselves."""
        self.answered_at: float | None = None
        self.reported_at: float | None = None
        """Monotonic time of the last report."""
        self.muted = False
        """Whether it is not reported: the death was intended, or the same was reported lately."""
        self.waiting_span_id = ""
        """Id of the span that waited for it when it was reported."""


def _signal(report: ProcessReport) -> bool:
    return stack_dumps.request_by_signal(report.process, report.drain_thread, report.signal)


class StackRequests:
    """Requests the stacks of processes of this node.

    Args:
        folder: The folder of the requests and of the stacks.
        process_table: The processes of this node.
    """

    def __init__(self, folder: Path, process_table: ProcessTable) -> None:
        self._folder = folder
        self._processes = process_table

    def request(self, snapshot: Snapshot, incident: Incident) -> None:
        """Request the stacks of the processes concerned: with a file if alive, with signals if frozen in C code, by py-spy otherwise."""
        for process_name in diagnosis.find_concerned_processes(snapshot, incident.finding)[:MAX_REQUESTS]:
            status = self._processes.statuses.get(process_name)
            if status is None:
                continue
            if status.state == ALIVE:
                safe_files.touch(self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}")
            elif status.state != FROZEN or not _signal(status.report):
                program = start_py_spy(status.report.process.pid, self._stack_path(process_name))
                if program is not None:
                    incident.programs.append(program)
                elif status.state == FROZEN:
                    # It may only look frozen: the time of an answer shows that.
                    incident.unsignalled.add(process_name)
                else:
                    continue
            incident.requested[process_name] = time.time()

    def repeat(self, incident: Incident) -> None:
        """Try again to signal frozen processes: on a busy machine one look at their threads may prove nothing."""
        for process_name in sorted(incident.unsignalled):
            status = self._processes.statuses.get(process_name)
            if status is None or status.state != FROZEN or _signal(status.report):
                incident.unsignalled.discard(process_name)

    def has_answered(self, incident: Incident) -> bool:
        """Return whether every requested stack was written."""
        if any(program.poll() is None for program in incident.programs):
            return False
        return all(self._has_written(incident, process_name) for process_name in incident.requested)

    def _has_written(self, incident: Incident, process_name: str) -> bool:
        status = self._processes.statuses.get(process_name)
        if status is not None and status.state == ALIVE:
            return not (self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}").exists()
        return self._stack_time(process_name) >= incident.requested[process_name] - 1.0

    def _stack_path(self, process_name: str) -> Path:
        return self._folder / f"{process_reports.STACKS_PREFIX}{process_name}.txt"

    def _stack_time(self, process_name: str) -> float:
        try:
            stat = self._stack_path(process_name).stat()
        except OSError:
            return 0.0
        return stat.st_mtime if stat.st_size else 0.0

    def find_stacks(self, incident: Incident) -> dict[str, str]:
        """Return the paths of the stacks, relative to the run's folder, by process id."""
        paths = {}
        for process_name, requested_at in incident.requested.items():
            status = self._processes.statuses.get(process_name)
            if status is not None and self._stack_time(process_name) >= requested_at - 1.0:
                paths[str(status.report.process.pid)] = (
                    f"{process_reports.FOLDER}/{process_reports.STACKS_PREFIX}{process_name}.txt"
                )
        return paths

    def clear(self, incident: Incident) -> None:
        """Withdraw the requests that were not answered."""
        while incident.programs:
            program = incident.programs.pop()
            if program.poll() is None:
                program.kill()
                program.wait()
        for process_name in incident.requested:
            (self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}").unlink(missing_ok=True)


# -- the monitor --

POLL_SECONDS: Final = 1.0
LATE_SECONDS: Final = 6.0
"""Seconds between two checks after which this process itself was stopped or frozen, and has missed heartbeats."""
RECHECK_SECONDS: Final = 1.0
"""Seconds between two snapshots while the same processes are suspicious."""
REPORTED_RECHECK_SECONDS: Final = 5.0
"""The same while every finding has been reported."""
CONFIRM_SECONDS: Final = 2.0
"""Seconds between the detection of a death and its report: at the end of a run all processes are killed, this one a little later."""
STACK_WAIT_SECONDS: Final = 3.0
"""Seconds to wait for the requested stacks."""
REPEAT_SECONDS: Final = 600.0
"""Seconds after which an incident that still lasts is reported again."""
LINGER_SECONDS: Final = 5.0
"""Seconds after the failure of a run in which earlier deaths are still searched for: a process with a GPU takes long to exit."""
KEEP_DEAD_SECONDS: Final = 60.0
"""Seconds until a dead process without open work is removed."""
MAX_INCIDENTS: Final = 32


class Monitor(threading.Thread):
    """Monitors the processes of a run on this node as long as this process holds the lock.

    Args:
        config: The settings.
        folder: The folder of the reports and heartbeats.
        node: This node.
        since: Unix time; processes with no heartbeat after it belong to an earlier attempt.
        leader_lock: The lock, held.
    """

    def __init__(self, config: Config, folder: Path, node: str, since: float, leader_lock: LeaderLock) -> None:
        super().__init__(name="verl-otel-watch", daemon=True)
        self.cpu_seconds = 0.0
        self._folder = folder
        self._default_timeout = config.stall_seconds
        self._leader_lock = leader_lock
        self._stop_requested = SignalSafeEvent()
        self._processes = ProcessTable(config.run_path, node, since)
        self._stack_requests = StackRequests(folder, self._processes)
        self._reporter = Reporter(config, node)
        self._peers: dict[str, DurationStats] = {}
        self._hung = HungWork()
        self._incidents: dict[tuple[str, str, str], Incident] = {}
        self._reported_before: dict[tuple[str, str, str], None] = {}
        self._signature: object = None
        self._checked_at = 0.0
        self._last_reported: dict[tuple[str, str, str], float] = {}
        self._saw_running = False
        self._end_seen: float | None = None
        """Monotonic time at which the end of the run was seen."""

    def run(self) -> None:
        """Check once a second until stopped or replaced, and once more if this process exits because the run has failed."""
        last = 0.0
        while not self._stop_requested.wait(POLL_SECONDS):
            now = time.monotonic()
            with error_boundary.suppress_errors("watchdog"):
                self._leader_lock.renew()
                if not self._leader_lock.is_held or self._leader_lock.should_step_down():
                    return  # the session stopped and could not wait for this check
                if not last or now - last > LATE_SECONDS:
                    self._processes.reset_timeouts() if last else None
                    self._reported_before = dict.fromkeys(self._reporter.read_reported())
                    self._hung.restore(self._reporter.read_hung())
                self._check()
            last = time.monotonic()
            self.cpu_seconds = time.thread_time()
        with error_boundary.suppress_errors("watchdog"):
            if process_reports.read_run_end(self._folder) is not None:
                self._check()

    def stop(self, deadline: float) -> None:
        """End, until ``deadline`` (`time.monotonic`)."""
        self._stop_requested.set()
        self.join(min(1.0, remaining(deadline)))

    # -- one check ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._processes.refresh()
        for report, rows in self._processes.dead_children:
            self._reporter.report_child(report, rows)
        self._processes.dead_children.clear()
        statuses = self._processes.statuses
        if self._processes.changed:
            self._processes.changed = False
            peers = [self._processes.departed_peers, *(status.report.peers for status in statuses.values())]
            self._peers = self._hung.leave_out(merge_all(peers))
        run_end = process_reports.read_run_end(self._folder)
        if run_end is not None:
            self._handle_run_end(run_end)
            return
        self._saw_running, self._end_seen = True, None
        self._expire_dead()
        signature = [
            (process_name, status.state) for process_name, status in statuses.items() if self._is_suspicious(status)
        ]
        if not signature and not self._incidents:
            return
        now = time.monotonic()
        waiting = any(incident.reported_at is None for incident in self._incidents.values())
        pause = 0.0 if waiting else REPORTED_RECHECK_SECONDS if self._incidents else RECHECK_SECONDS
        if signature == self._signature and now - self._checked_at < pause:
            return
        self._signature, self._checked_at = signature, now
        snapshot = self._take_snapshot(now)
        self._update_incidents(snapshot, self._diagnose(snapshot))

    def _take_snapshot(self, now: float) -> Snapshot:
        statuses = {
            process_name: status
            for process_name, status in self._processes.statuses.items()
            if not self._is_past(status)
        }
        alive = {
            process_name: now - status.last_progress
            for process_name, status in statuses.items()
            if status.state == ALIVE
        }
        return Snapshot(
            time.time_ns(),
            {
                process_name: status.report._replace(suspects=()) if status.is_report_stale else status.report
                for process_name, status in statuses.items()
            },
            {process_name: status.state for process_name, status in statuses.items()},
            self._processes.read_rows(),
            self._peers,
            self._default_timeout,
            {process_name for process_name, moved in alive.items() if moved < QUIET},
            {
                process_name
                for process_name, status in statuses.items()
                if now - status.last_progress < self._default_timeout
            },
            self._processes.is_still,
        )

    def _is_past(self, status: ProcessStatus) -> bool:
        """Return whether a process without telemetry has ended and that is no crash, as far as is known: nothing waits for it."""
        incident = self._incidents.get(("crash", status.report.process_name, ""))
        is_crash = incident is not None and incident.reported_at is not None and not incident.muted
        return status.report.is_helper and status.state == DIED and not is_crash

    def _diagnose(self, snapshot: Snapshot) -> list[Finding]:
        return [*diagnosis.find(snapshot), *self._find_without_open_spans(snapshot)]

    def _is_suspicious(self, status: ProcessStatus) -> bool:
        """Return whether the state of a process justifies a snapshot, which reads the open spans of all processes."""
        if status.state != ALIVE:
            return True
        now = time.time_ns()
        busy = time.monotonic() - status.last_progress < self._default_timeout
        return not status.is_report_stale and any(
            could_be_overdue(suspect.name, (now - suspect.start_ns) / 1e9, self._peers, self._default_timeout)
            for suspect in status.report.suspects
            if int(suspect.parent_id, 16) or not busy or not is_users_own(suspect.name, self._peers)
        )

    # -- deaths -----------------------------------------------------------------------------------------------------

    def _handle_run_end(self, run_end: process_reports.RunEnd) -> None:
        """Stop expecting heartbeats. If the run has failed, report first the processes that died before: usually the cause."""
        now = time.monotonic()
        first = self._end_seen is None
        if self._end_seen is None:
            self._end_seen = now
            self._processes.refresh()  # a process may have died between the refresh and the reading of the run's end
        if run_end.state != process_reports.FAILED or now - self._end_seen > LINGER_SECONDS:
            self._incidents.clear()
            return
        snapshot = self._take_snapshot(now)
        for finding in self._diagnose(snapshot):
            status = self._processes.statuses.get(finding.process_name)
            if finding.kind != "crash" or status is None:
                continue
            incident = self._incidents.get(finding.key)
            if incident is None:
                if finding.key in self._reported_before or status.heartbeat_ns >= run_end.time_ns:
                    continue  # it was killed because of the failure
                if not (first and self._saw_running) and self._reporter.explain(status) is None:
                    continue  # this monitor has not seen the run alive within the last second, and the cluster does not know, either
                incident = self._incidents[finding.key] = Incident(finding, now)
            if incident.reported_at is None and not self._mute_if_unwanted(incident, status, now):
                self._report(snapshot, incident, status, now)

    def _expire_dead(self) -> None:
        """Remove dead processes for which no open work was found for `KEEP_DEAD_SECONDS`."""
        now = time.monotonic()
        for process_name, status in list(self._processes.statuses.items()):
            if status.state == DIED and status.died_at is not None and now - status.died_at > KEEP_DEAD_SECONDS:
                self._processes.remove(process_name)

    def _drop_dead(self, snapshot: Snapshot, incident: Incident) -> None:
        """Remove a dead process that was reported once the span that waited for it has ended: a later stall has another cause."""
        status = self._status_of(incident)
        if status is None or incident.finding.kind != "crash" or incident.reported_at is None:
            return
        if incident.waiting_span_id in snapshot.rows:
            status.died_at = time.monotonic()
        else:
            self._processes.remove(incident.finding.process_name)

    # -- findings -----------------------------------------------------------------------------------------------------

    def _find_without_open_spans(self, snapshot: Snapshot) -> list[Finding]:
        """Return processes that died or froze without an open span in their file: all their open spans were younger than a second.

        A death without any open span is a crash if the cluster says that it was not intended: the next task of the process is lost.
        """
        findings = []
        busy = {row.process_name for row in snapshot.rows.values()}
        for process_name, status in self._processes.statuses.items():
            if status.state == ALIVE or process_name in busy:
                continue
            if status.state != DIED:
                limit = 0.0 if status.state == STOPPED else heartbeat_timeout(_longest(status), self._default_timeout)
                is_awaited = status.open_count or diagnosis.may_be_awaited(snapshot, status.report)
                is_incident: object = is_awaited and status.silent_seconds > limit
            else:
                is_incident = status.open_count or self._reporter.explain(status) is not None
            if is_incident:
                findings.append(Finding(status.state, process_name, None, diagnosis.find_trainers(snapshot)))
        return findings

    def _update_incidents(self, snapshot: Snapshot, findings: list[Finding]) -> None:
        now = time.monotonic()
        for finding in findings:
            incident = self._incidents.get(finding.key)
            if incident is None:
                if len(self._incidents) >= MAX_INCIDENTS:
                    continue
                incident = self._incidents[finding.key] = Incident(finding, now)
                if finding.key in self._reported_before:
                    incident.reported_at = now  # by the former monitor
                    incident.waiting_span_id = finding.waiting_span_id
                else:
                    self._stack_requests.request(snapshot, incident)
            elif incident.reported_at is None:
                self._stack_requests.repeat(incident)
            incident.finding = finding
            self._report_if_due(snapshot, incident, now)
            self._drop_dead(snapshot, incident)
        present = {finding.key for finding in findings}
        troubled = {finding.process_name for finding in findings}
        for key in [key for key in self._incidents if key not in present]:
            if key[0] == "stall" and (status := self._status_of(self._incidents[key])) is not None and status.is_late:
                continue  # it may continue, or turn out to be frozen
            incident = self._incidents.pop(key)
            self._stack_requests.clear(incident)
            if incident.reported_at is not None:
                self._reported_before.pop(key, None)
                self._close(incident, now, troubled)
        self._reporter.publish()

    def _close(self, incident: Incident, now: float, troubled: set[str]) -> None:
        """Report that a process continues, if it does: it may have died or frozen meanwhile."""
        status = self._status_of(incident)
        if incident.muted:
            return
        finding = incident.finding
        goes_on = (
            finding.kind == "stall"
            and status is not None
            and status.state == ALIVE
            and finding.process_name not in troubled
        )
        (self._reporter.resolve if goes_on else self._reporter.drop)(finding, now - incident.first_seen)

    def _report_if_due(self, snapshot: Snapshot, incident: Incident, now: float) -> None:
        if incident.reported_at is not None:
            if now - incident.reported_at >= REPEAT_SECONDS:
                incident.reported_at = self._last_reported[incident.finding.key] = now
                self._reporter.repeat(snapshot, incident.finding, self._status_of(incident))
            return
        if not self._is_confirmed(incident, now):
            return
        status = self._status_of(incident)
        if status is not None and status.report.blocked and self._is_reported(status):
            incident.reported_at = now  # everything in the process waits for its blocked event loop
            incident.muted = True
            return
        if self._mute_if_unwanted(incident, status, now):
            return
        if incident.finding.reason == OVERDUE and any(status.is_late for status in self._processes.statuses.values()):
            return  # it may wait for a process that is about to be found frozen
        if self._reporter.awaits_cluster(incident.finding, snapshot, now - incident.first_seen):
            return
        self._report(snapshot, incident, status, now)

    def _mute_if_unwanted(self, incident: Incident, status: ProcessStatus | None, now: float) -> bool:
        """Mute an incident that must not be reported: the death was intended, or the same was reported lately."""
        finding = incident.finding
        last = self._last_reported.get(finding.key)
        if finding.kind == "crash" and status is not None and self._reporter.is_expected(status):
            incident.reported_at, incident.muted = now, True
        elif last is not None and now - last < REPEAT_SECONDS:
            incident.reported_at, incident.muted = last, True
        return incident.reported_at is not None

    def _report(self, snapshot: Snapshot, incident: Incident, status: ProcessStatus | None, now: float) -> None:
        finding = incident.finding
        incident.reported_at = now
        incident.waiting_span_id = finding.waiting_span_id
        self._last_reported = {
            key: reported_at for key, reported_at in self._last_reported.items() if now - reported_at < REPEAT_SECONDS
        }
        self._last_reported[finding.key] = now
        for row in (finding.row, *finding.waiting):
            if row is not None:
                self._hung.add(row.name, max(snapshot.age(row), snapshot.longest(row) or 0.0))
        if finding.reason in (STOPPED, FROZEN) and status is not None:
            # What it was doing takes as long as it stands, whether or not its file has that.
            own = status.report.peers.keys() & snapshot.peers.keys()
            self._hung.restore({name: snapshot.peers[name].longest for name in own})
        self._reporter.report(snapshot, finding, status, self._stack_requests.find_stacks(incident))
        self._stack_requests.clear(incident)

    def _is_reported(self, status: ProcessStatus) -> bool:
        """Return whether an incident of this process was reported."""
        process_name = status.report.process_name
        return any(other.reported_at is not None for key, other in self._incidents.items() if key[1] == process_name)

    def _status_of(self, incident: Incident) -> ProcessStatus | None:
        return self._processes.statuses.get(incident.finding.process_name)

    def _is_confirmed(self, incident: Incident, now: float) -> bool:
        """Return whether the stacks are written, and a death has turned out not to be part of the end of the run."""
        if incident.answered_at is None and self._stack_requests.has_answered(incident):
            incident.answered_at = now
        if incident.finding.kind == "crash" and now - incident.first_seen < CONFIRM_SECONDS:
            return False
        return incident.answered_at is not None or now - incident.first_seen >= STACK_WAIT_SECONDS


def _longest(status: ProcessStatus) -> DurationStats | None:
    """Return the longest peers of a process: which work it was doing is not known."""
    return max(status.report.peers.values(), key=lambda peers: peers.longest, default=None)
