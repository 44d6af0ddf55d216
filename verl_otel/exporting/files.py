# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""File exporter: OTLP JSON lines in the run's folder.

``traces-….jsonl`` and ``metrics-….jsonl`` grow by whole lines and are rotated. ``open-….jsonl`` has the open spans and is replaced
atomically, so that a killed process leaves a record of what it was doing: after each drain that has read them again (`recording.collection`).
A full disk costs telemetry, never training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import safe_files
from verl_otel._internal.deadline import run_locked
from verl_otel._internal.safe_files import MAX_LINE, process_file_name
from verl_otel.exporting.base import Exporter, MetricState
from verl_otel.exporting.line_file import LineFile, encode_line
from verl_otel.exporting.otlp import encode_json
from verl_otel.model import Batch, Labels, OpenSpan, Point, Resource, Scope, SpanRecord, WeighedAttributes
from verl_otel.semconv import attributes as attr

# -- Downsampling of hardware metrics: one value a minute, so that a week of them does not rotate the training's own metrics out --

SECONDS: Final = 60.0
"""Seconds between two values of one series. One collection of a node with eight GPUs has 43 kB."""


class Downsampler:
    """Selects the points that are written."""

    def __init__(self) -> None:
        self._hardware: frozenset[str] = frozenset()
        """Names of the metrics that are downsampled."""
        self._waiting: dict[tuple[str, Labels], Point] = {}
        self._written: dict[tuple[str, Labels], float] = {}
        """Time of the last write (`time.monotonic`) by series."""
        self._seconds = SECONDS

    def add_metrics(self, batch: Batch) -> None:
        """Downsample the metrics that a batch has as a whole: those of the hardware."""
        self._hardware |= batch.asked

    def select(self, points: Sequence[Point]) -> list[Point]:
        """Return the points to write: the latest of each hardware series once a minute, and all others.

        Args:
            points: The changed points, oldest first.
        """
        if not self._hardware:
            return list(points)
        now = time.monotonic()
        self._waiting |= {
            (point.instrument.name, point.labels): point for point in points if point.instrument.name in self._hardware
        }
        self._written = {key: at for key, at in self._written.items() if now - at < self._seconds}
        due = [key for key in self._waiting if key not in self._written]
        self._written |= dict.fromkeys(due, now)
        return [
            *(point for point in points if point.instrument.name not in self._hardware),
            *(self._waiting.pop(key) for key in due),
        ]

    def release(self) -> None:
        """Let the next `select` return all waiting points: the exporter closes."""
        self._seconds = 0.0


# -- The exporter --

SPANS_PER_LINE: Final = 256
SPAN_BYTES: Final = 1024
"""Bytes that a waiting span counts as; large attributes of all of them may have as much again."""


class FileExporter(Exporter):
    """Writes spans, metrics and open spans of one process.

    Args:
        folder: The run's folder.
        max_bytes: Size at which a file is rotated.
        max_files: Files that are kept of one kind.
        capacity: Spans that may wait for the drain thread; an empty queue takes a batch of any size.
    """

    name = "file"

    def __init__(self, folder: Path, max_bytes: int = 1 << 28, max_files: int = 4, capacity: int = 65536) -> None:
        super().__init__()
        self._folder = folder
        self._limits = (max_bytes, max_files)
        self._capacity = capacity
        self._waiting: deque[SpanRecord] = deque()
        self._messages: deque[bytes] = deque(maxlen=1)  # cumulative: only the latest is needed
        self._open_spans: tuple[OpenSpan, ...] = ()
        self._weight = 0
        """Bytes of large attributes in the waiting spans."""
        self._cursor = 0
        self._downsampler = Downsampler()
        self._lock = threading.Lock()

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:
        """Set the file names; files are created with their first line."""
        self._resource, self._scope, self._state = resource, scope, state
        process = process_file_name(resource.text(attr.ROLE, "process"), resource.text(attr.HOST_NAME, "host"))
        self._traces = LineFile(self._folder / f"traces-{process}.jsonl", *self._limits)
        self._metrics = LineFile(self._folder / f"metrics-{process}.jsonl", *self._limits)
        self._open_path = self._folder / f"open-{process}.jsonl"
        self._open_written = False
        self._open_read_ns = 0
        """When the oldest row of the file was read."""

    def consume(self, batch: Batch) -> None:
        """Queue a batch for the next `poll`."""
        room = max(0, self._capacity - len(self._waiting)) if self._waiting else len(batch.spans)
        weight = sum([span.attributes.weight for span in batch.spans if type(span.attributes) is WeighedAttributes])
        if not self._waiting:
            self._weight = 0
        elif self._weight + weight > SPAN_BYTES * self._capacity:
            room = 0
        self._weight += weight if room else 0
        self._waiting.extend(batch.spans[:room] if room < len(batch.spans) else batch.spans)
        self.drop("spans", len(batch.spans) - room, "file queue full")
        self._open_spans = batch.open_spans
        self._downsampler.add_metrics(batch)

    def update_resource(self, resource: Resource) -> None:
        """Use another resource for the lines from now on; the file names stay."""
        self._resource = resource

    def consume_metrics(self, message: bytes) -> None:
        """Queue the user's own metrics for the next `poll`."""
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
        if not self._open_spans:
            self._remove_open()

    def after_fork(self) -> None:
        """Close the inherited handles; the exporter of the child has files of its own."""
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
            line = encode_json.traces_line(self._resource, self._scope, spans)
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
        lines = [encode_line(encode_json.metrics_object(self._resource, self._scope, points))] if points else []
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
        if not self._open_spans:
            self._remove_open()
            return
        read_ns = self._open_spans[0].read_ns
        if self._open_written and read_ns == self._open_read_ns:
            return  # of many open spans not all rows are read again at each drain
        spans = [
            open_span.span._replace(
                attributes={
                    **open_span.span.attributes,
                    attr.OPEN_AGE: open_span.age,
                    attr.OPEN_LAST_CHILD: open_span.last_child,
                    attr.OPEN_WRITTEN: open_span.read_ns,
                }
            )
            for open_span in self._open_spans
        ]
        try:
            safe_files.make_folder(self._folder)
            line = encode_json.traces_line(self._resource, self._scope, spans)
            safe_files.write_atomically(self._open_path, line)
            self._open_written, self._open_read_ns = True, read_ns
        except OSError as error:
            self.log_once("spans", self._reason(error))

    def _remove_open(self) -> None:
        if self._open_written:
            try:
                self._open_path.unlink(missing_ok=True)
            except OSError as error:
                self.log_once("spans", self._reason(error))
            else:
                self._open_written = False


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
