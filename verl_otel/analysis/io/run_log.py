# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the run log: files that grow, that are rotated, that end in the middle of a line, and the logs of verl's own ``file`` and ``console`` loggers."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from verl_otel._internal import rotated_files, safe_files
from verl_otel.semconv import logs

T = TypeVar("T")
Record = dict[str, Any]
"""A line of the run log; see `verl_otel.semconv.logs` for its keys."""
TRACKED: Final = "scalars"
"""Scope of the lines of verl's ``file`` and ``console`` loggers."""
LOOKED_AT: Final = 100
"""Lines of a file in which one of the ``file`` logger is looked for."""
CONSOLE_LOOKED_AT: Final = 100_000
"""The same for the ``console`` logger: the output of Ray, engines and data comes before the first step."""
MAX_CONSOLE_LINE: Final = 1 << 20
"""Bytes of a line of the console; longer ones are no step: verl has hundreds of scalars, not ten thousands."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONSOLE_STEP: Final = re.compile(r"(?<![\w/.-])step:(\d{1,15}) - ")
_CONSOLE_SCALAR: Final = re.compile(r"(\S+):(?:\w+\.\w+\()?([^\s():]+)\)?(?!\S)")
_FLAGS: Final = {"True": 1.0, "False": 0.0}
MAX_BLOCK: Final = 4 << 20
"""Bytes that a tail reads at once."""


def find_files(places: Iterable[Path]) -> list[Path]:
    """Return the files of the run log in folders of a run, the oldest part of each first. A place that is a file is one itself."""
    found = []
    for place in places:
        found += [place] if place.is_file() else rotated_files.find(place, logs.FILE)
    return found


def find_metrics(places: Iterable[Path]) -> list[Path]:
    """Return the metrics files in folders of a run, the oldest part of each first."""
    return [path for place in places for path in rotated_files.find(place, "metrics-")]


def is_rotated(path: Path) -> bool:
    """Return whether a file is an older part, to which nothing is appended."""
    return rotated_files.number_of(path) > 0


def parse(line: bytes) -> Record | None:
    """Return the record of a line; None for one that is cut off, damaged or something else.

    A line of verl's ``file`` logger, ``{"step": 1, "data": {...}}``, becomes a record of the scope ``scalars``.
    """
    try:
        record = safe_files.parse_json(line)
    except safe_files.DamagedError:
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("data"), dict) and logs.SCOPE not in record:
        return {logs.LEVEL: "INFO", logs.SCOPE: TRACKED, logs.STEP: record.get("step"), **record["data"]}
    return record if isinstance(record.get(logs.SCOPE), str) else None


def parse_console(line: bytes) -> Record | None:
    """Return the record of a line of verl's ``console`` logger; None for other output.

    Such a line is ``step:12 - actor/pg_loss:0.1 - timing_s/gen:np.float64(3.2)``, after what Ray writes before the lines of a worker, in colour. What
    other processes have written into the line is passed over. NaN and infinity are numbers here.
    """
    if b"step:" not in line or len(line) > MAX_CONSOLE_LINE:
        return None
    text = _COLOUR.sub("", line.decode("utf-8", "replace"))
    begin = _CONSOLE_STEP.search(text)
    if begin is None:
        return None
    values: dict[str, float] = {}
    for part in text[begin.end() :].split(" - "):
        scalar = _CONSOLE_SCALAR.match(part)
        if scalar is not None:
            try:
                values[scalar[1]] = _FLAGS[scalar[2]] if scalar[2] in _FLAGS else float(scalar[2])
            except ValueError:
                continue
    return {**values, logs.LEVEL: "INFO", logs.SCOPE: TRACKED, logs.STEP: int(begin[1])} if values else None


def is_tracked(record: Record) -> bool:
    """Return whether a record is a line of verl's ``file`` logger; those of the run log have a time stamp."""
    return record[logs.SCOPE] == TRACKED and logs.TIMESTAMP not in record


def find_logger(path: Path) -> str:
    """Return whose log a file is by its first lines: verl's ``file`` or ``console`` logger; empty: of neither."""
    first = itertools.islice(read_lines([path]), LOOKED_AT)
    if any(record is not None and is_tracked(record) for record in first):
        return "file"
    return "console" if any(itertools.islice(read_lines([path], parse_console), CONSOLE_LOOKED_AT)) else ""


def read_tracked(paths: Iterable[Path]) -> Iterator[Record | None]:
    """Yield the record of each line that verl's own loggers have written; None for a damaged line of the ``file`` logger."""
    for path in paths:
        if find_logger(path) == "console":
            yield from filter(None, read_lines([path], parse_console))
        else:
            yield from (one if one is not None and is_tracked(one) else None for one in read_lines([path]))


def read(places: Iterable[Path]) -> Iterator[Record]:
    """Yield the records of a run in the order of time, those of all its processes and nodes.

    Args:
        places: Folders of the run, or files.
    """
    by_process: dict[str, list[Path]] = {}
    for path in find_files(places):
        by_process.setdefault(str(path.parent / rotated_files.whole_name(path)), []).append(path)
    return heapq.merge(*(filter(None, read_lines(paths)) for paths in by_process.values()), key=time_of)


def time_of(record: Record) -> str:
    """Return the time stamp of a record; empty without one."""
    return str(record.get(logs.TIMESTAMP, ""))


def read_lines(paths: Iterable[Path], parse: Callable[[bytes], Record | None] = parse) -> Iterator[Record | None]:
    """Yield the record of each line of some files, one after the other; None for a line that is no record, see `parse`."""
    for path in paths:
        try:
            with rotated_files.open_lines(path) as file:
                for _, line, _ in safe_files.read_lines(file, 0, rotated_files.size_of(path)):
                    yield None if line is None else parse(line)
        except OSError:  # rotated or deleted meanwhile
            continue


class Tail(Generic[T]):
    """Reads what is appended to a file, also after it was rotated.

    Args:
        path: The file, which need not exist.
        parse: Returns what a line has; None for one that is passed over.
        skip: Whether what it has now is passed over.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T | None], *, skip: bool = False) -> None:
        self._path = path
        self._parse = parse
        self._inode = 0
        self._place = 0
        self._rest = b""
        if skip:
            for _ in self.read():
                pass

    def read(self) -> Iterator[T]:
        """Yield what the lines have that were completed since the last call. A file that is replaced is read to its end first."""
        try:
            state = self._path.stat()
        except OSError:
            return
        if self._inode and state.st_ino != self._inode:
            yield from self._read_rotated()
        if state.st_ino != self._inode or rotated_files.size_of(self._path) < self._place:
            self._inode, self._place, self._rest = state.st_ino, 0, b""
        yield from self._read_from(self._path)

    def _read_rotated(self) -> Iterator[T]:
        rotated = rotated_files.name_part(self._path, 1)
        try:
            if rotated.stat().st_ino == self._inode:
                yield from self._read_from(rotated)
        except OSError:
            return

    def _read_from(self, path: Path) -> Iterator[T]:
        try:
            with rotated_files.open_lines(path) as file:
                file.seek(self._place)
                while block := file.read(MAX_BLOCK):
                    self._place += len(block)
                    *lines, self._rest = (self._rest + block).split(b"\n")
                    if len(self._rest) > safe_files.MAX_LINE:
                        self._rest = b""
                    for line in lines:
                        record = self._parse(line)
                        if record is not None:
                            yield record
        except OSError:
            return
