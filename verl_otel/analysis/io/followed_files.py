# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Follows files that grow by whole lines and are rotated: each line is returned once, roughly in the order of time.

Every process writes its ended spans once a second, so each file is ordered by time to within a second. Of several files with unread lines, the
one that is furthest behind is read next.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from verl_otel._internal import rotated_files, safe_files
from verl_otel._internal.rotated_files import Head
from verl_otel.analysis.io.run_files import Extent

CHUNK_BYTES: Final = 256 << 10
"""Bytes that are read of one file before another one may be next, at most."""
ROUND_BYTES: Final = 64 << 20
"""Bytes of a chunk of each file: of a thousand files less is read of each, because the traces of a chunk wait for the chunks of all files."""
LEAST_CHUNK_BYTES: Final = 16 << 10
TIME: Final = {
    "traces": re.compile(rb'"endTimeUnixNano": ?"?(\d{1,19})[^\d]'),
    "metrics": re.compile(rb'"timeUnixNano": ?"?(\d{1,19})[^\d]'),
}
"""The first time of a line, by the kind of file."""
ORDER_NS: Final = 2_000_000_000
"""Lines of a file are ordered to within this: the drain interval, and a second to write."""
_LEAP_NS: Final = 30 * 86_400_000_000_000
"""A time that is further ahead of the one before is damaged; so is a file's first time that is further ahead of the clock."""


MAX_PARTS: Final = 50_000
"""Parts of files whose times are kept, 200 bytes each. Of a run with more, adjacent ones are joined."""
_NO_HEAD: Final = Head(0, b"")


class Piece(NamedTuple):
    """Lines that were not read before."""

    extents: tuple[Extent, ...]
    watermark_ns: int
    """Everything that ended before this time has been read. It never falls."""
    is_last: bool = False
    """Whether it has all that was written at the last look."""


class _File(msgspec.Struct):
    key: str
    """Device and inode."""
    path: Path
    size: int
    head: Head = _NO_HEAD
    """Its beginning, as much as it had when it was found."""
    modified_ns: int = 0
    offset: int = 0
    last_ns: int = 0
    """Time of the last line that was returned; of the first line if there is none; 0 if that is not known."""
    number: int = 0
    """It has this number under any name, and when it is compressed, too."""

    @property
    def is_behind(self) -> bool:
        return self.offset < self.size


class _Part(NamedTuple):
    """Lines that were read, and the times of their spans on the clock of the host that wrote them."""

    file: int
    begin: int
    end: int
    first_ns: int
    """When the first of the spans starts."""
    last_ns: int
    """When the last one ends."""


class FollowedFiles(msgspec.Struct, dict=True):
    """The files of one kind in the folders of a run."""

    folders: tuple[Path, ...]
    _kind: str
    """``traces`` or ``metrics``."""
    _files: dict[str, _File] = {}
    """By device and inode: a file keeps them when it is rotated, until it is compressed."""
    _newest_ns: int = 0
    _watermark_ns: int = 0
    _closed: dict[str, str] = {}
    """Why a file could not be read, such as that it belongs to another user, by its path."""
    _parts: list[_Part] = []
    """In the order in which they were read."""
    _added: int = 0

    def __post_init__(self) -> None:
        """Begin before the first look."""
        self._grown_at: float | None = None
        """When a new line was last seen, on the monotonic clock; None: there was no look yet."""

    @property
    def is_behind(self) -> bool:
        """Whether there were unread lines at the last look."""
        return any(file.is_behind for file in self._files.values())

    @property
    def problems(self) -> list[str]:
        """A message for each file that cannot be read."""
        return [f"{Path(path).name} cannot be read ({reason})" for path, reason in self._closed.items()]

    @property
    def chunk_bytes(self) -> int:
        """Bytes that are read of one file before another one may be next; more if a line is longer."""
        return min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, ROUND_BYTES // max(1, len(self._files))))

    @property
    def round_bytes(self) -> int:
        """Bytes of a chunk of each file."""
        return self.chunk_bytes * len(self._files)

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read, and of all, at the last look."""
        return sum(file.offset for file in self._files.values()), sum(file.size for file in self._files.values())

    def look(self) -> list[Path]:
        """Look for new files and new lines; return the new files."""
        seen: dict[str, _File] = {}
        added = []
        newest = 0.0
        sizes = {key: file.size for key, file in self._files.items()}
        for path, status in self._scan():
            key = _name(status)
            file = self._files.get(key)
            compressed = rotated_files.is_compressed(path)
            changed = file is not None and (status.st_mtime_ns != file.modified_ns or path != file.path)
            if file is not None and changed and not rotated_files.has_head(path, file.head):
                file = None  # another file has the inode of one that was removed
            if file is None:
                file = self._find_again(path, key)
            size = file.size if compressed and file is not None else status.st_size
            if file is None or size < file.offset:  # new, or replaced
                file = self._add(key, path, status.st_size)
                added.append(path)
            else:
                file.path, file.size = path, size
            file.modified_ns = status.st_mtime_ns
            newest = max(newest, status.st_mtime)
            seen[key] = file
        if self._grown_at is None or not self._files:
            self._grown_at = time.monotonic() - max(0.0, time.time() - newest)
        elif any(key not in self._files or file.size > sizes.get(key, 0) for key, file in seen.items()):
            self._grown_at = time.monotonic()
        self._files = seen
        return added

    def _add(self, key: str, path: Path, size: int) -> _File:
        """Return a file that was not known, with its first time."""
        self._added += 1
        file = _File(key, path, size, number=self._added)
        try:
            file.size = rotated_files.size_of(path)
            file.head = rotated_files.read_head(path)
            self._note_time(file, self._read_time(file, CHUNK_BYTES)[0])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # those were deleted or rotated meanwhile
                self._closed[str(path)] = error.strerror or type(error).__name__
        return file

    def _find_again(self, path: Path, key: str) -> _File | None:
        """Return what was read of a file before it was compressed, or replaced by a copy; None if it was not known."""
        name = rotated_files.whole_name(path)
        for file in self._files.values():
            known = rotated_files.whole_name(file.path) == name and file.path.parent == path.parent
            if known and rotated_files.has_head(path, file.head):
                with contextlib.suppress(OSError):
                    size = rotated_files.size_of(path)
                    return msgspec.structs.replace(file, key=key, path=path, size=max(size, file.offset))
        return None

    def take(self, budget: int) -> Piece:
        """Return unread lines of about this many bytes.

        Args:
            budget: Bytes; at least one line is returned if there is one.
        """
        taken: dict[Path, Extent] = {}
        length = self.chunk_bytes
        behind = [(file.last_ns, key) for key, file in self._files.items() if file.is_behind]
        heapq.heapify(behind)
        while budget > 0 and behind:
            file = self._files[heapq.heappop(behind)[1]]
            begin, end = file.offset, self._find_end(file, length)
            if end == begin:  # half a line: the rest is not written yet
                file.size = begin
                continue
            taken[file.path] = Extent(file.path, taken[file.path].begin if file.path in taken else begin, end)
            file.offset = end
            budget -= end - begin
            if file.is_behind:
                heapq.heappush(behind, (file.last_ns, file.key))
        return Piece(tuple(taken.values()), self._advance(), is_last=not self.is_behind)

    def take_rest(self) -> Piece:
        """Return what follows the last whole line of each file."""
        rest = []
        for file in self._files.values():
            with contextlib.suppress(OSError):  # it was deleted or rotated meanwhile
                size = rotated_files.size_of(file.path)
                if size > file.offset:
                    rest.append(Extent(file.path, file.offset, size))
                    file.offset = file.size = size
        return Piece(tuple(rest), self._advance())

    def note(self, times: Mapping[Extent, tuple[int, int]]) -> None:
        """Note the times of the spans that the last piece had, so that `find` finds them again.

        Args:
            times: First start and last end of the spans of each extent that has some.
        """
        numbers = {file.path: file.number for file in self._files.values()}
        self._parts += [
            _Part(numbers[extent.path], extent.begin, extent.end, *found) for extent, found in times.items()
        ]
        if len(self._parts) > MAX_PARTS:
            present = set(numbers.values())
            self._parts = _join([part for part in self._parts if part.file in present], MAX_PARTS // 2)

    def find(self, begin_ns: int, end_ns: int) -> Iterator[Extent]:
        """Yield what was read and has spans in a period, in the order in which it was read, wherever it is now.

        Args:
            begin_ns: Spans that ended before are not needed.
            end_ns: Nor are those that begin at this time or after it.
        """
        self.look()
        paths = {file.number: file.path for file in self._files.values()}
        for part in self._parts:
            if part.last_ns >= begin_ns and part.first_ns < end_ns and part.file in paths:
                yield Extent(paths[part.file], part.begin, part.end)

    def _advance(self) -> int:
        """Return the watermark. A silent run does not hold its last spans back: time passes in it, too."""
        behind = [file.last_ns for file in self._files.values() if file.is_behind]
        if behind:
            known = min(behind)
        else:
            silent = 0.0 if self._grown_at is None else time.monotonic() - self._grown_at
            known = self._newest_ns + round(silent * 1e9) if self._newest_ns else 0
        self._watermark_ns = max(self._watermark_ns, known - ORDER_NS)
        return self._watermark_ns

    def _scan(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in self.folders:
            try:
                paths = rotated_files.find(folder, f"{self._kind}-")
            except OSError:  # it cannot be read for a while
                continue
            for path in paths:
                try:
                    yield path, path.stat()
                except OSError:  # it was deleted or rotated meanwhile
                    continue

    def _find_end(self, file: _File, length: int) -> int:
        """Return the end of the last whole line of the next chunk of about this many bytes, and note its time.

        Returns:
            The offset if no line is whole, or if the file cannot be read at its path until the next look.
        """
        while True:
            end = min(file.offset + length, file.size)
            try:
                time_ns, newline = self._read_time(file, end - file.offset, last=True)
            except OSError:
                return file.offset
            self._closed.pop(str(file.path), None)
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
            if _name(status) != file.key:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file.path))
            opened.seek(file.offset)
            data = opened.read(length)
        end = data.rfind(b"\n") + 1
        begin = data.rfind(b"\n", 0, max(0, end - 1)) + 1 if last else 0
        match = TIME[self._kind].search(data, begin)
        return (int(match[1]) if match else 0), end


def _join(parts: Sequence[_Part], most: int) -> list[_Part]:
    """Join parts with the next ones of their file until there are at most this many, or one of each file."""
    joined, length = list(parts), CHUNK_BYTES
    most = max(most, len({part.file for part in parts}))
    while len(joined) > most:
        length *= 2
        rest, joined = joined, []
        newest: dict[int, int] = {}
        for part in rest:
            place = newest.get(part.file)
            if place is None or part.end - joined[place].begin > length:
                newest[part.file] = len(joined)
                joined.append(part)
            else:
                first_ns, last_ns = min(part.first_ns, joined[place].first_ns), max(part.last_ns, joined[place].last_ns)
                joined[place] = joined[place]._replace(end=part.end, first_ns=first_ns, last_ns=last_ns)
    return joined


def _name(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"
