# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is read while it is written. Its explanation is that of `summary.explain`, as far as the files have been read.

The aggregator takes the new lines of all files as one slice at a time. Only what is unfinished differs: the last steps have no GPU time and no
cost yet, because these belong to the time up to the next step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal import rotated_files, safe_files
from verl_otel._internal.rotated_files import Head
from verl_otel.analysis import slice_summary, summary
from verl_otel.analysis.aggregator import Aggregator, find_restarts
from verl_otel.analysis.bounded_steps import Limits
from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.run_files import Extent, Slice, Writers
from verl_otel.analysis.model import Event, Explanation, OpenSpan, Series
from verl_otel.analysis.scalars import Column, Columns, Key, sort
from verl_otel.analysis.slice_summary import Context
from verl_otel.analysis.traces import clocks
from verl_otel.analysis.traces.clocks import Bound
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import TRAINING_STEP

# -- Follows files that grow by whole lines and are rotated: each line is returned once, roughly in the order of time --
#
# Every process writes its ended spans once a second, so each file is ordered by time to within a second. Of several
# files with unread lines, the one that is furthest behind is read next.

CHUNK_BYTES: Final = 256 << 10
"""Bytes that are read of one file before another one may be next."""
TIME: Final = {
    "traces": re.compile(rb'"endTimeUnixNano": ?"?(\d{1,19})[^\d]'),
    "metrics": re.compile(rb'"timeUnixNano": ?"?(\d{1,19})[^\d]'),
}
"""The first time of a line, by the kind of file."""
_ORDER_NS: Final = 2_000_000_000
"""Lines of a file are ordered to within this."""
_LEAP_NS: Final = 30 * 86_400_000_000_000
"""A time that is further ahead of the one before is damaged; so is a file's first time that is further ahead of the clock."""


_NO_HEAD: Final = Head(0, b"")


class Piece(NamedTuple):
    """Lines that were not returned before."""

    extents: tuple[Extent, ...]
    begin_ns: int
    """Nothing that ended after this time had been returned before."""
    watermark_ns: int
    """Everything that ended before this time has been returned. It never falls."""


@dataclass
class _File:
    key: tuple[int, int]
    """Device and inode."""
    path: Path
    size: int
    head: Head = _NO_HEAD
    """Its beginning, as much as it had when it was found."""
    modified_ns: int = 0
    offset: int = 0
    last_ns: int = 0
    """Time of the last line that was returned; of the first line if there is none; 0 if that is not known."""

    @property
    def is_behind(self) -> bool:
        return self.offset < self.size


class FollowedFiles:
    """The files of one kind in the folders of a run.

    Args:
        folders: The folders.
        kind: ``traces`` or ``metrics``.
    """

    def __init__(self, folders: Iterable[Path], kind: str) -> None:
        self._folders = tuple(folders)
        self._kind = kind
        self._files: dict[tuple[int, int], _File] = {}
        """By device and inode: a file keeps them when it is rotated, until it is compressed."""
        self._newest_ns = self._watermark_ns = 0
        self._grown_at = 0.0
        """When a new line was last seen, on the monotonic clock."""

    @property
    def is_behind(self) -> bool:
        """Whether there were unread lines at the last look."""
        return any(file.is_behind for file in self._files.values())

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read, and of all, at the last look."""
        return sum(file.offset for file in self._files.values()), sum(file.size for file in self._files.values())

    def look(self) -> None:
        """Look for new files and new lines."""
        seen: dict[tuple[int, int], _File] = {}
        newest = 0.0
        sizes = {key: file.size for key, file in self._files.items()}
        for path, status in self._scan():
            key = (status.st_dev, status.st_ino)
            file = self._files.get(key)
            compressed = rotated_files.is_compressed(path)
            changed = file is not None and status.st_mtime_ns != file.modified_ns
            if file is not None and changed and not rotated_files.has_head(path, file.head):
                file = None  # another file has the inode of one that was removed
            if file is None and compressed:
                file = self._find_compressed(path, key)
            size = file.size if compressed and file is not None else status.st_size
            if file is None or size < file.offset:  # new, or replaced
                file = self._add(key, path, status.st_size)
            else:
                file.path, file.size = path, size
            file.modified_ns = status.st_mtime_ns
            newest = max(newest, status.st_mtime)
            seen[key] = file
        if not self._files:
            self._grown_at = time.monotonic() - max(0.0, time.time() - newest)
        elif any(key not in self._files or file.size > sizes.get(key, 0) for key, file in seen.items()):
            self._grown_at = time.monotonic()
        self._files = seen

    def _add(self, key: tuple[int, int], path: Path, size: int) -> _File:
        """Return a file that was not known, with its first time."""
        file = _File(key, path, size)
        with contextlib.suppress(OSError):  # it was deleted or rotated meanwhile
            file.size = rotated_files.size_of(path)
            file.head = rotated_files.read_head(path)
            self._note_time(file, self._read_time(file, CHUNK_BYTES)[0])
        return file

    def _find_compressed(self, path: Path, key: tuple[int, int]) -> _File | None:
        """Return what was read of a file before it was compressed; None if it was not known."""
        name = rotated_files.whole_name(path)
        for file in self._files.values():
            known = rotated_files.whole_name(file.path) == name and file.path.parent == path.parent
            if known and not rotated_files.is_compressed(file.path) and rotated_files.has_head(path, file.head):
                with contextlib.suppress(OSError):
                    size = rotated_files.size_of(path)
                    return dataclasses.replace(file, key=key, path=path, size=max(size, file.offset))
        return None

    def take(self, budget: int) -> Piece:
        """Return unread lines of about this many bytes.

        Args:
            budget: Bytes; at least one line is returned if there is one.
        """
        taken: dict[Path, Extent] = {}
        begin_ns = self._newest_ns
        while budget > 0 and (behind := [file for file in self._files.values() if file.is_behind]):
            file = min(behind, key=lambda file: file.last_ns)
            begin, end = file.offset, self._find_end(file)
            if end == begin:  # half a line: the rest is not written yet
                file.size = begin
                continue
            taken[file.path] = Extent(file.path, taken[file.path].begin if file.path in taken else begin, end)
            file.offset = end
            budget -= end - begin
        return Piece(tuple(taken.values()), begin_ns, self._advance())

    def _advance(self) -> int:
        """Return the watermark. A silent run does not hold its last spans back: time passes in it, too."""
        behind = [file.last_ns for file in self._files.values() if file.is_behind]
        if behind:
            known = min(behind)
        else:
            known = self._newest_ns + round((time.monotonic() - self._grown_at) * 1e9) if self._newest_ns else 0
        self._watermark_ns = max(self._watermark_ns, known - _ORDER_NS)
        return self._watermark_ns

    def _scan(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in self._folders:
            try:
                paths = rotated_files.find(folder, f"{self._kind}-")
            except OSError:  # it cannot be read for a while
                continue
            for path in paths:
                try:
                    yield path, path.stat()
                except OSError:  # it was deleted or rotated meanwhile
                    continue

    def _find_end(self, file: _File) -> int:
        """Return the end of the last whole line of the next chunk, and note its time.

        Returns:
            The offset if no line is whole, or if the file cannot be read at its path until the next look.
        """
        length = CHUNK_BYTES
        while True:
            end = min(file.offset + length, file.size)
            try:
                time_ns, newline = self._read_time(file, end - file.offset, last=True)
            except OSError:
                return file.offset
            if newline or end == file.size or length > safe_files.MAX_LINE:
                break
            length *= 4
        if not newline:
            return file.offset if end == file.size else end
        if self._note_time(file, time_ns):
            self._newest_ns = max(self._newest_ns, time_ns)
        return file.offset + newline

    def _note_time(self, file: _File, time_ns: int) -> bool:
        """Note the time of a line; return whether it is credible."""
        credible = time_ns < (file.last_ns or time.time_ns()) + _LEAP_NS
        if credible:
            file.last_ns = max(file.last_ns, time_ns)
        return credible

    def _read_time(self, file: _File, length: int, *, last: bool = False) -> tuple[int, int]:
        """Read a part of a file from its offset.

        Returns:
            The time of its first or its last whole line, and the number of bytes to the end of its last line.

        Raises:
            OSError: It cannot be read, or another file has its path because it was rotated.
        """
        with rotated_files.open_lines(file.path) as opened:
            status = os.fstat(opened.fileno())
            if (status.st_dev, status.st_ino) != file.key:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file.path))
            opened.seek(file.offset)
            data = opened.read(length)
        end = data.rfind(b"\n") + 1
        begin = data.rfind(b"\n", 0, max(0, end - 1)) + 1 if last else 0
        match = TIME[self._kind].search(data, begin)
        return (int(match[1]) if match else 0), end


# -- Columns of scalars in bounded memory that are equally dense over the whole run, and end with the newest value --

MAX_SERIES: Final = (1_000, 500, 500)
"""Of the trainer, of other processes those that the analysis adds up, and all others of these."""
MAX_POINTS: Final = 1_000
"""Points of one series; of twice as many, every second one is dropped, and from then on every second one is taken."""
MAX_STEPS: Final = 100_000
"""Points of the series with the number of the step, on which the others depend."""


class LiveColumns(Columns):
    """Columns to which pieces of a growing run are added, in the order of time."""

    def __init__(self) -> None:
        super().__init__(MAX_SERIES, MAX_STEPS)
        self._strides: dict[Key, int] = {}
        self._passed: dict[Key, int] = {}
        """Number of values of each series so far."""
        self._newest: dict[Key, tuple[int, float]] = {}

    def merge(self, other: Columns) -> None:
        """Add the values of another instance."""
        self.left_out += other.left_out
        self._loops |= other._loops
        for key, (times, values) in other.columns():
            column = self._column(key)
            if column is None:
                self.left_out += len(times)
                continue
            stride, passed = self._strides.get(key, 1), self._passed.get(key, 0)
            begin = -passed % stride
            column[0].extend(times[begin::stride])
            column[1].extend(values[begin::stride])
            self._passed[key] = passed + len(times)
            if times:
                self._newest[key] = (times[-1], values[-1])
            if len(column[0]) > 2 * (MAX_STEPS if key[0] == TRAINING_STEP else MAX_POINTS):
                self._columns[key] = (column[0][::2], column[1][::2])
                self._strides[key] = 2 * stride

    def series(self) -> tuple[Series, ...]:
        """Return the series as those of `Columns`, each with its newest value, as arrays: a quarter of the size of tuples."""
        shared: dict[bytes, array[int]] = {}
        series = []
        whole = {key: self._complete(key, *sort(*column)) for key, column in self._columns.items()}
        for key, column in self._sorted(whole):
            times, values = sort(*column)
            series.append(Series(*key, shared.setdefault(times.tobytes(), times), values))
        return tuple(series)

    def _complete(self, key: Key, times: array[int], values: array[float]) -> Column:
        """Return copies of a column's arrays, which grow, with the newest value."""
        time_ns, value = self._newest.get(key, (0, 0.0))
        if not times or time_ns <= times[-1]:
            return times[:], values[:]
        return times + array("q", (time_ns,)), values + array("d", (value,))


# -- the run --

PIECE_BYTES: Final = 256 << 10
"""Bytes that are read at a time: about 1,500 spans, 3 MB as objects."""
LIMITS: Final = Limits(waiting=4_000, spent=200, replayed=0, detailed=50, slowest=20, bare=True)
MAX_BOUNDS: Final = 20_000
"""Bounds on clock offsets that are kept."""
FULL_PIECES: Final = 32
SAMPLED: Final = 8
"""After so many pieces only every eighth is searched for bounds on clock offsets."""


class LiveRun:
    """One run; it may grow, end, be killed, or be deleted meanwhile.

    Args:
        folders: Its folder, or one for each node.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders: Final = tuple(folders)
        self._traces = FollowedFiles(self.folders, "traces")
        self._metrics = FollowedFiles(self.folders, "metrics")
        self._manifest = run_files.read_manifest(self.folders)
        self._restarts = find_restarts(self._manifest)
        self._context = Context(str(self._manifest.get(attr.ENGINE, "")))
        self._writers = Writers()
        self._aggregator = Aggregator(self._writers, self._manifest, self._context, limits=LIMITS)
        self._aggregator.columns = LiveColumns()
        self._bounds: deque[Bound] = deque(maxlen=MAX_BOUNDS)
        self._pieces = 0
        self._events: tuple[Event, ...] = ()
        self.is_finished = False
        """Whether `finish` was called. What the run writes later is not read: it needs another instance."""
        self.version = 0
        """Changes whenever something new was read."""

    @property
    def is_behind(self) -> bool:
        """Whether there were unread lines at the last look."""
        return self._traces.is_behind or self._metrics.is_behind

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read, and of all."""
        (read, size), (more_read, more_size) = self._traces.progress(), self._metrics.progress()
        return read + more_read, size + more_size

    def look(self) -> None:
        """Look for new files, new lines and new events.

        The events come last: a stall that is over must be known before the spans that follow it are read.
        """
        self._traces.look()
        self._metrics.look()
        run_events = run_files.read_events(self.folders, [])
        if run_events != self._events:
            self._events = run_events
            self._aggregator.set_events(run_events)
            self.version += 1

    def has_other_attempts(self) -> bool:
        """Return whether the run was continued since its reading began: which steps an attempt has must be known before they are read."""
        return find_restarts(run_files.read_manifest(self.folders)) != self._restarts

    def read(self, budget: int = PIECE_BYTES) -> None:
        """Read new lines of about this many bytes, the scalars before the spans."""
        if self.is_finished:
            return
        scalars = self._metrics.take(budget).extents
        if scalars:
            self._aggregator.add(slice_summary.summarise_metrics(scalars), 0)
            self.version += 1
        piece = self._traces.take(budget)
        if piece.extents:
            self._measure_clocks(piece.extents)
            self.version += 1
        part = Slice(piece.begin_ns, piece.watermark_ns, piece.extents)
        steps = self._aggregator.step_count
        self._aggregator.add(slice_summary.summarise_spans(part, self._context), piece.watermark_ns)
        self.version += self._aggregator.step_count != steps

    def finish(self) -> None:
        """Complete the last steps of a run that has ended and was read to its end."""
        if not self.is_finished:
            self._aggregator.opened = []
            self._aggregator.finish(self.open_spans())
            self.is_finished = True
            self.version += 1

    def open_spans(self) -> list[OpenSpan]:
        """Return the spans that had not ended when they were last written."""
        return run_files.read_open(self.folders, self._writers, [])

    def explain(self) -> Explanation:
        """Return everything that is known so far."""
        self._manifest |= run_files.read_manifest(self.folders)
        if not self.is_finished:
            self._aggregator.opened = self.open_spans()
        return summary.describe(self.folders, self._manifest, self._aggregator, self._context.clocks, self._events)

    def _measure_clocks(self, extents: tuple[Extent, ...]) -> None:
        """Estimate the clocks of a run on several hosts, from all pieces in the beginning and from some later."""
        self._pieces += 1
        if self._pieces > FULL_PIECES and self._pieces % SAMPLED:
            return
        if len({resource.get(attr.HOST_NAME) for resource in self._writers.resources}) > 1:
            self._bounds.extend(clocks.find_bounds(summary.read_sample(extents)))
            host_clocks = summary.estimate_clocks(self._bounds, self._writers)
            self._context = self._context._replace(clocks=host_clocks, hosts=summary.map_hosts(self._writers))
            self._aggregator.set_context(self._context)
