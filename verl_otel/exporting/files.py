# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""File exporter: OTLP JSON lines in the run's folder.

``traces-….jsonl`` and ``metrics-….jsonl`` grow by whole lines and are rotated. ``open-….jsonl`` has the open spans and is replaced
atomically, so that a killed process leaves a record of what it was doing. A full disk costs telemetry, never training.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary, private_files
from verl_otel._internal.deadline import remaining
from verl_otel._internal.file_names import process_file_name
from verl_otel._internal.untrusted_files import MAX_LINE
from verl_otel.exporting.base import Exporter
from verl_otel.exporting.downsampling import Downsampler
from verl_otel.exporting.metric_state import MetricState
from verl_otel.exporting.otlp import encode_json
from verl_otel.model import Batch, OpenSpan, Resource, Scope, SpanRecord, WeighedAttributes
from verl_otel.semconv import attributes as attr

SPANS_PER_LINE: Final = 256
SPAN_BYTES: Final = 1024
"""Bytes that a waiting span counts as; large attributes of all of them may have as much again."""


class LineFile:
    """A file that grows by whole lines and is rotated by size.

    Args:
        path: The file; rotated ones get ``.1``, ``.2`` … before the suffix, the highest is the oldest.
        max_bytes: Size at which it is rotated.
        max_files: Files that are kept, including the current one.
    """

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._handle: int | None = None
        self._size = 0
        self._torn = False

    def write(self, lines: bytes) -> None:
        """Append lines, each with its newline.

        Raises:
            OSError: They were not written completely; the next write begins on a new line.
        """
        handle = self._open() if self._handle is None else self._handle
        if self._size >= self._max_bytes:
            handle = self._rotate()
        data = b"\n" + lines if self._torn else lines
        written = 0
        try:
            while written < len(data):
                written += os.write(handle, data[written:])
        except OSError:
            self._torn = self._torn or written > 0
            raise
        finally:
            self._size += written
        self._torn = False

    def close(self) -> None:
        """Close the file. A later write reopens it."""
        # Cleared first: a child that is forked before the close must not close this descriptor, whose number may be reused.
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _open(self) -> int:
        private_files.make_folder(self.path.parent)
        self._handle = private_files.open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._handle).st_size
        # A killed process may have left half a line; a later one with the same id, in a container, appends to the file.
        self._torn = bool(self._size) and os.pread(self._handle, 1, self._size - 1) != b"\n"
        return self._handle

    def _rotate(self) -> int:
        """Rotate before a write, so that the newest line is always in the current file. On failure the file grows."""
        self.close()
        try:
            for number in range(self._max_files - 1, 0, -1):
                older = self.path.with_suffix(f".{number}{self.path.suffix}")
                newer = self.path if number == 1 else self.path.with_suffix(f".{number - 1}{self.path.suffix}")
                if newer.exists():
                    newer.replace(older)
            if self._max_files == 1:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            error_boundary.warn_once(
                "file rotation", "verl-otel: cannot rotate %s: %s; it goes on growing", self.path, error.strerror
            )
        return self._open()


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
        self._run_locked(self._write, deadline)

    def _run_locked(self, work: Callable[[], None], deadline: float) -> None:
        if self._lock.acquire(timeout=remaining(deadline)):
            try:
                work()
            finally:
                self._lock.release()

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
        self._run_locked(self._end, deadline)

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
            line = _line(encode_json.traces_object(self._resource, self._scope, spans))
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
        lines = [_line(encode_json.metrics_object(self._resource, self._scope, points))] if points else []
        messages = list(self._messages)
        lines += [_line(_user_metrics(message)) for message in messages]
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
        now = time.time_ns()
        spans = [
            open_span.span._replace(
                attributes={
                    **open_span.span.attributes,
                    attr.OPEN_AGE: open_span.age,
                    attr.OPEN_LAST_CHILD: open_span.last_child,
                    attr.OPEN_WRITTEN: now,
                }
            )
            for open_span in self._open_spans
        ]
        try:
            private_files.make_folder(self._folder)
            line = _line(encode_json.traces_object(self._resource, self._scope, spans))
            private_files.write_atomically(self._open_path, line)
            self._open_written = True
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


def _line(value: dict[str, Any]) -> bytes:
    return (
        json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
    )


def _user_metrics(message: bytes) -> dict[str, Any]:
    """Return an encoded request as the JSON of the file format (exemplar ids in hexadecimal)."""
    import base64

    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

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
