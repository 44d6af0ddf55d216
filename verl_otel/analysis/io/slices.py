# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Cut the files of a run into slices of time of about the same size, without reading all of them.

Every process writes its ended spans once a second, so each file is ordered by time to within a second. One timestamp per block
of each file gives the time when it was written; the run is cut where enough bytes have accumulated, and each file is cut at the
first line that is not older. A slice can then be analysed independently, except for spans near its edges.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from verl_otel._internal import rotated_files, safe_files
from verl_otel.analysis.io.run_files import Extent

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

SLICE_BYTES: Final = 32 << 20
"""Size of a slice: 50,000 spans, about 100 MB as objects. Small enough for several at a time, large enough to have few edges."""
BLOCK_BYTES: Final = 256 << 10
BEGINNING: Final = 0
END: Final = (1 << 63) - 1
_TIME: Final = re.compile(rb'"endTimeUnixNano": ?"?(\d{1,19})[^\d]')
"""End of the first span of a line; a search in the text is twenty times as fast as decoding the line."""


class Slice(NamedTuple):
    """The lines that were written in an interval of the run."""

    begin_ns: int
    end_ns: int
    extents: tuple[Extent, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(extent.end - extent.begin for extent in self.extents)


class _File(NamedTuple):
    path: Path
    size: int
    offsets: list[int]
    """Offsets of lines, one per block."""
    times: list[int]
    """When they were written; monotonic."""


def cut(paths: Iterable[Path], size: int = SLICE_BYTES) -> tuple[Slice, ...]:
    """Return the slices of all files together, in the order of time; every line lies in exactly one.

    Args:
        paths: Files with spans, complete or damaged, still growing or not.
        size: Bytes of a slice, roughly.
    """
    files = [file for path in paths if (file := _survey(path)) is not None]
    moments = _moments(files, size)
    edges = [_edges(file, moments) for file in files]
    bounds = [BEGINNING, *moments, END]
    slices = []
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        extents = tuple(
            Extent(file.path, edge[number], edge[number + 1])
            for file, edge in zip(files, edges, strict=True)
            if edge[number] < edge[number + 1]
        )
        slices.append(Slice(begin, end, extents))
    return tuple(slices)


def split(paths: Iterable[Path], size: int = SLICE_BYTES) -> tuple[tuple[Extent, ...], ...]:
    """Return parts of files of about the same size regardless of time, for data that can be read in any order. Arguments: see `cut`."""
    parts: list[tuple[Extent, ...]] = []
    gathered: list[Extent] = []
    for path in paths:
        length = _size(path)
        places = [0]
        while places[-1] < length:
            places.append(_next_line(path, min(places[-1] + size, length), length))
        for begin, end in itertools.pairwise(places):
            gathered.append(Extent(path, begin, end))
            if sum(extent.end - extent.begin for extent in gathered) >= size:
                parts.append(tuple(gathered))
                gathered = []
    return (*parts, tuple(gathered)) if gathered else tuple(parts)


def find_ends(path: Path) -> tuple[Extent, ...]:
    """Return the first and the last line of a file."""
    size = _size(path)
    begin, newline, room = size, -1, 1 << 16
    try:
        with rotated_files.open_lines(path) as file:
            while newline < 0 < begin and size - begin < safe_files.MAX_LINE:
                begin = max(0, size - room)
                file.seek(begin)
                newline = file.read(size - begin)[:-1].rfind(b"\n")
                room *= 4
    except OSError:
        return ()
    if newline < 0 < begin:  # the last line is too long to be read
        return (Extent(path, 0, 1),)
    last = begin + newline + 1
    edges = (Extent(path, 0, 1), Extent(path, last, size)) if last else (Extent(path, 0, 1),)
    return edges if size else ()


def _survey(path: Path) -> _File | None:
    """Return where the blocks of a file begin; None if it is empty."""
    offsets, times = [0], [BEGINNING]
    place = 0
    try:
        if rotated_files.is_compressed(path):
            blocks, size = rotated_files.read_blocks(path)
            known = [block for block in blocks if block.time_ns]
            times += [block.time_ns for block in known]
            offsets += [block.begin for block in known]
            return _File(path, size, offsets, _rising(times)) if size else None
        with rotated_files.open_lines(path) as file:
            while block := file.read(BLOCK_BYTES):
                begin = block.find(b"\n") + 1 if place else 0
                match = _TIME.search(block, begin) if begin or not place else None
                if match:
                    offsets.append(place + begin)
                    times.append(int(match[1]))
                place += len(block)
    except OSError:
        return _File(path, 1, [0], [BEGINNING])  # reading it later reports the error
    return _File(path, place, offsets, _rising(times)) if place else None


def _rising(times: Sequence[int]) -> list[int]:
    """Return times without outliers: one damaged number must not affect everything after it."""
    middles = [
        sorted(times[max(0, number - 1) : number + 2])[1] if 0 < number < len(times) - 1 else time
        for number, time in enumerate(times)
    ]
    rising: list[int] = []
    for time in middles:
        rising.append(max(time, rising[-1]) if rising else time)
    return rising


def _moments(files: Sequence[_File], size: int) -> list[int]:
    """Return the times at which the run is cut."""
    blocks = sorted(
        (time, end - begin)
        for file in files
        for time, begin, end in zip(file.times, file.offsets, [*file.offsets[1:], file.size], strict=True)
    )
    moments: list[int] = []
    gathered = 0
    for time, length in blocks:
        if gathered >= size and time > (moments[-1] if moments else BEGINNING):
            moments.append(time)
            gathered = 0
        gathered += length
    return moments


def _edges(file: _File, moments: Sequence[int]) -> list[int]:
    """Return the offsets at which a file is cut: its start, the first line at or after each time, its end."""
    edges = [file.offsets[0]]
    lines: list[tuple[int, int]] = []
    at = -1
    for moment in moments:
        block = bisect_left(file.times, moment) - 1  # the last block that starts before it; the first one always does
        if block != at:
            lines, at = _read_block(file, block), block
        edges.append(max(edges[-1], next(place for time, place in lines if time >= moment)))
    return [*edges, file.size]


def _read_block(file: _File, block: int) -> list[tuple[int, int]]:
    """Return the time and offset of each line of a block, and finally the end of the block."""
    begin = file.offsets[block]
    end = file.offsets[block + 1] if block + 1 < len(file.offsets) else file.size
    try:
        with rotated_files.open_lines(file.path) as opened:
            lines = safe_files.read_lines(opened, begin, end)
            times = [(int(match[1]), place) for place, line, _ in lines if line and (match := _TIME.search(line))]
            return [*times, (END, end)]
    except OSError:
        return [(END, end)]


def _size(path: Path) -> int:
    try:
        return rotated_files.size_of(path)
    except OSError:
        return 0


def _next_line(path: Path, place: int, length: int) -> int:
    """Return the offset of the first line that starts at or after ``place``."""
    if place >= length:
        return length
    with rotated_files.open_lines(path) as file:
        file.seek(place - 1)
        safe_files.skip_line(file)
        return min(file.tell(), length)


# -- Maps a function over tasks in several processes, in order, with a bounded number of results in flight --

MAX_WORKERS: Final = 8
"""Maximum number of workers whose results one process can consume."""
AHEAD: Final = 1
"""Number of results that may wait per worker: the limit of the memory used."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def count_workers() -> int:
    """Return the useful number of workers; 0: all work is done in this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return 0 if cores < 2 else min(cores, MAX_WORKERS)  # noqa: PLR2004 - one core has no use for a second process


def map_ordered(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Return the results in the order of the tasks.

    Args:
        work: A module-level function (workers import it by name); it depends only on its task.
        tasks: Its arguments.
        workers: Number of processes; 0: only this one. If they cannot be started, or die, this process continues alone.
    """
    upcoming = iter(tasks)
    if not workers:
        yield from map(work, upcoming)
        return
    import multiprocessing  # here: a process that uses no other ones saves 2 MB
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    running: deque[tuple[Task, Future[Result]]] = deque()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), gc.disable)
    try:
        while True:
            _fill(pool, work, upcoming, running, workers * (1 + AHEAD))
            if not running:
                return
            task, future = running.popleft()
            try:
                result = future.result()
            except BrokenProcessPool:
                yield work(task)
                yield from map(work, [task for task, _ in running])
                yield from map(work, upcoming)
                return
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _fill(
    pool: ProcessPoolExecutor, work: Callable[[Any], Any], upcoming: Iterator[Any], running: deque[Any], room: int
) -> None:
    from concurrent.futures import Future
    from concurrent.futures.process import BrokenProcessPool

    while len(running) < room:
        try:
            task = next(upcoming)
        except StopIteration:
            return
        try:
            running.append((task, pool.submit(work, task)))
        except BrokenProcessPool as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            running.append((task, failed))
