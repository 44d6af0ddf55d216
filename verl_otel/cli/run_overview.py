# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The facts about a run that can be had without analysing it: from its manifest, the sizes of its files, and their ends."""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import rotated_files, safe_files
from verl_otel.analysis import summary
from verl_otel.analysis.io import otlp_json, run_files, run_log
from verl_otel.analysis.summary import NO_END, RUNNING_SECONDS, STATES
from verl_otel.analysis.traces.span_names import STEP
from verl_otel.cli.formatting import fill_schema
from verl_otel.cli.json_schemas import RUNS
from verl_otel.cli.run_folders import modified
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import RUN_STATE, STEP_DURATION, TRAINING_STEP
from verl_otel.session import run_manifest
from verl_otel.system import procfs
from verl_otel.watchdog import process_reports

RUNNING = "running"
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
    """``running``, ``finished``, ``failed``, ``stopped by guard``, ``interrupted``, ``crashed``, ``ended`` or ``no end seen``."""
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


def to_json(run: Overview) -> dict[str, Any]:
    """Return a run as plain data. The keys are stable; times in seconds since 1970, null for unknown values."""
    return fill_schema(RUNS["properties"]["runs"], run, run=run.folder.name, bytes=run.size, folder=str(run.folder))


def read(folder: Path) -> Overview:
    """Return the facts about a run. Unknown ones are None; damaged files have none."""
    manifest, usage, ends = run_manifest.read(folder), measure(folder), read_ends(folder)
    attempts = run_files.list_attempts(manifest)
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
    started = _moment(attempt.get("started")) or 0.0
    mark = process_reports.read_run_end(folder / process_reports.FOLDER)
    if mark is not None and mark.time_ns / 1e9 > started and mark.state == process_reports.FAILED:
        return process_reports.FAILED
    if "ended" in attempt:
        return summary.name_end(attempt, run_files.read_events([folder], []))
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


def _moment(value: object) -> float | None:
    """Return a time of the files in seconds since 1970; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MAX_SECONDS:
        return None
    return float(value) if math.isfinite(value) else None


# -- The beginning and the end of some files of a run: its state, its last step, and the times of its records --

MAX_FILES: Final = 4
"""Maximum number of files of one kind that are read."""
TAIL_BYTES: Final = 1 << 20
MAX_NUMBER: Final = 1e15
"""Largest number of a step that is shown."""
TIME_BYTES: Final = 1 << 16
"""Bytes at the beginning and at the end of a file in which times are searched for."""
LONG_TAIL_BYTES: Final = 1 << 24
"""Where the end of a file has the last step only if it failed: the others were written before it, perhaps an hour before."""
MAX_ATTEMPTS: Final = 100
"""Files of the trainer in which steps are counted."""
_TRAINER, _DRIVER = "trainer", "driver"
"""Roles, which are a part of the file names."""
_WORKERS: Final = frozenset(
    {"agent_loop", "reward", "llm_server", "transfer_queue", "rollout", "critic", "ref", "actor_rollout_ref", "task"}
)
"""Roles of processes that have no training loop. A main program of one's own may have any other."""
_BEGIN: Final = re.compile(rb'"startTimeUnixNano": ?"?(\d{1,19})[^\d]')
_NEWEST: Final = re.compile(rb'"(?:endTimeUnixNano|timeUnixNano)": ?"?(\d{1,19})[^\d]')


class Ends(NamedTuple):
    """What the ends of the files contain."""

    state: str
    """The last state that the trainer recorded; empty: none."""
    steps: int | None
    last_step: int | None
    last_step_seconds: float | None
    begin_ns: int
    """Start of the earliest span that was read; 0: unknown."""
    newest_ns: int
    """Time of the newest record; 0: unknown."""


class _Tail(NamedTuple):
    """The end of a file."""

    data: bytes
    is_whole: bool
    """Whether it is the whole file."""

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines that contain a quoted name, the newest first. A line that was cut off is among them, and cannot be decoded."""
        wanted, end = f'"{name}"'.encode(), len(self.data)
        while (place := self.data.rfind(wanted, 0, end)) >= 0:
            begin = self.data.rfind(b"\n", 0, place) + 1
            stop = self.data.find(b"\n", place)
            yield self.data[begin : stop if stop >= 0 else len(self.data)]
            end = begin

    def newest_ns(self) -> int:
        """Return the latest time near the end of the file."""
        return max(map(int, _NEWEST.findall(self.data[-TIME_BYTES:])), default=0)


class _Step(NamedTuple):
    """A step that has ended, or that was logged (then its duration is unknown)."""

    end_ns: int
    number: int | None
    seconds: float | None


def read_ends(folder: Path) -> Ends:
    """Return what the ends of the files of a run contain. Files that cannot be read or are damaged are passed over."""
    traces = run_files.find_files([folder], "traces")
    metrics = run_files.find_files([folder], "metrics")
    spans, points = ([*_read_tails(_choose(paths))] for paths in (traces, metrics))
    _, state = _last_point(points, RUN_STATE)
    logged_ns, logged = _last_point(points, TRAINING_STEP)
    last = _last_step(spans)
    if last is None or (logged is not None and last.end_ns < logged_ns and last.number != int(logged)):
        last = (
            None if logged is None else _Step(logged_ns, int(logged), None)
        )  # the span of the logged step is still open
    return Ends(
        state="" if state is None else STATES.get(state, NO_END),
        steps=_count_steps(metrics) or (0 if last is None else None),
        last_step=None if last is None else last.number,
        last_step_seconds=None if last is None else last.seconds,
        begin_ns=min(filter(None, map(_read_begin, sorted(traces, key=modified)[:MAX_FILES])), default=0),
        newest_ns=max((tail.newest_ns() for tail in (*spans, *points)), default=0),
    )


def read_last_value(folder: Path, names: Sequence[str]) -> float | None:
    """Return the newest value of the first of some series that the ends of the metrics files contain; None if there is none."""
    tails = [*_read_tails(_choose(run_files.find_files([folder], "metrics")))]
    values = (_last_point(tails, name)[1] for name in names)
    return next((value for value in values if value is not None), None)


def _choose(paths: Sequence[Path], trainers: int = MAX_FILES) -> list[Path]:
    """Return the files of the process with the training loop, as far as the names tell it; the newest first.

    Args:
        paths: Files of one kind.
        trainers: Maximum number of files of the trainer: each attempt has one.
    """
    current = [path for path in paths if not run_log.is_rotated(path)]
    roles = {path: path.name.split("-")[1] for path in current}
    newest = sorted(current, key=modified, reverse=True)
    chosen = [path for path in newest if roles[path] == _TRAINER][:trainers]
    if (
        not chosen
    ):  # an own loop under Ray is in the driver, beside any number of rollout workers, or in one of the actors
        chosen = ([path for path in newest if roles[path] not in _WORKERS] or newest)[:MAX_FILES]
        chosen += [path for path in current if roles[path] == _DRIVER and path not in chosen][:MAX_FILES]
    return chosen


def _read_tails(paths: Iterable[Path], length: int = TAIL_BYTES) -> Iterator[_Tail]:
    for path in paths:
        try:
            data = safe_files.read_tail(path, length)
        except OSError:
            continue
        yield _Tail(data, len(data) < length)


def _read_begin(path: Path) -> int:
    """Return the earliest start of a span near the beginning of a file; 0: there is none."""
    try:
        with rotated_files.open_lines(path) as file:
            return min(filter(None, map(int, _BEGIN.findall(file.read(TIME_BYTES)))), default=0)
    except OSError:
        return 0


def _last_point(tails: Iterable[_Tail], name: str) -> tuple[int, float | None]:
    """Return time and value of the newest point of a series; 0 and None if none was read."""
    newest: tuple[int, float | None] = (0, None)
    for tail in tails:
        for line in tail.lines(name):
            try:
                points = [point for _, group in otlp_json.read_points(line) for point in group]
            except otlp_json.UNREADABLE:
                continue
            valid = [
                (point.time_ns, point.value) for point in points if point.name == name and abs(point.value) < MAX_NUMBER
            ]
            newest = max([newest, *valid], key=lambda point: point[0])
            if valid:
                break
    return newest


def _last_step(tails: Iterable[_Tail]) -> _Step | None:
    """Return the newest step that has ended; None if none was read."""
    steps: list[_Step] = []
    for tail in tails:
        for line in tail.lines(STEP):
            try:
                spans = [span for _, group in otlp_json.read_spans(line) for span in group]
            except otlp_json.UNREADABLE:
                continue
            ended = [_make_step(span) for span in spans if span.name == STEP and span.end_ns >= span.start_ns]
            steps += ended
            if ended:
                break
    return max(steps, key=lambda step: step.end_ns, default=None)


def _make_step(span: SpanRecord) -> _Step:
    number = span.attributes.get(attr.STEP_NUMBER)
    return _Step(span.end_ns, number if isinstance(number, int) else None, (span.end_ns - span.start_ns) / 1e9)


def _count_steps(paths: Sequence[Path]) -> int | None:
    """Return the number of steps of all attempts, whole and failed ones; None if it is not in the parts that were read.

    Args:
        paths: The metrics files of the run.
    """
    chosen = _choose(paths, MAX_ATTEMPTS + 1)
    is_trainer = bool(chosen) and chosen[0].name.split("-")[1] == _TRAINER
    if len(chosen) > (MAX_ATTEMPTS if is_trainer else MAX_FILES - 1):  # there may be more
        return None
    rotated = {rotated_files.whole_name(path) for path in paths if run_log.is_rotated(path)}
    total = 0
    for path in chosen:
        has_older = rotated_files.whole_name(path) in rotated
        count, is_known = _read_counts(path, TAIL_BYTES, has_older=has_older)
        if count and not is_known:
            count, is_known = _read_counts(path, LONG_TAIL_BYTES, has_older=has_older)
        if not is_known:
            return None
        total += count
    return total


def _read_counts(path: Path, length: int, *, has_older: bool) -> tuple[int, bool]:
    """Return the sum of the last points of all series of the histogram of steps, and whether these are all.

    A failed step is a series of its own. Without one of whole steps, that may be before the part that was read.

    Args:
        path: A metrics file.
        length: Bytes that are read at its end.
        has_older: Whether earlier lines are in other files.
    """
    counts: dict[tuple[str, int], int] = {}
    is_known = False
    for tail in _read_tails([path], length):
        is_known = tail.is_whole and not has_older
        for line in tail.lines(STEP_DURATION):
            try:
                points = list(otlp_json.read_counts(line, STEP_DURATION))
            except otlp_json.UNREADABLE:
                continue
            for labels, start_ns, count in points:
                is_known |= attr.ERROR_TYPE not in labels
                if 0 <= count < MAX_NUMBER:
                    counts.setdefault((str(sorted(labels.items())), start_ns), count)
    return sum(counts.values()), is_known
