# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents, and the stack requests for them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

from verl_otel._internal import private_files
from verl_otel.watchdog import diagnosis, process_reports, py_spy, stack_signals
from verl_otel.watchdog.diagnosis import Finding
from verl_otel.watchdog.process_reports import ProcessReport
from verl_otel.watchdog.process_table import ProcessTable
from verl_otel.watchdog.snapshot import ALIVE, FROZEN, Snapshot

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
    return stack_signals.request(report.process, report.drain_thread, report.signal)


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
                private_files.touch(self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}")
            elif status.state != FROZEN or not _signal(status.report):
                program = py_spy.start(status.report.process.pid, self._stack_path(process_name))
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
            py_spy.end(incident.programs.pop())
        for process_name in incident.requested:
            (self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}").unlink(missing_ok=True)
