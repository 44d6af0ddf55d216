# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run has ended, and how: from then on processes are expected to go, whatever they hold."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.config import Config
from verl_otel.session.black_box import members

RUNNING, FINISHED, FAILED = "running", "finished", "failed"
_MARK: Final = "ended"


class Mark(NamedTuple):
    """The end of a run."""

    state: str
    """`FINISHED` or `FAILED`."""
    time_ns: int
    """When it was said, in nanoseconds, on the clock of the file system: that of the signs of life."""


def mark(config: Config, state: str) -> None:
    """Say that a run has ended, or that it has begun again (`RUNNING`). What failed has not finished, whoever says so later."""
    folder = config.run_path / members.FOLDER
    path = folder / _MARK
    with contextlib.suppress(OSError):
        if state == RUNNING:
            path.unlink(missing_ok=True)
            return
        known = read(folder)
        if known is None or known.state not in (state, FAILED):
            temporary = folder / f"{_MARK}.{os.getpid()}.tmp"
            temporary.write_text(state, "utf-8")
            temporary.replace(path)


def read(folder: Path) -> Mark | None:
    """Return the end of the run of a folder; None if it has not ended."""
    path = folder / _MARK
    try:
        return Mark(FAILED if path.read_bytes() == FAILED.encode() else FINISHED, path.stat().st_mtime_ns)
    except OSError:
        return None
