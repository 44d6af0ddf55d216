# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run has ended, and how. After the end of a run processes are expected to exit, whatever they have open."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel.config import Config
from verl_otel.watchdog import process_reports

RUNNING, FINISHED, FAILED = "running", "finished", "failed"
_FILE: Final = "ended"


class RunEnd(NamedTuple):
    """The end of a run."""

    state: str
    """`FINISHED` or `FAILED`."""
    time_ns: int
    """When it was recorded, in nanoseconds, on the clock of the file system, as the heartbeats."""


def mark(config: Config, state: str) -> None:
    """Record that a run has ended, or that it has begun again (`RUNNING`). A failure is not replaced by a later `FINISHED`."""
    folder = config.run_path / process_reports.FOLDER
    path = folder / _FILE
    with contextlib.suppress(OSError):
        if state == RUNNING:
            path.unlink(missing_ok=True)
            return
        recorded = read(folder)
        if recorded is None or recorded.state not in (state, FAILED):
            safe_files.write_atomically(path, state)


def read(folder: Path) -> RunEnd | None:
    """Return the end of the run of a folder; None if it has not ended."""
    path = folder / _FILE
    try:
        content = safe_files.read_bytes(path, 1 << 10, follow=False)
        return RunEnd(FAILED if content == FAILED.encode() else FINISHED, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None
