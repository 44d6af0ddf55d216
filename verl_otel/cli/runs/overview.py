# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The facts about a run that can be had without analysing it: from its manifest, the sizes of its files, and their ends."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from verl_otel.analysis.summary import NO_END, RUNNING_SECONDS
from verl_otel.cli.runs import file_ends
from verl_otel.cli.runs.file_ends import Ends
from verl_otel.session import run_manifest
from verl_otel.system import procfs
from verl_otel.watchdog import process_reports

RUNNING = "running"
ENDED = "ended"
MAX_SECONDS = 1e10
"""Largest time in seconds since 1970 that is shown."""


class Usage(NamedTuple):
    """What the files of a run occupy, and when they were written."""

    size: int
    """Bytes of all regular files."""
    written: float
    """Newest modification of a file or folder, in seconds since 1970."""


class Overview(NamedTuple):
    """One run of the list."""

    folder: Path
    state: str
    """``running``, ``finished``, ``failed``, ``ended`` or ``no end seen``."""
    steps: int | None
    """Number of steps of all attempts."""
    last_step: int | None
    last_step_seconds: float | None
    started: float | None
    """Start of the first attempt, in seconds since 1970."""
    seconds: float | None
    """Seconds from the start of the first attempt to the end of the last one, or to its newest record."""
    size: int
    """Bytes of all files."""
    written: float
    """Newest modification of a file, in seconds since 1970."""


def read(folder: Path) -> Overview:
    """Return the facts about a run. Unknown ones are None; damaged files have none."""
    manifest, usage, ends = run_manifest.read(folder), measure(folder), file_ends.read(folder)
    attempts = [attempt for attempt in _attempts(manifest) if isinstance(attempt, Mapping)]
    first, last = (attempts[0], attempts[-1]) if attempts else ({}, {})
    # The manifest is written at the first drain, which may be a second after the first span has begun.
    begins = [_moment(first.get("started")), _moment(ends.begin_ns / 1e9)]
    started = min((begin for begin in begins if begin is not None), default=None)
    newest = max(ends.newest_ns / 1e9, _moment(last.get("ended")) or 0.0)
    return Overview(
        folder=folder,
        state=find_state(folder, last, ends, usage.written),
        steps=ends.steps,
        last_step=ends.last_step,
        last_step_seconds=ends.last_step_seconds,
        started=started,
        seconds=newest - started if started and started <= newest < MAX_SECONDS else None,
        size=usage.size,
        written=usage.written,
    )


def find_state(folder: Path, attempt: Mapping[str, Any], ends: Ends, written: float) -> str:
    """Return the state of a run, as a report has it.

    Args:
        folder: The folder of the run.
        attempt: The last attempt of the manifest.
        ends: What the ends of the files contain.
        written: Newest modification of a file, in seconds since 1970.
    """
    if ends.state not in ("", NO_END):
        return ends.state
    started, mark = (
        _moment(attempt.get("started")) or 0.0,
        process_reports.read_run_end(folder / process_reports.FOLDER),
    )
    if mark is not None and mark.time_ns / 1e9 > started and mark.state == process_reports.FAILED:
        return process_reports.FAILED
    if "ended" in attempt:
        return ENDED
    return RUNNING if time.time() - written < RUNNING_SECONDS or has_live_process(folder) else NO_END


def has_live_process(folder: Path) -> bool:
    """Return whether a process of the run lives on this node, even if it is stopped and writes nothing."""
    node = procfs.read_node_name()
    reports = map(process_reports.read, process_reports.list_paths(folder / process_reports.FOLDER))
    return any(
        report is not None and report.node == node and procfs.read_state(report.process) != procfs.GONE
        for report in reports
    )


def measure(folder: Path) -> Usage:
    """Return the size of all files below a folder, and when one was written last. Symbolic links are not followed."""
    size, written = 0, 0.0
    for path in _walk(folder):
        try:
            status = os.lstat(path)
        except OSError:  # it was deleted meanwhile
            continue
        written = max(written, status.st_mtime)
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return Usage(size, written)


def _walk(folder: Path) -> Iterable[str]:
    yield str(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield os.path.join(parent, name)  # noqa: PTH118 - for thousands of files


def _attempts(manifest: Mapping[str, Any]) -> list[Any]:
    attempts = manifest.get("attempts")
    return attempts if isinstance(attempts, list) else []


def _moment(value: object) -> float | None:
    """Return a time of the files in seconds since 1970; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MAX_SECONDS:
        return None
    return float(value) if math.isfinite(value) else None
