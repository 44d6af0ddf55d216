# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Converts traces that were not written by verl-otel into the files of a run: those of a Collector's file exporter, and of Tempo.

A Collector writes one OTLP/JSON message per line, of all processes, services and runs that send to it, in the order of arrival. Tempo returns
a trace as one document, in which ids are base64 and enumerations are names. The reader of runs expects the spans of one run in the
order of time. They are sorted on disk: by run and minute into files, then each of these in memory.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from verl_otel._internal import safe_files
from verl_otel.analysis.io import otlp_json
from verl_otel.analysis.io.run_files import Extent, read_lines
from verl_otel.errors import VerlOtelError
from verl_otel.model import SAMPLED
from verl_otel.semconv import attributes as attr

MAX_SORTED: Final = 256 << 20
"""Bytes of one minute of a run that are read; a larger one is left out."""
MAX_PARTS: Final = 20_000
"""Minutes of all runs. Spans of further ones are left out."""
MAX_TRACES: Final = 1_000_000
"""Traces of all runs whose spans of other services are found."""
_MINUTE_NS: Final = 60_000_000_000
_SECOND_NS: Final = 1_000_000_000
_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_CODES: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_IDS: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
"""Fields with ids, and their number of bytes."""
FOREIGN: Final = ""
"""Run of the spans of other services."""


class Imported(NamedTuple):
    """The run that was converted."""

    run_id: str
    others: tuple[str, ...]
    """Ids of the other runs in the same files."""
    problems: tuple[str, ...]


def convert(paths: Iterable[Path], folder: Path, wanted: str = "") -> Imported:
    """Write the traces of one run in some files into a folder as ``traces-otlp.jsonl`` and ``run.json``.

    Args:
        paths: OTLP/JSON, one message per line or one document of at most 64 MiB.
        folder: An empty folder.
        wanted: Id of the run, or its beginning; empty: the run whose spans ended last.

    Raises:
        OSError: A file cannot be read, or the folder cannot be written.
        VerlOtelError: The files have no such run.
    """
    parts, problems = _Parts(folder), list[str]()
    for path in paths:
        for message in _read_messages(path, problems):
            try:
                for group in _find_groups(message):
                    parts.add(group)
            except otlp_json.UNREADABLE as error:
                problems.append(f"{path.name}: a message cannot be read ({type(error).__name__}); the rest was used")
    if not parts.ends:
        expected = "expected OTLP/JSON of a Collector's file exporter, or a trace of Tempo"
        raise VerlOtelError("; ".join(["no spans", *problems[:3], expected]))
    run_id = _choose(parts.ends, wanted)
    with (folder / "traces-otlp.jsonl").open("wb") as file:
        file.writelines(parts.sorted_lines(run_id, problems))
    (folder / "run.json").write_text(json.dumps({"run_id": run_id} if run_id else {}), "utf-8")
    others = tuple(sorted(other for other in parts.ends if other not in (run_id, FOREIGN)))
    return Imported(run_id, others, tuple(problems + parts.problems))


def _choose(ends: Mapping[str, int], wanted: str) -> str:
    """Return the id of the wanted run, or of the one that ended last."""
    runs = [run_id for run_id in ends if run_id != FOREIGN]
    if not wanted:
        return max(runs, key=lambda run_id: ends[run_id], default=FOREIGN)
    found = [run_id for run_id in runs if run_id == wanted] or [run for run in runs if run.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    named = ", ".join(sorted(found or runs)[:10]) or "none"
    what = "is the beginning of several runs" if found else "is not in the files, which have the runs"
    raise VerlOtelError(f"{wanted} {what}: {named}")


def _read_messages(path: Path, problems: list[str]) -> Iterator[Any]:
    """Yield the messages in a file: one per line, or the file as one document."""
    size = path.stat().st_size
    decoded, lines = 0, 0
    for _, _, line in read_lines([Extent(path, 0, size)], problems):
        lines += bool(line.strip())
        try:
            message = msgspec.json.decode(line)
        except otlp_json.UNREADABLE:
            if decoded == 0:
                break
            problems.append(f"{path.name} has a line that cannot be read; the rest was used")
            continue
        decoded += 1
        yield message
    if lines and not decoded:
        try:
            yield safe_files.read_json(path)
        except safe_files.DamagedError as error:
            raise VerlOtelError(f"{path.name} is no OTLP/JSON: {error}") from None


def _find_groups(message: Any) -> list[dict[str, Any]]:
    """Return the groups of spans by resource of one message, or of one trace of Tempo."""
    if isinstance(message, dict) and isinstance(message.get("trace"), dict):
        message = message["trace"]
    groups: Any = message.get("resourceSpans", message.get("batches")) if isinstance(message, dict) else None
    return [group for group in groups or () if isinstance(group, dict)]


class _Parts:
    """The spans of all runs in files of one run and one minute each.

    Args:
        folder: Where the files are made.
    """

    def __init__(self, folder: Path) -> None:
        self.ends: dict[str, int] = {}
        """End of the last span of each run, in nanoseconds."""
        self.problems: list[str] = []
        self._folder = folder
        self._paths: dict[tuple[str, int], Path] = {}
        self._traces: dict[str, set[str]] = defaultdict(set)
        self._known = self._left_out = 0

    def add(self, group: Mapping[str, Any]) -> None:
        """Add the spans of one resource."""
        resource = group.get("resource") or {}
        run_id = _find_run(resource)
        for scope in group.get("scopeSpans") or ():
            by_second: dict[int, list[dict[str, Any]]] = defaultdict(list)
            for span in scope.get("spans", ()):
                normal = _normalise(span)
                end = safe_files.parse_int64(normal["endTimeUnixNano"])
                self.ends[run_id] = max(end, self.ends.get(run_id, 0))
                self._note_trace(run_id, normal["traceId"])
                by_second[end // _SECOND_NS].append(normal)
            for second, spans in by_second.items():
                place = {"resource": resource, "scopeSpans": [{"scope": scope.get("scope") or {}, "spans": spans}]}
                self._write(run_id, second * _SECOND_NS, msgspec.json.encode({"resourceSpans": [place]}))

    def _note_trace(self, run_id: str, trace_id: str) -> None:
        traces = self._traces[run_id]
        if run_id and trace_id not in traces and self._known < MAX_TRACES:
            self._known += 1
            traces.add(trace_id)

    def _write(self, run_id: str, time_ns: int, line: bytes) -> None:
        key = (run_id, time_ns // _MINUTE_NS)
        if key not in self._paths and len(self._paths) >= MAX_PARTS:
            self._left_out += 1
            return
        path = self._paths.setdefault(key, self._folder / f"part-{len(self._paths)}")
        with path.open("ab") as file:
            file.write(b"%019d %s\n" % (time_ns, line))

    def sorted_lines(self, run_id: str, problems: list[str]) -> Iterator[bytes]:
        """Yield the lines of one run in the order of time, with the spans of other services in its traces; remove the files."""
        minutes = sorted({minute for run, minute in self._paths if run in (run_id, FOREIGN)})
        for minute in minutes:
            lines = self._take((run_id, minute), problems)
            if run_id != FOREIGN:
                lines += filter(
                    None, (self._keep_own(line, run_id) for line in self._take((FOREIGN, minute), problems))
                )
            yield from (line[20:] for line in sorted(lines, key=lambda line: line[:19]))
        for path in self._paths.values():
            path.unlink(missing_ok=True)
        if self._left_out:
            self.problems.append(f"{self._left_out} groups of spans were left out: too many minutes")

    def _take(self, key: tuple[str, int], problems: list[str]) -> list[bytes]:
        path = self._paths.get(key)
        if path is None:
            return []
        if path.stat().st_size > MAX_SORTED:
            problems.append("a minute has too many spans to be read; it was left out")
            return []
        return path.read_bytes().splitlines(keepends=True)

    def _keep_own(self, line: bytes, run_id: str) -> bytes:
        """Return a line with its spans in traces of a run only; empty if it has none."""
        message = msgspec.json.decode(line[20:])
        scope = message["resourceSpans"][0]["scopeSpans"][0]
        scope["spans"] = [span for span in scope["spans"] if span["traceId"] in self._traces[run_id]]
        return line[:20] + msgspec.json.encode(message) + b"\n" if scope["spans"] else b""


def _find_run(resource: Mapping[str, Any]) -> str:
    for pair in resource.get("attributes") or ():
        if pair.get("key") == attr.RUN_ID:
            return str((pair.get("value") or {}).get("stringValue", ""))
    return FOREIGN


def _normalise(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span with ids in hexadecimal and enumerations as numbers, marked as sampled.

    Exporters send no other spans, and OTLP/protobuf of most SDKs omits the flag.
    """
    normal = {**span, **{key: _to_hex(span[key], size) for key, size in _IDS.items() if span.get(key)}}
    normal["flags"] = (span.get("flags") or 0) | SAMPLED
    kind, status = normal.get("kind"), normal.get("status")
    if isinstance(kind, str):
        normal["kind"] = _KINDS.get(kind.removeprefix("SPAN_KIND_"), 1)
    if isinstance(status, dict) and isinstance(status.get("code"), str):
        normal["status"] = {**status, "code": _CODES.get(status["code"], 0)}
    if normal.get("links"):
        normal["links"] = [
            {**link, **{key: _to_hex(link[key], size) for key, size in _IDS.items() if link.get(key)}}
            for link in normal["links"]
        ]
    return normal


def _to_hex(text: str, size: int) -> str:
    return text if len(text) == 2 * size else base64.b64decode(text).hex()
