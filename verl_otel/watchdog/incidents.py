# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents, and the stack requests for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from verl_otel._internal import private_files
from verl_otel.system import procfs
from verl_otel.watchdog import diagnosis, process_reports
from verl_otel.watchdog.diagnosis import Finding
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
        self.answered_at: float | None = None
        self.reported_at: float | None = None
        """Monotonic time of the last report."""
        self.muted = False
        """Whether it is not reported: the death was intended, or the same was reported lately."""
        self.waiting_span_id = ""
        """Id of the span that waited for it when it was reported."""


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
        """Request the stacks of the processes concerned: with a file if they are alive, with a signal if they are frozen."""
        for process_name in diagnosis.find_concerned_processes(snapshot, incident.finding)[:MAX_REQUESTS]:
            status = self._processes.statuses.get(process_name)
            if status is None:
                continue
            if status.state == ALIVE:
                private_files.touch(self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}")
            elif status.state != FROZEN or not procfs.send_signal(status.report.process, status.report.signal):
                continue
            incident.requested[process_name] = time.time()

    def has_answered(self, incident: Incident) -> bool:
        """Return whether every requested stack was written."""
        return all(self._has_written(incident, process_name) for process_name in incident.requested)

    def _has_written(self, incident: Incident, process_name: str) -> bool:
        status = self._processes.statuses.get(process_name)
        if status is not None and status.state == ALIVE:
            return not (self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}").exists()
        return self._stack_time(process_name) >= incident.requested[process_name] - 1.0

    def _stack_time(self, process_name: str) -> float:
        try:
            stat = (self._folder / f"{process_reports.STACKS_PREFIX}{process_name}.txt").stat()
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
        for process_name in incident.requested:
            (self._folder / f"{process_reports.REQUEST_PREFIX}{process_name}").unlink(missing_ok=True)
