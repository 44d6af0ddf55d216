# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard exporter: event files of the process that trains, in the folder ``tensorboard`` of the run."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from verl_otel._internal import safe_files
from verl_otel._internal.call_timeout import run_locked
from verl_otel._internal.machine import identify_process
from verl_otel._internal.safe_files import file_word
from verl_otel.exporting.base import Exporter
from verl_otel.exporting.tensorboard import event_file, tags
from verl_otel.model import HistogramValue
from verl_otel.semconv import attributes as attr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verl_otel.exporting.base import MetricState
    from verl_otel.model import Batch, LogRecord, Resource, Scope

FOLDER: Final = "tensorboard"
MAX_WAITING: Final = 1_000
"""Steps that may wait for a disk that is slow."""


class TensorBoardExporter(Exporter):
    """Writes the scalars of each step as soon as verl logs them.

    Args:
        folder: Folder of the run.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder / FOLDER
        self._grouper, self._tagger = tags.StepGrouper(), tags.Tagger()
        self._waiting: deque[tags.Step] = deque(maxlen=MAX_WAITING)
        self._fields = tags.StepFields()
        self._handle: int | None = None
        self._begun = False
        """Whether the file has its first record."""
        self._files = 1
        self._last = 0
        """The last step that was written; 0 if there is none."""
        self._lock = threading.Lock()

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - as every exporter
        """Set the file name; the file is created with the first step."""
        host = file_word(resource.text(attr.HOST_NAME, "host"))
        self._name = f"events.out.tfevents.{int(time.time()):010d}.{host}-{identify_process()}.{os.getpid()}.verl-otel"
        self._path = self._folder / self._name

    def consume(self, batch: Batch) -> None:
        """Queue the scalars of the steps in a batch."""
        self._grouper.add(
            tags.Value(
                point.instrument.name, point.instrument.description, dict(point.labels), point.time_ns, point.value
            )
            for point in batch.points
            if point.instrument.kind == "gauge" and not isinstance(point.value, HistogramValue)
        )
        self._waiting.extend(self._grouper.take())

    def consume_logs(self, records: Sequence[LogRecord]) -> None:
        """Take further values of a step, and the rewards of its samples, from its records."""
        for record in records:
            if record.step is not None:
                self._fields.add(record.step, record.scope, record.fields)
        self._fields.bound()

    def poll(self) -> None:
        """Write the queue. On failure it is dropped; the next step is tried again."""
        with self._lock:
            self._write()

    def flush(self, deadline: float) -> None:
        """Write the queue. Waits until ``deadline`` for another thread that writes."""
        run_locked(self._lock, self._write, deadline)

    def close(self, deadline: float) -> None:
        """Write the queue and close the file; if another thread still writes to it, it stays open."""
        run_locked(self._lock, self._end, deadline)

    def _end(self) -> None:
        self._write()
        self.after_fork()

    def after_fork(self) -> None:
        """Close the file: a child has one of its own."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _write(self) -> None:
        while self._waiting:
            step = self._waiting.popleft()
            try:
                self._append(self._encode(step))
            except OSError as error:
                self.drop("points", len(step.values), f"cannot write {self._folder}: {error.strerror}")
            else:
                self._begun, self._last = True, max(step.number, 1)

    def _encode(self, step: tags.Step) -> bytes:
        seconds = step.time_ns / 1e9
        values, rewards = self._fields.take(step)
        distributions = self._tagger.make_distributions(step.values, rewards)
        scalars = self._tagger.make_scalars(values)
        return self._encode_begin(seconds, step.number) + event_file.encode_step(
            seconds, step.number, scalars, distributions
        )

    def _encode_begin(self, seconds: float, number: int) -> bytes:
        """Return the records that this file needs before a step."""
        if not self._last:  # a resumed run goes on from the step of its checkpoint
            return event_file.encode_start(seconds, number)
        begin = b"" if self._begun else event_file.encode_start(seconds)
        return begin + event_file.encode_restart(seconds, number) if number < self._last else begin

    def _append(self, data: bytes) -> None:
        if self._handle is None:
            safe_files.make_folder(self._folder)
            self._handle = safe_files.open_private(self._path)
        handle, size, written = self._handle, os.fstat(self._handle).st_size, 0
        try:
            while written < len(data):
                written += os.write(handle, data[written:])
        except OSError:
            if written:
                self._remove_torn(handle, size)
            raise

    def _remove_torn(self, handle: int, size: int) -> None:
        """Cut the file to its size before a write that failed: readers read nothing that follows a torn record."""
        try:
            os.ftruncate(handle, size)
        except OSError:
            self._files += 1
            self._path = self._folder / f"{self._name}.{self._files:06d}"  # TensorBoard reads in the order of the names
            self._begun = False
            self.after_fork()
