# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""With a damaged file of one process the monitor still sees the other processes."""

import json
import os
import time

import pytest

from tests.watchdog.snapshots import make_report
from verl_otel.system import procfs
from verl_otel.watchdog import diagnosis, event_file, process_reports, reporter
from verl_otel.watchdog.overdue import Snapshot
from verl_otel.watchdog.process_table import ProcessTable

DEEP_JSON = b"[" * 200_000
NOW = 1_800_000_000_000_000_000
SPAN = {
    "traceId": f"{1:032x}", "spanId": f"{2:016x}", "parentSpanId": "", "name": "verl.step", "startTimeUnixNano": str(NOW),
    "attributes": [{"key": "verl.step.number", "value": {"intValue": "3"}}], "links": [{"traceId": f"{5:032x}"}],
}  # fmt: skip
OPEN = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
EVENT = {"kind": "stall", "time_ns": NOW, "text": "x", "detail": {"place": "here", "key": ["stall", "a", "b"]}}


@pytest.fixture
def folder(tmp_path):
    """The folder of the watchdog in a run, with one healthy process."""
    path = tmp_path / process_reports.FOLDER
    path.mkdir()
    process_reports.write(path, make_report("good")._replace(process=procfs.find_process(os.getpid())))
    (path / f"{process_reports.HEARTBEAT_PREFIX}good").write_bytes(b"       3                7\n")
    (tmp_path / "open-good.jsonl").write_text(json.dumps(OPEN))
    return path


def read_everything(folder):
    """Read every file as the monitor does; return the names of the spans of the good process."""
    process_table = ProcessTable(folder.parent, "here", time.time() - 1)
    process_table.refresh()
    rows = list(process_table.read_rows())
    states = {process_name: status.state for process_name, status in process_table.statuses.items()}
    reports = {process_name: status.report for process_name, status in process_table.statuses.items()}
    snapshot = Snapshot(NOW + 10**15, reports, states, rows, {}, 1.0)
    for finding in diagnosis.find(snapshot):
        reporter.format_incident(snapshot, finding, process_table.statuses.get(finding.process_name), "")
        json.dumps(reporter.describe_culprit(snapshot, finding, None), default=str)
    for row in rows:
        snapshot.is_overdue(row)
        list(snapshot.ancestors(row))
        reporter.describe_span(snapshot, row)
    process_reports.read_run_end(folder)
    event_file.read_reported(folder.parent, "here")
    return [row.name for row in rows if row.process_name == "good"]


def list_files(folder, process_name="bad"):
    """The files of a process, and those of the run."""
    return [
        folder / f"{process_reports.REPORT_PREFIX}{process_name}.json",
        folder / f"{process_reports.HEARTBEAT_PREFIX}{process_name}",
        folder.parent / f"open-{process_name}.jsonl",
        folder.parent / event_file.NAME,
        folder / "ended",
    ]


def write_bad_process(folder):
    """Have a second process that is well, so far."""
    process_reports.write(folder, make_report("bad")._replace(process=procfs.find_process(os.getpid())))
    (folder / f"{process_reports.HEARTBEAT_PREFIX}bad").write_bytes(b"       3                7\n")
    (folder.parent / "open-bad.jsonl").write_text(json.dumps(OPEN))
    (folder.parent / event_file.NAME).write_text(json.dumps(EVENT) + "\n")


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("kind", ["deep", "fifo", "nul", "huge", "folder", "link", "gigabyte"])
def test_a_damaged_file_hides_no_other_process(folder, number, kind):
    """Deep JSON, a FIFO, a folder, a gigabyte or a link in the place of one file: the good process is seen."""
    write_bad_process(folder)
    path = list_files(folder)[number]
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "gigabyte":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    else:
        path.write_bytes({"deep": DEEP_JSON, "nul": b"\x00" * 1000, "huge": b"9" * 10_000}[kind])
    assert read_everything(folder) == ["verl.step"]
