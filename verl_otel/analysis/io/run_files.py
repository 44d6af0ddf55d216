# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a run, complete or truncated: lines of parts of files, and the processes that wrote them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from verl_otel._internal import rotated_files, safe_files
from verl_otel.analysis.io import otlp_json
from verl_otel.analysis.model import Event, OpenSpan
from verl_otel.errors import VerlOtelError
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr

_Group = TypeVar("_Group", list[SpanRecord], list[otlp_json.PointRecord])
MAX_PROBLEMS: Final = 20
"""Maximum number of damaged lines of one slice that are listed; the others are counted."""
_BUFFER_BYTES: Final = 1 << 20
"""Buffer size. A line of 256 spans has 200 kB: with the default buffer it would be joined from 25 pieces."""


class Extent(NamedTuple):
    """A part of a file: the lines that begin in it."""

    path: Path
    begin: int
    end: int


class Writers:
    """The processes that wrote the files, numbered in the order of first occurrence."""

    def __init__(self) -> None:
        self.resources: list[dict[str, AttributeValue]] = []
        self.newest: list[int] = []
        self._by_raw: dict[bytes, int] = {}
        self._by_key: dict[tuple[str, str, str], int] = {}

    def index(self, raw: bytes) -> int:
        """Return the index of the process with a raw resource."""
        index = self._by_raw.get(raw)
        if index is None:
            index = self._by_raw[raw] = self.add(otlp_json.read_resource(raw), 0)
        return index

    def add(self, attributes: dict[str, AttributeValue], newest: int) -> int:
        """Add a process, or update the resource of a known one; return its index."""
        key = (
            str(attributes.get(attr.HOST_NAME)),
            str(attributes.get(attr.PROCESS_ID)),
            str(attributes.get(attr.SERVICE_INSTANCE)),
        )
        index = self._by_key.setdefault(key, len(self.resources))
        if index == len(self.resources):
            self.resources.append(dict(attributes))
            self.newest.append(newest)
        else:  # attributes of the run are added to a resource later
            self.resources[index].update(attributes)
            self.note_alive(index, newest)
        return index

    def note_alive(self, index: int, time_ns: int) -> None:
        """Record that a process was alive at a time."""
        self.newest[index] = max(self.newest[index], time_ns)


def find_files(folders: Iterable[Path], kind: str) -> list[Path]:
    """Return the files of a kind (``traces``, ``metrics``, ``open``) in all folders of a run."""
    return [path for folder in folders for path in rotated_files.find(folder, f"{kind}-")]


def holds_run(folder: Path) -> bool:
    """Return whether a folder contains a file of a run."""
    return bool(rotated_files.find(folder, "")) or (folder / "run.json").exists()


def check_folders(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the folders of one run, each once.

    Raises:
        FileNotFoundError: A folder does not exist or contains no file of a run.
        VerlOtelError: They are folders of different runs.
    """
    by_place: dict[Path, Path] = {}
    for folder in folders:
        by_place.setdefault(folder.resolve(), folder)
        if not holds_run(folder):
            raise FileNotFoundError(f"{folder} holds no run: expected traces-*.jsonl")
    unique = tuple(by_place.values())
    if len(unique) > 1:
        _check_ids(unique)
    return unique


def _check_ids(folders: Iterable[Path]) -> None:
    """Reject folders of different runs: step numbers and process ids would be mixed. All nodes of a run share one run id."""
    by_id: dict[str, Path] = {}
    for folder in folders:
        run_id = _find_id(folder)
        if run_id:
            by_id.setdefault(run_id, folder)
    if len(by_id) > 1:
        named = ", ".join(f"{folder} ({run_id})" for run_id, folder in by_id.items())
        raise VerlOtelError(f"these are folders of different runs: {named}; compare them with verl-otel compare")


def _find_id(folder: Path) -> str:
    """Return the id of the run in a folder, from its manifest or from a process; empty if neither has one."""
    run_id = read_manifest([folder]).get("run_id")
    if run_id:
        return str(run_id)
    for kind in ("traces", "open", "metrics"):
        read = read_points if kind == "metrics" else read_spans
        writers = Writers()
        for _ in read((Extent(path, 0, 1) for path in find_files([folder], kind)), writers, []):
            attribute = str(writers.resources[-1].get(attr.RUN_ID, ""))
            if attribute:
                return attribute
    return ""


def read_lines(extents: Iterable[Extent], problems: list[str]) -> Iterator[tuple[Extent, int, bytes]]:
    """Return the lines of parts of files, with their offsets."""
    for extent in extents:
        try:
            with rotated_files.open_lines(extent.path, buffering=_BUFFER_BYTES) as file:
                for place, line, length in safe_files.read_lines(file, extent.begin, extent.end):
                    if line is not None:
                        yield extent, place, line
                    elif len(problems) < MAX_PROBLEMS:
                        problems.append(_describe_long(extent.path, length))
        except OSError as error:
            problems.append(f"{extent.path.name} cannot be read ({error.strerror})")


def _describe_long(path: Path, length: int) -> str:
    limit = safe_files.MAX_LINE >> 20
    return (
        f"{path.name} has a line of {length / (1 << 20):.0f} MiB, of which at most {limit} are read; the rest was used"
    )


def read_spans(
    extents: Iterable[Extent], writers: Writers, problems: list[str]
) -> Iterator[tuple[int, list[SpanRecord]]]:
    """Return the spans of parts of files with the index of the process that wrote them; errors are added to ``problems``."""
    return _read_groups(otlp_json.read_spans, extents, writers, problems)


def read_points(
    extents: Iterable[Extent], writers: Writers, problems: list[str]
) -> Iterator[tuple[int, list[otlp_json.PointRecord]]]:
    """Return the points of parts of metrics files, as `read_spans` does."""
    return _read_groups(otlp_json.read_points, extents, writers, problems)


def _read_groups(
    decode: Callable[[bytes], Iterable[tuple[bytes, _Group]]],
    extents: Iterable[Extent],
    writers: Writers,
    problems: list[str],
) -> Iterator[tuple[int, _Group]]:
    damaged = _Damage(problems)
    for extent, place, line in read_lines(extents, problems):
        try:
            groups = [(writers.index(raw), records) for raw, records in decode(line)]
        except otlp_json.UNREADABLE as error:
            damaged.note(extent.path, place, line, error)
            continue
        yield from groups


def read_open(folders: Iterable[Path], writers: Writers, problems: list[str]) -> list[OpenSpan]:
    """Return the open spans that processes last wrote. They may have ended since."""
    open_spans = []
    extents = [Extent(path, 0, path.stat().st_size) for path in find_files(folders, "open") if path.exists()]
    for process, spans in read_spans(extents, writers, problems):
        for span in spans:
            values = span.attributes
            written, age = values.get(attr.OPEN_WRITTEN), values.get(attr.OPEN_AGE)
            written_ns = written if isinstance(written, int) else 0
            seconds = float(age) if isinstance(age, (int, float)) and math.isfinite(age) else 0.0
            open_spans.append(OpenSpan(span, process, seconds, written_ns, str(values.get(attr.OPEN_LAST_CHILD, ""))))
            writers.note_alive(process, written_ns)
    return open_spans


def read_manifest(folders: Iterable[Path]) -> dict[str, Any]:
    """Return ``run.json`` of the first folder that has a readable one."""
    for folder in folders:
        try:
            manifest = safe_files.read_json(folder / "run.json")
        except (OSError, ValueError):
            continue
        if manifest and isinstance(manifest, dict):
            return manifest
    return {}


class _Damage:
    """Describes the first damaged lines."""

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
    with rotated_files.open_lines(path) as file:
        while place > 0 and (block := file.read(min(place, 1 << 20))):
            number += block.count(b"\n")
            place -= len(block)
    return number


# -- Reads the events that were recorded during the run (``events.jsonl`` in its folder) --

NAME: Final = "events.jsonl"
RESOLVED: Final = "resolved"
"""Kind of a line that ends the stall with the same key."""
SUPERSEDED: Final = "superseded"
"""Text of such a line where the process did not continue: another event describes it."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def read_events(folders: Iterable[Path], problems: list[str]) -> tuple[Event, ...]:
    """Return the events of a run in the order of time; stalls that are over are marked as such.

    Args:
        folders: The run's folder, or one for each node.
        problems: Receives a message for each line that cannot be read.
    """
    events: list[Event] = []
    for folder in folders:
        for number, line in enumerate(_read_lines(folder / NAME, problems), 1):
            try:
                if line is None:
                    raise safe_files.DamagedError("too long")
                events.append(_read_line(line))
            except _UNREADABLE as error:
                if (line is None or line.strip()) and len(problems) < MAX_PROBLEMS:
                    problems.append(f"{NAME} line {number} cannot be read ({type(error).__name__}); the rest was used")
    events.sort(key=lambda event: event.time_ns)
    return _resolve(events)


def _read_lines(path: Path, problems: list[str]) -> Iterator[bytes | None]:
    """Yield the lines of a file, None for one that is too long; no lines if there is no such file."""
    try:
        with safe_files.open_regular(path) as file:
            for _, line, _ in safe_files.read_lines(file, 0, os.fstat(file.fileno()).st_size):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{NAME} cannot be read ({error.strerror})")


def _read_line(line: bytes) -> Event:
    record = safe_files.parse_json(line)
    kind, detail = str(record["kind"]), record.get("detail")
    text = str(record["text"]).removeprefix(f"{kind.upper()} ")  # the kind is shown separately
    return Event(kind, safe_files.parse_int64(record["time_ns"]), text, detail if isinstance(detail, dict) else {})


def _resolve(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events without the resolving ones; a resolved event tells after how long."""
    resolved: list[Event] = []
    for event in events:
        if event.kind != RESOLVED:
            resolved.append(event)
            continue
        if event.text == SUPERSEDED:
            continue
        for index in range(len(resolved) - 1, -1, -1):
            ended = resolved[index]
            if ended.detail.get("key") == event.detail.get("key"):
                after = (event.time_ns - ended.time_ns) / 1e9
                resolved[index] = ended._replace(
                    text=f"{ended.text}; it went on {after:.0f} s later", detail={**ended.detail, "resolved": after}
                )
                break
    return tuple(resolved)
