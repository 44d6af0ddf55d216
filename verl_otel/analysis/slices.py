# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Cut the files of a run into slices of time of about the same size, without reading all of them.

Every process writes its ended spans once a second, so each file is ordered by time but for a second. A look into each block
of each file tells when it was written; the run is cut where enough bytes have come together, and each file is cut at the first
line that is not older. A slice can then be understood by itself but for what lies near its edges.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.analysis.reader import Extent

SLICE_BYTES: Final = 32 << 20
"""50,000 spans, about 100 MB once they are objects: small enough for several at a time, large enough to have few edges."""
BLOCK_BYTES: Final = 256 << 10
BEGINNING: Final = 0
END: Final = (1 << 63) - 1
_TIME: Final = re.compile(rb'"endTimeUnixNano": ?"?(\d{1,19})[^\d]')
"""When the first span of a line ended; found by its text, which is twenty times as fast as decoding the line."""


class Slice(NamedTuple):
    """The lines that were written in a part of the run's time."""

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
    """Beginnings of lines, one of each block."""
    times: list[int]
    """When they were written; never falling."""


def cut(paths: Iterable[Path], size: int = SLICE_BYTES) -> tuple[Slice, ...]:
    """Return the slices of all files together, in the order of time; every line lies in exactly one.

    Args:
        paths: Files with spans, whole or damaged, still growing or not.
        size: Bytes of a slice, roughly.
    """
    files = [found for path in paths if (found := _survey(path)) is not None]
    moments = _moments(files, size)
    edges = [_edges(file, moments) for file in files]
    bounds = [BEGINNING, *moments, END]
    made = []
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        extents = tuple(
            Extent(file.path, edge[number], edge[number + 1])
            for file, edge in zip(files, edges, strict=True)
            if edge[number] < edge[number + 1]
        )
        made.append(Slice(begin, end, extents))
    return tuple(made)


def split(paths: Iterable[Path], size: int = SLICE_BYTES) -> tuple[tuple[Extent, ...], ...]:
    """Return parts of files of about the same size whatever their time, for what can be read in any order."""
    parts: list[tuple[Extent, ...]] = []
    gathered: list[Extent] = []
    for path in paths:
        length = _size(path)
        places = [0]
        while places[-1] < length:
            places.append(_next_line(path, min(places[-1] + size, length), length))
        for begin, end in itertools.pairwise(places):
            gathered.append(Extent(path, begin, end))
            if sum(each.end - each.begin for each in gathered) >= size:
                parts.append(tuple(gathered))
                gathered = []
    return (*parts, tuple(gathered)) if gathered else tuple(parts)


def find_ends(path: Path) -> tuple[Extent, ...]:
    """Return the first and the last line of a file."""
    size = _size(path)
    begin, newline, room = size, -1, 1 << 16
    try:
        with path.open("rb") as file:
            while newline < 0 < begin:
                begin = max(0, size - room)
                file.seek(begin)
                newline = file.read(size - begin)[:-1].rfind(b"\n")
                room *= 4
    except OSError:
        return ()
    last = begin + newline + 1
    edges = (Extent(path, 0, 1), Extent(path, last, size)) if last else (Extent(path, 0, 1),)
    return edges if size else ()


def _survey(path: Path) -> _File | None:
    offsets, times = [0], [BEGINNING]
    place = 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                begin = 0 if place == 0 else block.find(b"\n") + 1
                found = _TIME.search(block, begin) if begin or place == 0 else None
                if found:
                    offsets.append(place + begin)
                    times.append(int(found[1]))
                place += len(block)
    except OSError:
        return _File(path, 1, [0], [BEGINNING])  # whoever reads it will say what is wrong with it
    return _File(path, place, offsets, _rising(times)) if place else None


def _rising(times: Sequence[int]) -> list[int]:
    """Return times without outliers: one damaged number must not hold back everything after it."""
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
    """Return where a file is cut: its begin, the first line at or after each moment, its end."""
    edges = [0]
    lines: list[tuple[int, int]] = []
    at = -1
    for moment in moments:
        block = bisect_left(file.times, moment) - 1  # the last one that began before; the first one always did
        if block != at:
            lines, at = _read_block(file, block), block
        edges.append(max(edges[-1], next(place for time, place in lines if time >= moment)))
    return [*edges, file.size]


def _read_block(file: _File, block: int) -> list[tuple[int, int]]:
    """Return when each line of a block was written and where it begins; at last, where the block ends."""
    begin = file.offsets[block]
    end = file.offsets[block + 1] if block + 1 < len(file.offsets) else file.size
    try:
        with file.path.open("rb") as opened:
            opened.seek(begin)
            return [*_line_times(opened.read(end - begin), begin), (END, end)]
    except OSError:
        return [(END, end)]


def _line_times(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin) + 1 or len(data)
        if found := _TIME.search(data, begin, end):
            yield int(found[1]), offset + begin
        begin = end


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _next_line(path: Path, place: int, length: int) -> int:
    """Return where the first line begins that does not begin before ``place``."""
    if place >= length:
        return length
    with path.open("rb") as file:
        file.seek(place - 1)
        file.readline()
        return min(file.tell(), length)
