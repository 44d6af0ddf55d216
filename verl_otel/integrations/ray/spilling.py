# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What Ray's object store wrote to disk and read back, from the log of the raylet of this node.

The raylet logs sums since it began, in whole MiB, with the mean throughput: what it read back after each read, once a second at most, and what it
wrote when that has reached 2 GiB and at each doubling (``RAY_verbose_spill_logs``; 0: never). Ray's agent exports neither seconds nor sums of bytes.
To ask the raylet itself would load gRPC into a process of the training, whose forked children may then hang.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from verl_otel.integrations import cluster_store
from verl_otel.recording.collection import Measurement
from verl_otel.recording.series import counter
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system.collectors import Collector, NodeScope

MAX_BYTES: Final = 1 << 20
"""Bytes of the log that are read at once: the newest ones, whose sums include those before."""
MAX_LOGS: Final = 64
"""Logs of raylets that are looked at: nodes on one machine share a folder."""
HEAD_BYTES: Final = 4096
"""The raylet logs the id of its node in its first lines."""
_LINE: Final = re.compile(
    rb"local_object_manager\.cc:\d+: (?::info_message:)?(Spilled|Restored) (\d+) MiB, \d+ objects, (?:write|read) throughput (\d+) MiB/s"
)
_DIRECTIONS: Final = {b"Spilled": "write", b"Restored": "read"}


class SpillCollector(Collector):
    """Counts what the object store of this node wrote and read since it is read."""

    name = "ray spilling"
    metrics = ()
    """Its counters are ordinary ones, so that they are written to files when they grow and not once a minute."""
    once_per_node = True

    def __init__(self) -> None:
        self._log: Path | None = None
        self._position = 0
        self._sums: dict[bytes, tuple[int, float]] = {}
        """Bytes and seconds since the raylet began."""

    def read(self, scope: NodeScope) -> Iterable[Measurement]:  # noqa: ARG002 - see `Collector`
        """Count what the log has more than before. A reader that begins counts nothing of what the log has already."""
        try:
            if self._log is None:
                self._log = find_log()
                if self._log is not None:
                    self._position = max(0, self._log.stat().st_size - MAX_BYTES)
                    is_whole = self._position == 0
                    self._sums = dict.fromkeys(_DIRECTIONS, (0, 0.0)) if is_whole else {}
                    self._sums |= self._read_sums()
                return ()
            for kind, sums in self._read_sums().items():
                before = self._sums.get(kind, sums)
                self._sums[kind] = sums
                labels = ((attr.DISK_DIRECTION, _DIRECTIONS[kind]),)
                if sums[0] > before[0]:
                    counter(metric_names.RAY_SPILL_IO, labels).record(sums[0] - before[0])
                    counter(metric_names.RAY_SPILL_TIME, labels).record(max(0.0, sums[1] - before[1]))
        except OSError:  # the session's folder is closed, or gone
            self._log = None
        return ()

    def close(self) -> None:
        """Forget the log."""
        self._log, self._position, self._sums = None, 0, {}

    def _read_sums(self) -> dict[bytes, tuple[int, float]]:
        """Return the newest sums of the lines that were added."""
        assert self._log is not None  # noqa: S101 - see `read`
        with self._log.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._position:  # it was replaced
                self._position = 0
            file.seek(max(self._position, size - MAX_BYTES))
            text = file.read(MAX_BYTES)
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be written in parts
        self._position = size - len(text) + len(whole)
        return {
            kind: (int(mebibytes) << 20, int(mebibytes) / int(rate) if int(rate) else 0.0)
            for kind, mebibytes, rate in _LINE.findall(whole)
        }


def find_log() -> Path | None:
    """Return the log of the raylet of this node; None if this process is not of a cluster, or there is none here. Asks nothing.

    Raises:
        OSError: The folder cannot be read.
    """
    worker: Any = getattr(getattr(sys.modules.get("ray"), "_private", None), "worker", None)
    node = getattr(worker, "_global_node", None)
    if node is None or not cluster_store.is_connected():
        return None
    own = f"node_id={cluster_store.runtime_context().get_node_id()}".encode()
    for path in sorted(Path(node.get_logs_dir_path()).glob("raylet*.out"))[:MAX_LOGS]:
        with path.open("rb") as file:
            if own in file.read(HEAD_BYTES):
                return path
    return None
