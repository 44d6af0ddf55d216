# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The files in which each process of a run describes itself for the monitor of its node.

``process-<name>.json`` is the report: identity, durations of its work, and suspect spans. It is replaced when it changes, which is
seldom in a healthy run. ``beat-<name>`` is the heartbeat: written every second, every two while nothing happens, with the
numbers of open and of ended spans. ``ended`` has the end of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel._internal.safe_files import parse_int64
from verl_otel.config import Config
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.semconv.run_state import RunState
from verl_otel.system.procfs import Process

FOLDER: Final = "black-box"
"""Folder of these files in the run's folder."""
REPORT_PREFIX, HEARTBEAT_PREFIX, STACKS_PREFIX, REQUEST_PREFIX = "process-", "beat-", "stacks-", "ask-"
MAX_BYTES: Final = 4 << 20
"""Largest report that is read."""
MAX_SECONDS: Final = 1e12
MAX_PID: Final = (1 << 31) - 1


class SuspectSpan(NamedTuple):
    """An open span that is old compared with its peers in the same process, without an open child there."""

    trace_id: str
    span_id: str
    """Ids in hexadecimal, as they are in the files."""
    parent_id: str
    name: str
    start_ns: int
    quiet_ns: int
    """Unix time in nanoseconds at which a descendant has ended last."""


class ProcessReport(NamedTuple):
    """The report of one process of the run."""

    process_name: str
    """``<role>-<host>-<id>-<pid>``, as in the names of its files."""
    process: Process
    node: str
    """The node, or the container with a pid namespace of its own."""
    instance: str
    role: str
    rank: int | None
    actor: str
    """Ray's id of the actor in the process; empty: none."""
    signal: int
    interval: float
    """Seconds between two heartbeats."""
    outputs: tuple[str, ...]
    peers: dict[str, DurationStats]
    suspects: tuple[SuspectSpan, ...]
    served: tuple[str, ...]
    """Ids of the calls that it has answered lately; updated only with a stack request."""
    host: str = ""
    blocked: str = ""
    """Where its event loop is blocked; updated only with a stack request."""
    drain_thread: int = 0
    """Kernel id of the thread that writes the heartbeats; 0: it has not started."""
    is_child: bool = False
    """Whether it is a forked child, which its parent may kill at any time."""
    is_helper: bool = False
    """Whether it has no telemetry: the monitor has made this report, and it has no file."""

    @property
    def open_name(self) -> str:
        """Name of the file with its open spans."""
        return f"open-{self.process_name}.jsonl"


def write(folder: Path, report: ProcessReport) -> None:
    """Replace the report of a process. Raises `OSError`."""
    values = report._asdict()  # tuples become lists
    del values["is_helper"]
    values["peers"] = {
        name: [durations.ended, *(round(seconds, 4) for seconds in durations.top)]
        for name, durations in report.peers.items()
    }
    text = json.dumps(values, separators=(",", ":"))
    safe_files.write_atomically(folder / f"{REPORT_PREFIX}{report.process_name}.json", text)


def read(path: Path) -> ProcessReport | None:
    """Return the report of a process; None if there is none or the file is damaged."""
    try:
        values: dict[str, Any] = safe_files.read_json(path, MAX_BYTES, follow=False)
        pid, start = map(parse_int64, values["process"])
        return ProcessReport(
            name_of(path), Process(min(pid, MAX_PID), start), str(values["node"]), str(values["instance"]), str(values["role"]),
            None if values["rank"] is None else parse_int64(values["rank"]), str(values["actor"]), parse_int64(values["signal"]),
            _seconds(values["interval"]), tuple(map(str, values["outputs"])),
            {str(name): DurationStats(parse_int64(numbers[0]), tuple(map(_seconds, numbers[1:]))) for name, numbers in values["peers"].items()},
            tuple(map(_suspect, values["suspects"])), tuple(map(str, values["served"])), str(values["host"]),
            str(values["blocked"]), parse_int64(values["drain_thread"]), bool(values["is_child"]),
        )  # fmt: skip
    except safe_files.READ_ERRORS:
        return None


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_SECONDS:
        raise safe_files.DamagedError("not a number of seconds")
    return float(value)


def _suspect(values: Sequence[Any]) -> SuspectSpan:
    trace_id, span_id, parent_id, name, start_ns, quiet_ns = values
    return SuspectSpan(
        str(trace_id), str(span_id), str(parent_id), str(name), parse_int64(start_ns), parse_int64(quiet_ns)
    )


def remove(folder: Path, process_name: str) -> None:
    """Remove the files of a process, except its stacks."""
    for name in (
        f"{REPORT_PREFIX}{process_name}.json",
        f"{HEARTBEAT_PREFIX}{process_name}",
        f"{REQUEST_PREFIX}{process_name}",
    ):
        (folder / name).unlink(missing_ok=True)


def remove_workers(folder: Path) -> None:
    """Remove the files of all processes in actors and tasks of Ray, on all nodes that share the folder."""
    for path in list_paths(folder):
        report = read(path)
        if report is not None and (report.actor or report.role == "task"):
            with contextlib.suppress(OSError):
                remove(folder, report.process_name)


def name_of(path: Path) -> str:
    """Return the name of the process whose report has a path."""
    return path.name[len(REPORT_PREFIX) : -len(".json")]


def list_paths(folder: Path) -> list[Path]:
    """Return the paths of all reports in a folder; none if there is no such folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed, every second
    except OSError:
        return []
    return [folder / name for name in names if name.startswith(REPORT_PREFIX) and name.endswith(".json")]


def find_actor(run_path: Path, actor: str) -> ProcessReport | None:
    """Return the report of the process of a run in which an actor of Ray is, or was; None: it has left none on this node."""
    reports = filter(None, map(read, list_paths(run_path / FOLDER))) if actor else ()
    return next((report for report in reports if report.actor == actor), None)


# -- whether the run has ended, and how: after that processes are expected to exit, whatever they have open --

RUNNING, FINISHED, FAILED, INTERRUPTED = MARKS = (
    RunState.RUNNING.word,
    RunState.FINISHED.word,
    RunState.FAILED.word,
    RunState.INTERRUPTED.word,
)
_FILE: Final = "ended"


class RunEnd(NamedTuple):
    """The end of a run."""

    state: str
    """`FINISHED`, `FAILED` or `INTERRUPTED`."""
    time_ns: int
    """When it was recorded, in nanoseconds, on the clock of the file system, as the heartbeats."""


def mark_run(config: Config, state: str) -> None:
    """Record that a run has ended, or that it has begun again (`RUNNING`). A failure and an interruption are not replaced by a later `FINISHED`."""
    folder = config.run_path / FOLDER
    path = folder / _FILE
    with contextlib.suppress(OSError):
        if state == RUNNING:
            path.unlink(missing_ok=True)
            return
        recorded = read_run_end(folder)
        if recorded is None or recorded.state not in (state, FAILED, INTERRUPTED):
            safe_files.write_atomically(path, state)


def read_run_end(folder: Path) -> RunEnd | None:
    """Return the end of the run of a folder; None if it has not ended."""
    path = folder / _FILE
    try:
        content = safe_files.read_bytes(path, 1 << 10, follow=False).decode("utf-8", "replace")
        return RunEnd(content if content in (FAILED, INTERRUPTED) else FINISHED, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None
