# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read a run's files, whole or cut off, from one folder or several (one per node)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel.model import SAMPLED, AttributeValue, LinkRecord, Resource, SpanRecord
from verl_otel.semconv import attributes as attr

Json = dict[str, Any]
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What a damaged line can raise."""


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


class Loaded(NamedTuple):
    """A span and the process that wrote it."""

    span: SpanRecord
    process: int
    """Index into `Run.processes`."""


class Open(NamedTuple):
    """A span that had begun and not ended when it was written last."""

    span: SpanRecord
    process: int
    age: float
    written_ns: int
    last_child: str


class Scalar(NamedTuple):
    """One value of one series at one time."""

    name: str
    labels: tuple[tuple[str, str], ...]
    time_ns: int
    value: float


class Run(NamedTuple):
    """Everything that the files of one run say."""

    run_id: str
    folders: tuple[Path, ...]
    manifest: Json
    processes: tuple[Process, ...]
    spans: tuple[Loaded, ...]
    open_spans: tuple[Open, ...]
    scalars: tuple[Scalar, ...]
    problems: tuple[str, ...]
    """What could not be read, in words."""


def read_run(folders: Iterable[Path]) -> Run:
    """Read the files of one run.

    Args:
        folders: The run's folder, or one folder for each node.

    Raises:
        FileNotFoundError: A folder does not exist or holds no file of ours.
    """
    reader = _Reader()
    paths = tuple(folders)
    for folder in paths:
        files = sorted(folder.glob("*.jsonl"))
        if not files and not (folder / "run.json").exists():
            raise FileNotFoundError(f"{folder} holds no run: expected traces-*.jsonl")
        for file in files:
            reader.read_file(file)
    return reader.finish(paths)


class _Reader:
    def __init__(self) -> None:
        self._indexes: dict[tuple[str, str, str], int] = {}
        self._resources: list[Resource] = []
        self._newest: list[int] = []
        self._spans: dict[tuple[int, int], Loaded] = {}
        self._open: list[Open] = []
        self._scalars: list[Scalar] = []
        self._problems: list[str] = []

    def read_file(self, path: Path) -> None:
        kind = path.name.partition("-")[0]
        if kind not in ("traces", "metrics", "open"):
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    self._read_line(kind, line)
                except _UNREADABLE as error:
                    cut = "ends in the middle of a line" if line[-1:] != b"\n" else f"line {number} cannot be read"
                    if line.strip():
                        self._problems.append(f"{path.name} {cut} ({type(error).__name__}); the rest was used")

    def _read_line(self, kind: str, line: bytes) -> None:
        thing = json.loads(line)
        if kind == "metrics":
            self._read_metrics(thing)
        else:
            self._read_traces(thing, is_open=kind == "open")

    def _process(self, resource: Json) -> int:
        attributes = _attributes(resource.get("attributes", ()))
        key = (
            str(attributes.get(attr.HOST_NAME)),
            str(attributes.get(attr.PROCESS_ID)),
            str(attributes.get(attr.SERVICE_INSTANCE)),
        )
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = len(self._resources)
            self._resources.append(Resource(attributes))
            self._newest.append(0)
        elif attributes.keys() - self._resources[index].attributes.keys():  # a process learns later what the run is
            self._resources[index] = Resource({**self._resources[index].attributes, **attributes})
        return index

    def _read_traces(self, thing: Json, *, is_open: bool) -> None:
        for group in thing["resourceSpans"]:
            process = self._process(group.get("resource", {}))
            for scope in group.get("scopeSpans", ()):
                for each in scope.get("spans", ()):
                    span = read_span(each)
                    if is_open:
                        self._add_open(span, process)
                    else:
                        self._spans[(span.trace_id, span.span_id)] = Loaded(span, process)
                        self._newest[process] = max(self._newest[process], span.end_ns)

    def _add_open(self, span: SpanRecord, process: int) -> None:
        written = int(span.attributes.get(attr.OPEN_WRITTEN, 0))  # type: ignore[arg-type]  # an integer attribute
        age = float(span.attributes.get(attr.OPEN_AGE, 0.0))  # type: ignore[arg-type]  # a float attribute
        self._open.append(Open(span, process, age, written, str(span.attributes.get(attr.OPEN_LAST_CHILD, ""))))
        self._newest[process] = max(self._newest[process], written)

    def _read_metrics(self, thing: Json) -> None:
        for group in thing["resourceMetrics"]:
            process = self._process(group.get("resource", {}))
            for scope in group.get("scopeMetrics", ()):
                for metric in scope.get("metrics", ()):
                    data = metric.get("gauge") or metric.get("sum")
                    for point in data.get("dataPoints", ()) if data else ():
                        scalar = _scalar(metric["name"], point)
                        self._scalars.append(scalar)
                        self._newest[process] = max(self._newest[process], scalar.time_ns)

    def finish(self, folders: tuple[Path, ...]) -> Run:
        open_spans = tuple(each for each in self._open if (each.span.trace_id, each.span.span_id) not in self._spans)
        with_open = {each.process for each in open_spans}
        processes = tuple(
            Process(resource, self._newest[index], index not in with_open)
            for index, resource in enumerate(self._resources)
        )
        manifest = next((found for found in map(_read_manifest, folders) if found), {})
        run_id = str(
            manifest.get("run_id") or (processes[0].resource.text(attr.RUN_ID) if processes else folders[0].name)
        )
        spans = tuple(sorted(self._spans.values(), key=lambda loaded: loaded.span.start_ns))
        return Run(run_id, folders, manifest, processes, spans, open_spans, tuple(self._scalars), tuple(self._problems))


def _read_manifest(folder: Path) -> Json:
    try:
        found = json.loads((folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_span(thing: Json) -> SpanRecord:
    """Return the record of one OTLP/JSON ``Span`` object."""
    status = thing.get("status", {})
    links = tuple(
        LinkRecord(int(link["traceId"], 16), int(link["spanId"], 16), _attributes(link.get("attributes", ())))
        for link in thing.get("links", ())
    )
    return SpanRecord(
        int(thing["traceId"], 16),
        int(thing["spanId"], 16),
        int(thing.get("parentSpanId") or "0", 16),
        str(thing["name"]),
        _integer(thing.get("kind", 1)),
        _integer(thing["startTimeUnixNano"]),
        _integer(thing.get("endTimeUnixNano", 0)),
        _attributes(thing.get("attributes", ())),
        links,
        (),
        _integer(status.get("code", 0)),
        str(status.get("message", "")),
        _integer(thing.get("flags", SAMPLED)),
        str(thing.get("traceState", "")),
    )


def _attributes(pairs: Iterable[Json]) -> dict[str, AttributeValue]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: Json) -> AttributeValue:
    if "stringValue" in value:
        return str(value["stringValue"])
    if "intValue" in value:
        return _integer(value["intValue"])
    if "doubleValue" in value:
        return float(value["doubleValue"])
    if "boolValue" in value:
        return bool(value["boolValue"])
    return tuple(_items(value.get("arrayValue", {}).get("values", ())))  # type: ignore[return-value]  # of one kind, as written


def _integer(raw: Any) -> int:
    """Return an integer of OTLP, which has 64 bits. Beyond them no arithmetic of the report would be safe."""
    value = int(raw)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("an integer of more than 64 bits")
    return value


def _items(values: Iterable[Json]) -> Iterator[AttributeValue]:
    return (_value(value) for value in values)


def _scalar(name: str, point: Json) -> Scalar:
    labels = tuple((key, str(value)) for key, value in _attributes(point.get("attributes", ())).items())
    raw = point["asInt"] if "asInt" in point else point["asDouble"]
    return Scalar(name, labels, _integer(point["timeUnixNano"]), float(raw))
