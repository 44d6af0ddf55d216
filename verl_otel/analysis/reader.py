# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read a run's files, whole or cut off: lines of ranges of files, and the processes that wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from verl_otel.analysis import otlp
from verl_otel.errors import VerlOtelError
from verl_otel.model import AttributeValue, Resource, SpanRecord
from verl_otel.semconv import attributes as attr

_Group = TypeVar("_Group", list[SpanRecord], list[otlp.PointRecord])
MAX_PROBLEMS: Final = 20
"""How many damaged lines of one slice are named; the others are counted."""
_BUFFER_BYTES: Final = 1 << 20
"""A line of 256 spans has 200 kB: with the usual buffer it would be put together out of 25 pieces."""


class Process(NamedTuple):
    """One process that wrote files."""

    resource: Resource
    newest_ns: int
    """When the newest thing was written that we know of."""
    ended: bool
    """Whether it closed its files in order (nothing was left open)."""

    @property
    def instance(self) -> str:
        """``<role>-<number>``, as shown to people."""
        return self.resource.text(attr.SERVICE_INSTANCE).rpartition("/")[2]

    @property
    def label(self) -> str:
        """Instance, process id and host, as shown to people."""
        return f"{self.instance} (pid {self.resource.text(attr.PROCESS_ID)} on {self.resource.text(attr.HOST_NAME)})"


class Open(NamedTuple):
    """A span that had begun and not ended when it was written last."""

    span: SpanRecord
    process: int
    age: float
    written_ns: int
    last_child: str


class Extent(NamedTuple):
    """A part of a file: the lines that begin in it."""

    path: Path
    begin: int
    end: int


class Writers:
    """The processes that wrote what was read, numbered in the order in which they were met."""

    def __init__(self) -> None:
        self.resources: list[dict[str, AttributeValue]] = []
        self.newest: list[int] = []
        self._by_raw: dict[bytes, int] = {}
        self._by_key: dict[tuple[str, str, str], int] = {}

    def index(self, raw: bytes) -> int:
        """Return the number of the process that a raw resource describes."""
        known = self._by_raw.get(raw)
        if known is None:
            known = self._by_raw[raw] = self.add(otlp.read_resource(raw), 0)
        return known

    def add(self, attributes: dict[str, AttributeValue], newest: int) -> int:
        """Take a process, or more of what a known one says of itself; return its number."""
        key = (
            str(attributes.get(attr.HOST_NAME)),
            str(attributes.get(attr.PROCESS_ID)),
            str(attributes.get(attr.SERVICE_INSTANCE)),
        )
        index = self._by_key.setdefault(key, len(self.resources))
        if index == len(self.resources):
            self.resources.append(dict(attributes))
            self.newest.append(newest)
        else:  # a process learns later what the run is
            self.resources[index].update(attributes)
            self.saw(index, newest)
        return index

    def saw(self, index: int, time_ns: int) -> None:
        """Note that a process was alive at a time."""
        self.newest[index] = max(self.newest[index], time_ns)


def find_files(folders: Iterable[Path], kind: str) -> list[Path]:
    """Return the files of a kind (``traces``, ``metrics``, ``open``) in all folders of a run."""
    return [path for folder in folders for path in sorted(folder.glob(f"{kind}-*.jsonl"))]


def check_folders(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the folders of one run, each once.

    Raises:
        FileNotFoundError: A folder does not exist or holds no file of ours.
        VerlOtelError: They are folders of different runs.
    """
    by_place: dict[Path, Path] = {}
    for folder in folders:
        by_place.setdefault(folder.resolve(), folder)
        if not any(folder.glob("*.jsonl")) and not (folder / "run.json").exists():
            raise FileNotFoundError(f"{folder} holds no run: expected traces-*.jsonl")
    found = tuple(by_place.values())
    if len(found) > 1:
        _check_ids(found)
    return found


def _check_ids(folders: Iterable[Path]) -> None:
    """Refuse folders of different runs: numbers of steps and ids of processes would be mixed. All nodes of a run know its one id."""
    by_id: dict[str, Path] = {}
    for folder in folders:
        known = _find_id(folder)
        if known:
            by_id.setdefault(known, folder)
    if len(by_id) > 1:
        told = ", ".join(f"{folder} ({known})" for known, folder in by_id.items())
        raise VerlOtelError(f"these are folders of different runs: {told}; compare them with verl-otel compare")


def _find_id(folder: Path) -> str:
    """Return the id of the run that a folder is of, as its record or else a process in it says; empty if neither does."""
    known = read_manifest([folder]).get("run_id")
    if known:
        return str(known)
    for kind in ("traces", "open", "metrics"):
        read = read_points if kind == "metrics" else read_spans
        writers = Writers()
        for _ in read((Extent(path, 0, 1) for path in find_files([folder], kind)), writers, []):
            found = str(writers.resources[-1].get(attr.RUN_ID, ""))
            if found:
                return found
    return ""


def read_lines(extents: Iterable[Extent], problems: list[str]) -> Iterator[tuple[Extent, int, bytes]]:
    """Return the lines of parts of files, with where each begins."""
    for extent in extents:
        try:
            with extent.path.open("rb", _BUFFER_BYTES) as file:
                place = file.seek(extent.begin)
                while place < extent.end and (line := file.readline()):
                    yield extent, place, line
                    place += len(line)
        except OSError as error:
            problems.append(f"{extent.path.name} cannot be read ({error.strerror})")


def read_spans(
    extents: Iterable[Extent], writers: Writers, problems: list[str]
) -> Iterator[tuple[int, list[SpanRecord]]]:
    """Return the spans of parts of files with the number of the process that wrote them; damage goes to ``problems``."""
    return _read_groups(otlp.read_spans, extents, writers, problems)


def read_points(
    extents: Iterable[Extent], writers: Writers, problems: list[str]
) -> Iterator[tuple[int, list[otlp.PointRecord]]]:
    """Return the points of parts of metrics' files, as `read_spans` does."""
    return _read_groups(otlp.read_points, extents, writers, problems)


def _read_groups(
    decode: Callable[[bytes], Iterable[tuple[bytes, _Group]]],
    extents: Iterable[Extent],
    writers: Writers,
    problems: list[str],
) -> Iterator[tuple[int, _Group]]:
    damaged = _Damage(problems)
    for extent, place, line in read_lines(extents, problems):
        try:
            groups = [(writers.index(raw), found) for raw, found in decode(line)]
        except otlp.UNREADABLE as error:
            damaged.note(extent.path, place, line, error)
            continue
        yield from groups


def read_open(folders: Iterable[Path], writers: Writers, problems: list[str]) -> list[Open]:
    """Return what processes had open when they wrote it last. It may have ended since."""
    found = []
    extents = [Extent(path, 0, path.stat().st_size) for path in find_files(folders, "open") if path.exists()]
    for process, spans in read_spans(extents, writers, problems):
        for span in spans:
            values = span.attributes
            written, age = values.get(attr.OPEN_WRITTEN), values.get(attr.OPEN_AGE)
            known = written if isinstance(written, int) else 0
            seconds = float(age) if isinstance(age, (int, float)) and math.isfinite(age) else 0.0
            found.append(Open(span, process, seconds, known, str(values.get(attr.OPEN_LAST_CHILD, ""))))
            writers.saw(process, known)
    return found


def read_manifest(folders: Iterable[Path]) -> dict[str, Any]:
    """Return ``run.json`` of the first folder that has a readable one."""
    for folder in folders:
        try:
            found = json.loads((folder / "run.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if found and isinstance(found, dict):
            return found
    return {}


class _Damage:
    """Puts the first damaged lines into words."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._count = 0

    def note(self, path: Path, place: int, line: bytes, error: Exception) -> None:
        if not line.strip():
            return
        self._count += 1
        if self._count > MAX_PROBLEMS:
            return
        if self._count == MAX_PROBLEMS:
            self._problems.append(f"{path.name}: more lines cannot be read")
            return
        where = f"line {_line_number(path, place)} cannot be read"
        cut = "ends in the middle of a line" if line[-1:] != b"\n" else where
        self._problems.append(f"{path.name} {cut} ({type(error).__name__}); the rest was used")


def _line_number(path: Path, place: int) -> int:
    number = 1
    with path.open("rb") as file:
        while place > 0 and (block := file.read(min(place, 1 << 20))):
            number += block.count(b"\n")
            place -= len(block)
    return number
