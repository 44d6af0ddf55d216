# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Console exporter: one line for each ended root span, without any file or service."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Final, TextIO

from verl_otel._internal import log_lines
from verl_otel._internal.printable import show
from verl_otel.exporting.base import Exporter
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import STATUS_ERROR

if TYPE_CHECKING:
    from verl_otel.exporting.base import MetricState
    from verl_otel.model import Batch, Resource, Scope, SpanRecord

MAX_WAITING: Final = 1000
MAX_LINE: Final = 2000
_SHOWN = (attr.STEP_NUMBER, attr.SAMPLE_UID, attr.ROLLOUT_INDEX, attr.REWARD_SCORE, attr.DATA_SOURCE, attr.ERROR_TYPE)


class ConsoleExporter(Exporter):
    """Prints a line for every span that has no parent, to standard error."""

    name = "console"

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._waiting: deque[SpanRecord] = deque(maxlen=MAX_WAITING)

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - the base's signature
        """Read the role of this process."""
        self._role = resource.text(attr.ROLE, "process")

    def consume(self, batch: Batch) -> None:
        """Queue the root spans for the next `poll`."""
        roots = [span for span in batch.spans if not span.parent_id]
        self.drop("spans", len(self._waiting) + len(roots) - MAX_WAITING, "console queue full")
        self._waiting.extend(roots)

    def poll(self) -> None:
        """Print the queued spans, as far as the stream takes them without blocking."""
        stream = self._stream or sys.stderr
        while self._waiting:
            line = _describe(self._role, self._waiting[0])
            if not log_lines.takes(stream, len(line.encode("utf-8", "replace")) + 1):
                return
            self._waiting.popleft()
            try:
                print(line, file=stream)
            except (OSError, ValueError) as error:  # a closed pipe or stream
                self.drop("spans", 1, f"cannot print: {type(error).__name__}")

    def flush(self, deadline: float) -> None:  # noqa: ARG002 - it does not wait
        """Print the queued spans, as far as the stream takes them without blocking."""
        self.poll()

    def close(self, deadline: float) -> None:
        """Print the queued spans; those that the stream does not take are lost and counted."""
        self.flush(deadline)
        self.drop("spans", len(self._waiting), "the stream takes no more: it is full, and not read")
        self._waiting.clear()


def _describe(role: str, span: SpanRecord) -> str:
    seconds = (span.end_ns - span.start_ns) / 1e9
    details = " ".join(f"{key.rpartition('.')[2]}={span.attributes[key]}" for key in _SHOWN if key in span.attributes)
    failed = " FAILED" if span.status == STATUS_ERROR else ""
    line = f"verl-otel [{role}] {span.name} {seconds:.3f} s{failed} {details}".rstrip()
    return show(line, MAX_LINE)
