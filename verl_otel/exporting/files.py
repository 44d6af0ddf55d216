# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""File exporter: OTLP JSON lines in the run's folder.

``traces-….jsonl`` and ``metrics-….jsonl`` grow by whole lines and are rotated. ``open-….jsonl`` lists the open spans, so that a killed process
leaves a record of its work. Each drain appends a line with the spans that began, changed or ended, and the time; a file that has become too large is
replaced by one line (`OPEN_BYTES`). A full disk costs telemetry, never training.

OTLP/JSON is protobuf's JSON mapping with two exceptions: ids are hexadecimal and enums are numbers. 64-bit integers are text;
NaN and the infinities are the words ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from json.encoder import encode_basestring as quote
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import safe_files
from verl_otel._internal.call_timeout import run_locked
from verl_otel._internal.safe_files import MAX_LINE, process_file_name
from verl_otel.exporting.base import Exporter, MetricState
from verl_otel.exporting.line_file import LineFile, encode_line
from verl_otel.exporting.otlp.protobuf import CUMULATIVE, KeptPairs
from verl_otel.model import (
    NONE_DROPPED,
    Attributes,
    Batch,
    EventRecord,
    HistogramValue,
    Instrument,
    Labels,
    LinkRecord,
    OpenSpan,
    Point,
    Resource,
    Scope,
    SharedAttributes,
    SpanRecord,
    in_64_bits,
    to_float,
)
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import OTEL_BUDGET_USED, OTEL_EXPORT_DURATION, OTEL_OVERHEAD

# -- OTLP as JSON --

Json = dict[str, Any]


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def value_object(value: Any) -> Json:
    """Return an ``AnyValue`` object."""
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if in_64_bits(value) else {"stringValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [value_object(item) for item in value]}}
    return _rare_value(value)


def _rare_value(value: Any) -> Json:
    """Return what newer SDKs allow in the attributes of a user's own spans."""
    if value is None:
        return {}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    return {"stringValue": str(value)}


def _attributes(attributes: Attributes) -> list[Json]:
    return [{"key": key, "value": value_object(value)} for key, value in attributes.items()]


def _point(point: Point) -> Json:
    labels = [{"key": key, "value": {"stringValue": value}} for key, value in point.labels]
    encoded: Json = {"attributes": labels, "timeUnixNano": str(point.time_ns)}
    if point.instrument.kind != "gauge":
        encoded["startTimeUnixNano"] = str(point.start_ns)
    value = point.value
    if isinstance(value, HistogramValue):
        encoded |= {
            "count": str(value.samples),
            "sum": _double(value.total),
            "bucketCounts": [str(count) for count in value.counts],
            "explicitBounds": [_double(bound) for bound in value.bounds],
        }
        if value.samples:
            encoded |= {"min": _double(value.minimum), "max": _double(value.maximum)}
    elif isinstance(value, int) and in_64_bits(value):
        encoded["asInt"] = str(int(value))
    else:
        encoded["asDouble"] = _double(to_float(value))
    if point.exemplars:
        encoded["exemplars"] = [
            {
                "timeUnixNano": str(exemplar.time_ns),
                "asDouble": _double(exemplar.value),
                "traceId": f"{exemplar.trace_id:032x}",
                "spanId": f"{exemplar.span_id:016x}",
            }
            for exemplar in point.exemplars
        ]
    return encoded


def _metric(instrument: Instrument, points: list[Point]) -> Json:
    encoded: Json = {"name": instrument.name, "unit": instrument.unit, "description": instrument.description}
    data: Json = {"dataPoints": [_point(point) for point in points]}
    if instrument.kind == "gauge":
        return {**encoded, "gauge": data}
    data["aggregationTemporality"] = CUMULATIVE
    if instrument.kind == "histogram":
        return {**encoded, "histogram": data}
    return {**encoded, "sum": {**data, "isMonotonic": instrument.kind == "counter"}}


def metrics_object(resource: Resource, scope: Scope, points: Iterable[Point]) -> Json:
    """Return a ``MetricsData`` object with one metric per instrument."""
    by_instrument: dict[Instrument, list[Point]] = {}
    for point in points:
        by_instrument.setdefault(point.instrument, []).append(point)
    metrics = [_metric(instrument, group) for instrument, group in by_instrument.items()]
    schema = {"schemaUrl": scope.schema_url} if scope.schema_url else {}
    scopes = [{"scope": scope_object(scope), "metrics": metrics, **schema}]
    return {"resourceMetrics": [{"resource": {"attributes": _attributes(resource.attributes)}, "scopeMetrics": scopes}]}


def scope_object(scope: Scope) -> Json:
    """Return an ``InstrumentationScope`` object."""
    return {"name": scope.name, **({"version": scope.version} if scope.version else {})}


# -- Spans: the text is written directly, not by `json.dumps` of objects, which takes three times as long --
# The text of names, and of attributes whose values come again, is kept.

MAX_KEPT: Final = 4096
"""Names, keys and trace states whose text is kept; further ones are written each time."""
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_TRUTH: Final = ('"boolValue":false}}', '"boolValue":true}}')
_keys: dict[str, str] = {}
_names: dict[tuple[str, int], str] = {}
_states: dict[str, str] = {"": ""}


def _key(key: str) -> str:
    text = '{"key":' + quote(key) + ',"value":{'
    if len(_keys) < MAX_KEPT:
        _keys[key] = text
    return text


def _pair(key: str, value: Any) -> str:
    """Return a ``KeyValue`` object."""
    head, kind = _keys.get(key) or _key(key), type(value)
    if kind is str:
        return f'{head}"stringValue":{quote(value)}}}}}'
    if kind is int and in_64_bits(value):
        return f'{head}"intValue":"{value}"}}}}'
    if kind is bool:
        return head + _TRUTH[value]
    if kind is float and value - value == 0.0:  # finite
        return f'{head}"doubleValue":{value!r}}}}}'
    return f"{head}{_dumps(value_object(value))[1:]}}}"


_kept_pairs: Final = KeptPairs(_pair)


def _pairs(attributes: Attributes) -> str:
    """Return the elements of a list of ``KeyValue`` objects."""
    get = _kept_pairs.get
    texts = []
    items: Iterable[tuple[str, Any]] = attributes.items()
    for pair in items:
        key, value = pair
        kind = type(value)
        # see `KeptPairs`
        if kind is str or kind is int or (kind is tuple and len(value) == 1 and type(value[0]) is str):
            texts.append(get(pair) or _kept_pairs.make(pair))
        else:
            texts.append(_pair(key, value))
    return ",".join(texts)


def _name(name: str, kind: int) -> str:
    text = f',"name":{quote(name)},"kind":{kind},"attributes":['
    if len(_names) < MAX_KEPT:
        _names[name, kind] = text
    return text


def _head(name: str, kind: int, attributes: Attributes) -> str:
    """Return name, kind and attributes, without the end of the list."""
    return (_names.get((name, kind)) or _name(name, kind)) + _pairs(attributes)


def _state(state: str) -> str:
    text = f',"traceState":{quote(state)}'
    if len(_states) < MAX_KEPT:
        _states[state] = text
    return text


def _dropped(what: str, count: int) -> str:
    return f',"dropped{what}Count":{count}' if count else ""


def _link(link: LinkRecord) -> str:
    return (
        f'{{"traceId":"{link.trace_id:032x}","spanId":"{link.span_id:016x}","attributes":[{_pairs(link.attributes)}],'
        f'"flags":{0x100 | link.flags}{_state(link.trace_state) if link.trace_state else ""}'
        f"{_dropped('Attributes', link.dropped)}}}"
    )


def _event(event: EventRecord) -> str:
    return (
        f'{{"name":{quote(event.name)},"timeUnixNano":"{event.time_ns}","attributes":[{_pairs(event.attributes)}]'
        f"{_dropped('Attributes', event.dropped)}}}"
    )


def _extras(span: SpanRecord) -> str:
    """Return what most spans do not have."""
    text = f',"links":[{",".join(map(_link, span.links))}]' if span.links else ""
    if span.events:
        text += f',"events":[{",".join(map(_event, span.events))}]'
    if span.status or span.message:
        message = f',"message":{quote(span.message)}' if span.message else ""
        text += f',"status":{{"code":{span.status}{message}}}'
    return text + "".join(map(_dropped, ("Attributes", "Events", "Links"), span.dropped))


def span_texts(spans: Iterable[SpanRecord]) -> list[str]:
    """Return each span as a JSON object. An open span has the end time ``"0"``.

    Raises:
        Exception: A span cannot be encoded, whatever is wrong with it.
    """
    texts: list[str] = []
    last_trace = last_parent = -1
    trace = parent = ""
    for span in spans:
        (
            trace_id, span_id, parent_id, name, kind, start, end, attributes, links, events, status, message, flags, state,
            _, dropped,
        ) = span  # fmt: skip
        if trace_id != last_trace:
            last_trace, trace = trace_id, f'{{"traceId":"{trace_id:032x}","spanId":"'
        if parent_id != last_parent:
            last_parent, parent = parent_id, f'","parentSpanId":"{parent_id:016x}"' if parent_id else '"'
        if type(attributes) is SharedAttributes:
            known_name, known_kind, head = attributes.kept_text
            if known_name is not name or known_kind != kind:
                head = _head(name, kind, attributes)
                attributes.kept_text = (name, kind, head)
        else:
            head = (_names.get((name, kind)) or _name(name, kind)) + _pairs(attributes)
        rest = "" if not state else _states.get(state) or _state(state)
        if events or links or status or message or dropped is not NONE_DROPPED:
            rest += _extras(span)
        texts.append(
            f'{trace}{span_id:016x}{parent}{head}],"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}",'
            f'"flags":{0x100 | flags}{rest}}}'
        )
    return texts


def traces_line(resource: Resource, scope: Scope, spans: Iterable[SpanRecord]) -> bytes:
    """Return a ``TracesData`` object with the spans of each scope apart, as one line with its newline."""
    by_scope: dict[Scope, list[SpanRecord]] = {}
    for span in spans:
        by_scope.setdefault(span.scope or scope, []).append(span)
    scopes = ",".join(
        f'{{"scope":{_dumps(scope_object(span_scope))},"spans":[{",".join(span_texts(group))}]'
        + (f',"schemaUrl":{quote(span_scope.schema_url)}' if span_scope.schema_url else "")
        + "}"
        for span_scope, group in by_scope.items()
    )
    attributes = _pairs(resource.attributes)
    text = f'{{"resourceSpans":[{{"resource":{{"attributes":[{attributes}]}},"scopeSpans":[{scopes}]}}]}}\n'
    return text.encode("utf-8", "replace")


# -- Downsampling of metrics of hardware and of verl-otel: one value a minute, so that a week of them does not rotate the training's own metrics out --

SECONDS: Final = 60.0
"""Seconds between two values of one series. One collection of a node with eight GPUs has 43 kB."""
OWN_METRICS: Final = frozenset({OTEL_OVERHEAD, OTEL_EXPORT_DURATION, OTEL_BUDGET_USED})
"""What verl-otel itself takes is downsampled, too: of an idle process it was a third of all bytes, and half of the lines. Losses are written at once."""


class Downsampler:
    """Selects the points that are written."""

    def __init__(self) -> None:
        self._hardware: frozenset[str] = frozenset()
        """Names of the metrics that are downsampled."""
        self._waiting: dict[tuple[str, Labels], Point] = {}
        self._known: set[tuple[str, Labels]] = set()
        """Series that were written before."""
        self._written_at = 0.0
        """Time of the last write (`time.monotonic`) of all of them together: each line has the resource of the process."""
        self._seconds = SECONDS

    def add_metrics(self, batch: Batch) -> None:
        """Downsample the metrics that a batch has as a whole: those of the hardware."""
        self._hardware |= batch.asked

    def select(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to write: the latest of the series of the hardware and of what verl-otel takes once a minute, and all others.

        A series that is new is written at once.

        Args:
            points: The changed points, oldest first.
        """
        now = time.monotonic()
        rare = [point for point in points if self._is_rare(point.instrument.name)]
        self._waiting |= {(point.instrument.name, point.labels): point for point in rare}
        others = [point for point in points if not self._is_rare(point.instrument.name)]
        if now - self._written_at < self._seconds and self._waiting.keys() <= self._known:
            return others
        waiting, self._waiting = self._waiting, {}
        self._known |= waiting.keys()
        self._written_at = now if waiting else self._written_at
        return [*others, *waiting.values()]

    def _is_rare(self, name: str) -> bool:
        return name in self._hardware or name in OWN_METRICS

    def release(self) -> None:
        """Let the next `select` return all waiting points: the exporter closes."""
        self._seconds = 0.0


# -- The exporter --

SPANS_PER_LINE: Final = 256
OPEN_BYTES: Final = 1 << 18
"""Bytes by which the file of open spans may be larger than twice its rows."""


class FileExporter(Exporter):
    """Writes spans, metrics and open spans of one process.

    Args:
        folder: The run's folder.
        max_bytes: Size at which a file is rotated.
        max_files: Files that are kept of one kind.
        only_open: Write the open spans alone: the monitor reads what a process had open when it died, also where no files are asked for.
    """

    name = "file"

    def __init__(self, folder: Path, max_bytes: int = 1 << 28, max_files: int = 4, *, only_open: bool = False) -> None:
        super().__init__()
        if only_open:
            self.name = "open"
        self._only_open = only_open
        self._folder = folder
        self._limits = (max_bytes, max_files)
        self._waiting: deque[SpanRecord] = deque()
        self._messages: deque[bytes] = deque(maxlen=1)  # cumulative: only the latest is needed
        self._open_spans: tuple[OpenSpan, ...] = ()
        self._listed: dict[int, OpenSpan] = {}
        """The rows of the file of open spans, by the id of the span."""
        self._open_bytes = self._open_limit = 0
        """Size of that file, and the size at which it is replaced."""
        self._cursor = 0
        self._downsampler = Downsampler()
        self._lock = threading.Lock()

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:
        """Set the file names; files are created with their first line."""
        self._resource, self._scope, self._state = resource, scope, state
        process = process_file_name(resource.text(attr.ROLE, "process"), resource.text(attr.HOST_NAME, "host"))
        self._traces = LineFile(self._folder / f"traces-{process}.jsonl", *self._limits)
        self._metrics = LineFile(self._folder / f"metrics-{process}.jsonl", *self._limits)
        self._open = LineFile(self._folder / f"open-{process}.jsonl", sys.maxsize, 1)

    def consume(self, batch: Batch) -> None:
        """Queue a batch for the `poll` that follows."""
        self._open_spans = batch.open_spans
        if not self._only_open:
            self._waiting.extend(batch.spans)
            self._downsampler.add_metrics(batch)

    def update_resource(self, resource: Resource) -> None:
        """Use another resource for the lines from now on; the file names stay."""
        self._resource = resource

    def consume_metrics(self, message: bytes) -> None:
        """Queue the user's own metrics for the `poll` that follows."""
        self._messages.append(message)

    def poll(self) -> None:
        """Write the queue. On failure it is dropped; the next batch is tried again."""
        with self._lock:
            self._write()

    def flush(self, deadline: float) -> None:
        """Write the queue. Waits until ``deadline`` for another thread that writes."""
        run_locked(self._lock, self._write, deadline)

    def _write(self) -> None:
        begin = time.monotonic()
        if not self._only_open:
            self._write_traces()
            self._write_metrics()
        self._write_open()
        self.seconds += time.monotonic() - begin

    def close(self, deadline: float) -> None:
        """Write the queue and remove the file of open spans: this process ended in order.

        If another thread still writes, the files stay open: after a close its next line could go to another file with the same
        descriptor number.
        """
        run_locked(self._lock, self._end, deadline)

    def _end(self) -> None:
        self._downsampler.release()
        self._write()
        self._traces.close()
        self._metrics.close()
        self._open.close()
        if not self._open_spans:
            self._remove_open()

    def after_fork(self) -> None:
        """Close the inherited handles; the exporter of the child has files of its own."""
        self._open.close()
        self._traces.close()
        self._metrics.close()

    def _write_traces(self) -> None:
        while self._waiting:
            spans = [self._waiting.popleft() for _ in range(min(SPANS_PER_LINE, len(self._waiting)))]
            try:
                self._traces.write(self._encode(spans))
            except OSError as error:
                self.drop("spans", len(spans) + len(self._waiting), self._reason(error))
                self._waiting.clear()

    def _encode(self, spans: list[SpanRecord]) -> bytes:
        try:
            line = traces_line(self._resource, self._scope, spans)
        except Exception:
            if len(spans) == 1:
                self.drop("spans", 1, "cannot be encoded")
                return b""
            return b"".join(self._encode([span]) for span in spans)
        if len(line) <= MAX_LINE:
            return line
        if len(spans) == 1:  # readers of these files would reject it
            self.drop("spans", 1, "too large")
            return b""
        middle = len(spans) // 2
        return self._encode(spans[:middle]) + self._encode(spans[middle:])

    def _reason(self, error: OSError) -> str:
        return f"cannot write {self._folder}: {error.strerror}"

    def _write_metrics(self) -> None:
        cursor, changed = self._state.read_history(self._cursor)
        points = self._downsampler.select(changed)
        lines = [encode_line(metrics_object(self._resource, self._scope, points))] if points else []
        messages = list(self._messages)
        lines += [encode_line(_user_metrics(message)) for message in messages]
        if not lines:
            return
        try:
            self._metrics.write(b"".join(lines))
        except OSError as error:
            self.log_once(
                "points", self._reason(error)
            )  # nothing is lost: the state is cumulative and is written again
            return
        self._cursor = cursor
        if messages and self._messages and self._messages[0] is messages[0]:
            self._messages.clear()

    def _write_open(self) -> None:
        """Append what has changed since the last line; replace the file if it is too large, gone, or could not be written."""
        rows = {row.span.span_id: row for row in self._open_spans}
        if not rows:
            self._remove_open()
            return
        listed = self._listed
        changed = [row for span_id, row in rows.items() if listed.get(span_id) is not row]
        ended = listed.keys() - rows.keys()
        try:
            if self._open_bytes < self._open_limit:
                line = self._open_line(changed, ended)
                self._open.write(line)
                self._open_bytes += len(line)
            else:
                line = self._open_line(rows.values())
                safe_files.make_folder(self._folder)
                self._open.close()
                safe_files.write_atomically(self._open.path, line)
                self._open_bytes, self._open_limit = len(line), 2 * len(line) + OPEN_BYTES
            self._listed = rows
        except OSError as error:
            self._open_limit = 0  # the next line has all rows
            self.log_once("spans", self._reason(error))

    def _open_line(self, rows: Collection[OpenSpan], ended: Iterable[int] = ()) -> bytes:
        now, now_ns = time.perf_counter(), time.time_ns()
        spans = [
            row.span._replace(
                attributes={
                    **row.span.attributes,
                    attr.OPEN_AGE: now - row.start,
                    attr.OPEN_LAST_CHILD: row.last_child,
                    attr.OPEN_WRITTEN: now_ns,
                }
            )
            for row in rows
        ]
        line = traces_line(self._resource, self._scope, spans) if spans else b'{"resourceSpans":[]}\n'
        gone = ",".join([f'"{span_id:016x}"' for span_id in ended])
        return line[:-2] + f',"ended":[{gone}],"writtenUnixNano":"{now_ns}"}}\n'.encode()

    def _remove_open(self) -> None:
        if self._listed:
            try:
                self._open.close()
                self._open.path.unlink(missing_ok=True)
            except OSError as error:
                self.log_once("spans", self._reason(error))
            else:
                self._listed, self._open_limit = {}, 0


def _user_metrics(message: bytes) -> dict[str, Any]:
    """Return an encoded request as the JSON of the file format (exemplar ids in hexadecimal)."""
    import base64

    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    def hexadecimal(value: Any) -> Any:
        if isinstance(value, list):
            return [hexadecimal(item) for item in value]
        if isinstance(value, dict):
            return {
                key: base64.b64decode(item).hex() if key in ("traceId", "spanId") else hexadecimal(item)
                for key, item in value.items()
            }
        return value

    metrics = hexadecimal(MessageToDict(ExportMetricsServiceRequest.FromString(message), use_integers_for_enums=True))
    assert isinstance(metrics, dict)  # noqa: S101 - a message is a JSON object
    return metrics
