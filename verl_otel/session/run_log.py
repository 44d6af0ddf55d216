# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the run log: ``verl_logs.jsonl`` of the process that trains, ``verl_logs-….jsonl`` of each other process that logs something."""

from __future__ import annotations

import datetime as dt
import fcntl
import math
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import safe_files
from verl_otel._internal.call_timeout import run_locked
from verl_otel._internal.safe_files import process_file_name
from verl_otel.config import Config
from verl_otel.exporting.base import Exporter, MetricState
from verl_otel.exporting.line_file import LineFile, encode_line
from verl_otel.model import Batch, LogRecord, Resource, Scope, SpanRecord
from verl_otel.recording import run_log
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs
from verl_otel.semconv.spans import SPANS
from verl_otel.session import python_logging

_LOCK: Final = ".verl_logs.lock"
_STEP: Final = SPANS["step"].name
_TRAJECTORY: Final = SPANS["trajectory"].name
_WORKER: Final = SPANS["worker"].name
_DETAIL: Final = {
    attr.SAMPLE_UID: "sample",
    attr.ROLLOUT_INDEX: "index",
    attr.VALIDATE: "validate",
    attr.DATA_SOURCE: "data_source",
    attr.REWARD_SCORE: "score",
    attr.PROMPT_TOKENS: "prompt_tokens",
    attr.RESPONSE_TOKENS: "response_tokens",
    attr.GENERATED_TOKENS: "generated_tokens",
    attr.TURNS: "turns",
    attr.ERROR_TYPE: "error",
    attr.WORKER_METHOD: "method",
    attr.BATCH_SIZE: "batch_size",
    attr.BATCH_TOKENS: "batch_tokens",
}
"""Fields of the records of spans, by attribute."""


def start_run_log(config: Config) -> None:
    """Set the level, and copy records of Python's ``logging``."""
    level = logs.OFF if config.log_level == "off" else logs.LEVELS[config.log_level.upper()]
    run_log.configure(level if config.exporters else logs.OFF, config.log_debug_seconds)
    if run_log.is_enabled(logs.CRITICAL):
        python_logging.install()


def stop_run_log() -> None:
    """Copy no records of Python's ``logging`` any more."""
    python_logging.uninstall()


class RunLog(Exporter):
    """Takes the records of the run log at each drain, for all exporters, and writes them if files are written.

    Args:
        config: The settings.
    """

    name = "run log"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        self._waiting: deque[LogRecord] = deque()
        self._lock = threading.Lock()  # of the file: the drain thread and a caller that flushes both write
        self._file: LogFile | None = None

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - as every exporter
        """Set the folder; a file is created with its first line."""
        self._resource = resource
        if "file" in self._config.exporters:
            self._file = LogFile(self._config.run_path, resource, self._config.file_mib << 20, self._config.file_count)

    def update_resource(self, resource: Resource) -> None:
        """Use another resource from now on."""
        self._resource = resource

    def take(self, batch: Batch) -> list[LogRecord]:
        """Return the records since the last call, and at level DEBUG one for each trajectory and worker call that has ended."""
        derived = list(_read_spans(batch.spans))
        records = [*run_log.take(), *derived]
        if records and self._file is not None:
            self._file.has_steps |= run_log.trains() or any(record.scope == logs.TRAINING for record in derived)
        return records

    def consume_logs(self, records: Sequence[LogRecord]) -> None:
        """Queue the records for the `poll` that follows."""
        if self._file is not None:
            self._waiting.extend(records)

    def poll(self) -> None:
        """Write the records. What a full disk refuses is counted as dropped; the file exporter logs the reason."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if records and self._file is not None:
            try:
                self._file.write(records, self._resource)
            except OSError:
                run_log.count_lost(len(records))

    def flush(self, deadline: float) -> None:
        """Write the records, unless another thread hangs in writing until the deadline."""
        run_locked(self._lock, self._write, deadline)

    def close(self, deadline: float) -> None:
        """Write the records and close the file, unless another thread hangs in writing: its descriptor may be reused."""
        run_locked(self._lock, self._end, deadline)

    def _end(self) -> None:
        self._write()
        if self._file is not None:
            self._file.close()

    def after_fork(self) -> None:
        """Close the file: the child has one of its own."""
        if self._file is not None:
            self._file.close()


class LogFile:
    """The file of this process, ``verl_logs.jsonl`` from the first record of a step on.

    Args:
        folder: Folder of the run.
        resource: The resource of this process.
        max_bytes: Size at which a file is rotated.
        max_files: Files that are kept.
    """

    def __init__(self, folder: Path, resource: Resource, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._limits = max_bytes, max_files
        process = process_file_name(resource.text(attr.ROLE, "process"), resource.text(attr.HOST_NAME, "host"))
        self._file = LineFile(folder / f"{logs.FILE}-{process}.jsonl", *self._limits)
        self._claim_handle: int | None = None
        """Descriptor whose lock says that this process writes ``verl_logs.jsonl``."""
        self._claimed = False
        self.has_steps = False
        """Whether this process logs the steps of the run."""

    def write(self, records: list[LogRecord], resource: Resource) -> None:
        """Write records, each as a line.

        Raises:
            OSError: They were not written completely.
        """
        if self.has_steps and not self._claimed:
            self._claim()
        origin: dict[str, Any] = {
            name: resource.attributes[key]
            for key, name in ((attr.ROLE, "role"), (attr.RANK, "rank"))
            if key in resource.attributes
        }
        gpus = resource.attributes.get(attr.GPU_IDS)
        self._file.write(b"".join(encode(record, origin, gpus) for record in records))

    def _claim(self) -> None:
        """Use ``verl_logs.jsonl`` unless another process, such as the rollouter of an asynchronous training, does."""
        safe_files.make_folder(self._folder)
        self._claim_handle = safe_files.open_private(self._folder / _LOCK)
        self._claimed = True
        try:
            fcntl.flock(self._claim_handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # a file system without locks
            pass
        self._file.close()
        self._file = LineFile(self._folder / f"{logs.FILE}.jsonl", *self._limits)

    def close(self) -> None:
        """Close the file and release the lock."""
        self._file.close()
        handle, self._claim_handle = self._claim_handle, None
        if handle is not None:
            os.close(handle)


def encode(record: LogRecord, origin: dict[str, Any], gpus: object = None) -> bytes:
    """Return a record as a line of JSON. Numbers that are not finite become text.

    Args:
        record: The record.
        origin: Role and rank of the process.
        gpus: GPUs of the process, which records of level DEBUG name.
    """
    when = dt.datetime.fromtimestamp(record.time_ns // 1_000_000 / 1000, dt.timezone.utc)
    line: dict[str, Any] = {
        logs.TIMESTAMP: when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        logs.LEVEL: logs.NAMES.get(record.level, "INFO"),
        logs.SCOPE: record.scope,
    }
    if record.step is not None:
        line[logs.STEP] = record.step
    line.update({name: _finite(value) for name, value in record.fields.items()})
    line.update({name: value for name, value in origin.items() if name not in line})
    if record.level < logs.INFO and gpus is not None:
        line.setdefault("gpus", gpus)
    if record.trace_id:
        line[logs.TRACE_ID], line[logs.SPAN_ID] = f"{record.trace_id:032x}", f"{record.span_id:016x}"
    return encode_line(line)


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read_spans(spans: tuple[SpanRecord, ...]) -> Iterator[LogRecord]:
    """Yield the records of spans: steps of an own loop, and at level DEBUG trajectories and worker calls."""
    detailed = run_log.is_enabled(logs.DEBUG)
    own = not run_log.trains() and run_log.is_enabled(logs.INFO)
    if not detailed and not own:
        return
    for span in spans:
        if own and span.name == _STEP:
            yield _make_record(span, logs.INFO, logs.TRAINING, {})
        elif detailed and span.name == _TRAJECTORY:
            yield _make_record(span, logs.DEBUG, logs.SAMPLE, _DETAIL)
        elif detailed and span.name.startswith(_WORKER):
            yield _make_record(span, logs.DEBUG, logs.WORKER, _DETAIL)


def _make_record(span: SpanRecord, level: int, scope: str, names: dict[str, str]) -> LogRecord:
    values = span.attributes
    fields = {name: values[key] for key, name in names.items() if key in values}
    if not names:  # what the user has set on a step of an own loop
        fields = {key: value for key, value in values.items() if not key.startswith("verl.")}
    fields["seconds"] = (span.end_ns - span.start_ns) / 1e9
    step = values.get(attr.STEP_NUMBER)
    number = step if isinstance(step, int) else None
    return LogRecord(span.end_ns, level, scope, number, fields, span.trace_id, span.span_id)
