# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files: OTLP JSON lines in the run's folder, complete without any service.

``traces-…jsonl`` and ``metrics-…jsonl`` grow by whole lines and are rotated; ``open-…jsonl`` holds what has begun and not ended and
is replaced atomically, so that a killed process leaves what it was doing. A full disk costs telemetry, never training.
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

from verl_otel import _guard
from verl_otel.exporting import otlp_json
from verl_otel.exporting.exporter import Exporter, file_word, remaining
from verl_otel.exporting.fold import State
from verl_otel.exporting.thinning import Thinning
from verl_otel.model import Batch, OpenSpan, Resource, Scope, SpanRecord
from verl_otel.semconv import attributes as attr

SPANS_PER_LINE: Final = 256


class LineFile:
    """A file that grows by whole lines and is rotated by size.

    Args:
        path: The file; rotated ones get ``.1``, ``.2`` … before the suffix, the highest is the oldest.
        max_bytes: Size at which it is rotated.
        max_files: Files that are kept, the present one among them.
    """

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._handle: int | None = None
        self._size = 0
        self._torn = False

    def write(self, lines: bytes) -> None:
        """Append lines, each with its newline. Raises `OSError`; the next write then begins on a new line."""
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
        """Close the file. A later write opens it again."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._handle).st_size
        # A process that was killed may have left half a line; one with the same id in a container goes on here.
        self._torn = bool(self._size) and os.pread(self._handle, 1, self._size - 1) != b"\n"
        return self._handle

    def _rotate(self) -> int:
        """Make room before a write, so that the newest line is always in a file. A failure lets the file grow."""
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
            _guard.say(
                "file rotation", "verl-otel: cannot rotate %s: %s; it goes on growing", self.path, error.strerror
            )
        return self._open()


class FileExporter(Exporter):
    """Writes spans, metrics and open spans of one process.

    Args:
        folder: The run's folder.
        max_bytes: Size at which a file is rotated.
        max_files: Files that are kept of one kind.
        capacity: Spans that may wait for the drain thread; a batch that finds none waiting is taken as a whole.
    """

    name = "file"

    def __init__(self, folder: Path, max_bytes: int = 1 << 28, max_files: int = 4, capacity: int = 65536) -> None:
        super().__init__()
        self._folder = folder
        self._limits = (max_bytes, max_files)
        self._capacity = capacity
        self._waiting: deque[SpanRecord] = deque()
        self._messages: deque[bytes] = deque(maxlen=1)  # cumulative: the latest says it all
        self._open_spans: tuple[OpenSpan, ...] = ()
        self._cursor = 0
        self._thinning = Thinning()
        self._lock = threading.Lock()

    def open(self, resource: Resource, scope: Scope, state: State) -> None:
        """Choose the file names; the files appear with their first line."""
        self._resource, self._scope, self._state = resource, scope, state
        role = file_word(resource.text(attr.ROLE, "process"))
        who = f"{role}-{file_word(resource.text(attr.HOST_NAME, 'host'))}-{os.getpid()}"
        self._traces = LineFile(self._folder / f"traces-{who}.jsonl", *self._limits)
        self._metrics = LineFile(self._folder / f"metrics-{who}.jsonl", *self._limits)
        self._open_path = self._folder / f"open-{who}.jsonl"
        self._open_written = False

    def put(self, batch: Batch) -> None:
        """Keep a batch for the next `tick`."""
        room = max(0, self._capacity - len(self._waiting)) if self._waiting else len(batch.spans)
        self._waiting.extend(batch.spans[:room] if room < len(batch.spans) else batch.spans)
        self.drop("spans", len(batch.spans) - room, "file queue full")
        self._open_spans = batch.open_spans
        self._thinning.note(batch)

    def put_resource(self, resource: Resource) -> None:
        """Have the lines from now on say more of this process; its file names stay."""
        self._resource = resource

    def put_metrics(self, message: bytes) -> None:
        """Keep the user's own metrics for the next `tick`."""
        self._messages.append(message)

    def tick(self) -> None:
        """Write what waits. A failure drops it and is tried again with the next batch."""
        with self._lock:
            self._write()

    def flush(self, deadline: float) -> None:
        """Write what waits. Another thread may be at it: it is waited for, until ``deadline``."""
        self._alone(self._write, deadline)

    def _alone(self, work: Callable[[], None], deadline: float) -> None:
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
        """Write what waits and take the open-span file away: this process ended in order.

        A thread that still writes keeps its files: closed under it, the next line of anybody could be written to another file
        that got the same number.
        """
        self._alone(self._end, deadline)

    def _end(self) -> None:
        self._thinning.end()
        self._write()
        self._traces.close()
        self._metrics.close()
        if not self._open_spans:
            self._remove_open()

    def abandon(self) -> None:
        """Close the inherited handles; the child's own exporter has files of its own."""
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
            return _line(otlp_json.traces_object(self._resource, self._scope, spans))
        except Exception:
            if len(spans) == 1:
                self.drop("spans", 1, "cannot be encoded")
                return b""
            return b"".join(self._encode([span]) for span in spans)

    def _reason(self, error: OSError) -> str:
        return f"cannot write {self._folder}: {error.strerror}"

    def _write_metrics(self) -> None:
        cursor, changed = self._state.read_history(self._cursor)
        points = self._thinning.choose(changed)
        lines = [_line(otlp_json.metrics_object(self._resource, self._scope, points))] if points else []
        messages = list(self._messages)
        lines += [_line(_user_metrics(message)) for message in messages]
        if not lines:
            return
        try:
            self._metrics.write(b"".join(lines))
        except OSError as error:
            self.complain("points", self._reason(error))  # nothing is lost: the state is cumulative and comes again
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
            each.span._replace(
                attributes={
                    **each.span.attributes,
                    attr.OPEN_AGE: each.age,
                    attr.OPEN_LAST_CHILD: each.last_child,
                    attr.OPEN_WRITTEN: now,
                }
            )
            for each in self._open_spans
        ]
        temporary = self._open_path.with_suffix(".tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(_line(otlp_json.traces_object(self._resource, self._scope, spans)))
            temporary.replace(self._open_path)
            self._open_written = True
        except OSError as error:
            self.complain("spans", self._reason(error))

    def _remove_open(self) -> None:
        if self._open_written:
            try:
                self._open_path.unlink(missing_ok=True)
            except OSError as error:
                self.complain("spans", self._reason(error))
            else:
                self._open_written = False


def _line(thing: dict[str, Any]) -> bytes:
    return (
        json.dumps(thing, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
    )


def _user_metrics(message: bytes) -> dict[str, Any]:
    """Return an encoded request as the JSON of the file format (exemplar ids in hexadecimal)."""
    import base64

    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    def hexadecimal(thing: Any) -> Any:
        if isinstance(thing, list):
            return [hexadecimal(item) for item in thing]
        if isinstance(thing, dict):
            return {
                key: base64.b64decode(item).hex() if key in ("traceId", "spanId") else hexadecimal(item)
                for key, item in thing.items()
            }
        return thing

    made = hexadecimal(MessageToDict(ExportMetricsServiceRequest.FromString(message), use_integers_for_enums=True))
    assert isinstance(made, dict)  # noqa: S101 - a message is an object
    return made
