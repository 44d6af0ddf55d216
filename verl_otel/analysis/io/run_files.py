# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a run, complete or truncated: lines, the processes that wrote them, and events."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from verl_otel._internal import rotated_files, safe_files
from verl_otel.analysis.io import otlp_json
from verl_otel.analysis.model import Event, OpenSpan
from verl_otel.errors import VerlOtelError
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr

_Group = TypeVar("_Group", list[SpanRecord], list[otlp_json.PointRecord])
MAX_PROBLEMS: Final = 20
"""Maximum number of damaged lines of one piece that are listed; the others are counted."""
_BUFFER_BYTES: Final = 1 << 20
"""Buffer size. A line of 256 spans has 200 kB: with the default buffer it would be joined from 25 pieces."""


class Extent(NamedTuple):
    """A part of a file: the lines that begin in it."""

    path: Path
    begin: int
    end: int


class Writers(msgspec.Struct, dict=True):
    """The processes that wrote the files, numbered in the order of first occurrence."""

    resources: list[dict[str, AttributeValue]] = []
    oldest: list[int] = []
    """Time of the first record that was read of each; 0: unknown."""
    newest: list[int] = []
    """Time of the last one."""

    def __post_init__(self) -> None:
        """Number the processes that are known."""
        self._by_raw: dict[bytes, int] = {}
        self._by_key = {_name_process(values): index for index, values in enumerate(self.resources)}

    def index(self, raw: bytes) -> int:
        """Return the index of the process with a raw resource."""
        index = self._by_raw.get(raw)
        if index is None:
            index = self._by_raw[raw] = self.add(otlp_json.read_resource(raw))
        return index

    def add(self, attributes: dict[str, AttributeValue], oldest: int = 0, newest: int = 0) -> int:
        """Add a process, or update the resource of a known one; return its index."""
        index = self._by_key.setdefault(_name_process(attributes), len(self.resources))
        if index == len(self.resources):
            self.resources.append(dict(attributes))
            self.oldest.append(oldest)
            self.newest.append(newest)
        else:  # attributes of the run are added to a resource later
            self.resources[index].update(attributes)
            self.note_alive(index, oldest)
            self.note_alive(index, newest)
        return index

    def processes(self) -> tuple[tuple[dict[str, AttributeValue], int, int], ...]:
        """Return the attributes, the oldest and the newest time of all processes."""
        return tuple(zip(self.resources, self.oldest, self.newest, strict=True))

    def note_alive(self, index: int, time_ns: int) -> None:
        """Record that a process was alive at a time; 0: unknown."""
        if time_ns:
            self.oldest[index] = min(self.oldest[index] or time_ns, time_ns)
            self.newest[index] = max(self.newest[index], time_ns)


def _name_process(attributes: Mapping[str, AttributeValue]) -> tuple[str, str, str]:
    names = (attr.HOST_NAME, attr.PROCESS_ID, attr.SERVICE_INSTANCE)
    host, process, instance = (str(attributes.get(name)) for name in names)
    return host, process, instance


def find_files(folders: Iterable[Path], kind: str) -> list[Path]:
    """Return the files of a kind (``traces``, ``metrics``, ``open``) in all folders of a run."""
    return [path for folder in folders for path in rotated_files.find(folder, f"{kind}-")]


def holds_run(folder: Path) -> bool:
    """Return whether a folder contains a file of a run."""
    return bool(rotated_files.find(folder, "")) or has_manifest(folder)


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest, which may be damaged. Other programs write a ``run.json``, too, as Sacred does for each run."""
    try:
        manifest = safe_files.read_json(folder / "run.json")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    if not isinstance(manifest, dict):
        return False
    is_own = isinstance(manifest.get("status"), dict) or any(key.startswith(_OWN_KEYS) for key in manifest)
    return is_own or not manifest


_OWN_KEYS: Final = ("run_id", "verl", "attempts")
"""Beginnings of keys that a manifest has, and a file of that name of another program has not."""


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
    """Reject folders of different runs, whose step numbers would be mixed. All nodes of a run share one run id."""
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
    """Return the spans of parts of files with the index of their process; errors are added to ``problems``."""
    placed = read_placed(otlp_json.read_spans, extents, writers, problems)
    return ((process, spans) for _, process, spans in placed)


def read_points(
    extents: Iterable[Extent], writers: Writers, problems: list[str]
) -> Iterator[tuple[int, list[otlp_json.PointRecord]]]:
    """Return the points of parts of metrics files, as `read_spans` does."""
    placed = read_placed(otlp_json.read_points, extents, writers, problems)
    return ((process, points) for _, process, points in placed)


def read_placed(
    decode: Callable[[bytes], Iterable[tuple[bytes, _Group]]],
    extents: Iterable[Extent],
    writers: Writers,
    problems: list[str],
) -> Iterator[tuple[Extent, int, _Group]]:
    """Return what lines of parts of files hold, by process: spans or points, with the part that has them."""
    damaged = _Damage(problems)
    for extent, place, line in read_lines(extents, problems):
        try:
            groups = [(extent, writers.index(raw), records) for raw, records in decode(line)]
        except otlp_json.UNREADABLE as error:
            damaged.note(extent.path, place, line, error)
            continue
        yield from groups


def read_open(folders: Iterable[Path], writers: Writers, problems: list[str]) -> list[OpenSpan]:
    """Return the open spans that processes last wrote. They may have ended since."""
    open_spans: list[OpenSpan] = []
    damaged = _Damage(problems)
    for path in find_files(folders, "open"):
        rows: dict[int, tuple[int, SpanRecord]] = {}
        file_ns = 0
        for _, place, line in read_lines([Extent(path, 0, _size(path))], problems):
            try:
                groups, ended, line_ns = otlp_json.read_open(line)
                rows |= {span.span_id: (writers.index(raw), span) for raw, spans in groups for span in spans}
            except otlp_json.UNREADABLE as error:
                damaged.note(path, place, line, error)
                continue
            for span_id in ended:
                rows.pop(span_id, None)
            file_ns = max(file_ns, line_ns)
        open_spans += [_read_row(process, span, file_ns) for process, span in rows.values()]
    for row in open_spans:
        writers.note_alive(row.process, row.written_ns)
    return open_spans


def _read_row(process: int, span: SpanRecord, file_ns: int) -> OpenSpan:
    """Return an open span as of the last line of its file."""
    values = span.attributes
    written, age = values.get(attr.OPEN_WRITTEN), values.get(attr.OPEN_AGE)
    written_ns = written if isinstance(written, int) else 0
    seconds = float(age) if isinstance(age, (int, float)) and math.isfinite(age) else 0.0
    since = max(0, file_ns - written_ns) if written_ns else 0
    return OpenSpan(span, process, seconds + since / 1e9, written_ns + since, str(values.get(attr.OPEN_LAST_CHILD, "")))


def read_manifest(folders: Iterable[Path]) -> dict[str, Any]:
    """Return ``run.json`` of the first folder that has a readable one, with the status of all folders."""
    manifests = []
    for folder in folders:
        try:
            manifest = safe_files.read_json(folder / "run.json")
        except (OSError, ValueError):
            continue
        if manifest and isinstance(manifest, dict):
            manifests.append(manifest)
    return {**manifests[0], **merge_status(manifests)} if manifests else {}


def merge_status(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status of a run from the manifests of its nodes, by its key; empty if none has one."""
    found = [status for each in manifests if isinstance(status := each.get("status"), dict)]
    if len(found) < 2:  # noqa: PLR2004 - nothing to merge
        return {"status": found[0]} if found else {}
    trainings = [each for status in found if isinstance(listed := status.get("trainings"), list) for each in listed]
    earlier = [count for status in found if isinstance(count := status.get("earlier_steps"), int)]
    return {"status": {"trainings": trainings, "earlier_steps": sum(earlier)}}


def list_attempts(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the attempts of a run by its manifest, the first one first."""
    attempts = manifest.get("attempts")
    return [each for each in attempts if isinstance(each, dict)] if isinstance(attempts, list) else []


def read_count(manifest: Mapping[str, Any], key: str) -> int:
    """Return a number of verl's configuration, which a manifest may have as a text; 0: it has none."""
    value = str(manifest.get(key))
    return int(value) if value.isdecimal() else 0


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
SAME_NS: Final = 60 * 10**9
"""Time between two reports of one event: monitors of several nodes find it one after the other, and a launcher ends
ranks 30 s after the first."""


def read_events(folders: Iterable[Path], problems: list[str]) -> tuple[Event, ...]:
    """Return the events of a run in the order of time; stalls that are over are marked as such.

    What several processes of a job have reported is one event, that of the first, with their number. ``processes`` in
    its detail names them.

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
            except otlp_json.UNREADABLE as error:
                if (line is None or line.strip()) and len(problems) < MAX_PROBLEMS:
                    problems.append(f"{NAME} line {number} cannot be read ({type(error).__name__}); the rest was used")
    events.sort(key=lambda event: event.time_ns)
    return _merge(_resolve(events))


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


def _merge(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events, those of several processes that are the same as one."""
    groups: list[list[Event]] = []
    newest: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        key = event.kind, str(event.detail.get("group", ""))  # only the watchdog, which runs in each process, names one
        group = newest.get(key) if key[1] else None
        if group is None or event.time_ns - group[-1].time_ns > SAME_NS or _names_again(group, event):
            group = newest[key] = []
            groups.append(group)
        group.append(event)
    return tuple(group[0] if len(group) == 1 else _join(group) for group in groups)


def _names_again(group: Iterable[Event], event: Event) -> bool:
    """Return whether a process of a group reports something once more: that is another event."""
    return any(_process_of(event) == _process_of(other) for other in group)


def _process_of(event: Event) -> tuple[str, str]:
    """Return node and name of the process of an event of the watchdog."""
    key = event.detail.get("key")
    return str(event.detail.get("place", "")), str(key[1]) if isinstance(key, list) and len(key) > 1 else ""


def _join(group: Sequence[Event]) -> Event:
    shown = next((event for event in group if not event.resolved), group[0])
    detail = dict(shown.detail)
    stacks = [event.detail["stacks"] for event in group if isinstance(event.detail.get("stacks"), dict)]
    if stacks:
        detail["stacks"] = {pid: path for each in reversed(stacks) for pid, path in each.items()}
    detail["processes"] = sorted({_process_of(event)[1] for event in group} - {""})
    text = f"{shown.text} (one of {len(group)} processes that report it)"
    return shown._replace(time_ns=group[0].time_ns, text=text, detail=detail)


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


def _size(path: Path) -> int:
    try:
        return rotated_files.size_of(path)
    except OSError:
        return 0


def name_host(resource: Mapping[str, AttributeValue]) -> str:
    """Return the host of a process; empty: it is not known."""
    return str(resource.get(attr.HOST_NAME, ""))


def name_instance(resource: Mapping[str, AttributeValue]) -> str:
    """Return ``<role>-<number>`` of a process."""
    return str(resource.get(attr.SERVICE_INSTANCE, "")).rpartition("/")[2]
