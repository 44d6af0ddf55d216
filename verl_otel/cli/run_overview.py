# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The facts about a run that can be had without analysing it: from its manifest, and the sizes and times of its files."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from verl_otel.analysis.io import run_files, run_status
from verl_otel.analysis.model import Event
from verl_otel.cli.documents.runs import RunRow
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.run_state import RunState
from verl_otel.session import run_manifest
from verl_otel.system import procfs
from verl_otel.watchdog import process_reports

MAX_SECONDS = 1e10
"""Largest time in seconds since 1970 that is shown."""
_RECORDED_ENDS = {state.word for state in RunState}
"""States that the training recorded itself, with the time of its end."""
_RECORDS = ("traces-", "metrics-", "open-")
"""Names of the files with spans and metrics."""


class Usage(NamedTuple):
    """What the files of a run occupy, and when they were written."""

    size: int
    """Bytes of all regular files."""
    written: float
    """Newest modification of a file or folder, in seconds since 1970."""
    recorded: float
    """Newest modification of a file with spans or metrics; 0: there is none."""


def read(folder: Path) -> RunRow:
    """Return the facts about a run. Unknown ones are None; a damaged manifest has none, and one from before it had a status has few."""
    manifest, usage = run_manifest.read(folder), measure(folder)
    attempts, status = run_files.list_attempts(manifest), run_status.read(manifest)
    first, end = (attempts[0], attempts[-1].get("ended")) if attempts else ({}, None)
    trainings = () if status is None else status.trainings
    state = find_state(folder, manifest, usage.written)
    times = [_moment(end), *(_moment(training.time) for training in trainings)]
    if state == RunState.RUNNING.word:
        times.append(_moment(usage.written))
    elif end is None and state not in _RECORDED_ENDS:
        times.append(_moment(usage.recorded))
    begins = [_moment(first.get("started")), *(_moment(training.began) for training in trainings)]
    started = min((begin for begin in begins if begin is not None), default=None)
    newest = max((moment for moment in times if moment is not None), default=None)
    last = None if status is None else status.last
    rewards = [training.reward for training in sorted(trainings, key=lambda training: -training.time)]
    return RunRow(
        run=folder.name,
        project=str(manifest.get(attr.PROJECT, "")),
        experiment=str(manifest.get(attr.EXPERIMENT, "")),
        state=state,
        steps=None if status is None else status.steps,
        planned=(None if status is None else status.newest.total_steps) or None,
        last_step=None if last is None else last.step,
        last_step_seconds=None if last is None else last.step_seconds,
        reward=next((reward for reward in rewards if reward is not None), None),
        verdict="" if status is None else status.newest.verdict,
        started=started,
        seconds=newest - started if started and newest and newest >= started else None,
        bytes=usage.size,
        written=usage.written,
        folder=str(folder),
    )


def find_state(folder: Path, manifest: Mapping[str, Any], written: float) -> str:
    """Return the state of a run, as a report has it.

    Args:
        folder: The folder of the run.
        manifest: Its manifest.
        written: Newest modification of a file, in seconds since 1970.
    """

    def is_active() -> bool:
        return time.time() - written < run_status.RUNNING_SECONDS or has_live_process(folder)

    return run_status.find_state(manifest, None, _read_events(folder), is_active)


def _read_events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run; the file is opened at the first one that is asked for."""
    yield from run_files.read_events([folder], [])


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
    size, written, recorded = 0, 0.0, 0.0
    for path in _walk(folder):
        try:
            status = os.lstat(path)
        except OSError:  # it was deleted meanwhile
            continue
        written = max(written, status.st_mtime)
        if os.path.basename(path).startswith(_RECORDS):  # noqa: PTH119 - as below
            recorded = max(recorded, status.st_mtime)
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return Usage(size, written, recorded)


def _walk(folder: Path) -> Iterable[str]:
    yield str(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield os.path.join(parent, name)  # noqa: PTH118 - for thousands of files


def _moment(value: object) -> float | None:
    """Return a time of the files in seconds since 1970; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MAX_SECONDS:
        return None
    return float(value) if math.isfinite(value) else None
