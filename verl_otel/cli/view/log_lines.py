# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The last lines of the run log (``verl_logs*.jsonl``), if the run has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from verl_otel._internal import printable, safe_files
from verl_otel.analysis.io import run_log
from verl_otel.analysis.io.run_log import Record
from verl_otel.cli.logs.command import render_line

LINES: Final = 50
TAIL_BYTES: Final = 64 << 10
MAX_FILES: Final = 16
LONGEST: Final = 500


def read(folders: Iterable[str]) -> list[str]:
    """Return the last records of all processes as ``verl-otel logs`` shows them, the oldest first."""
    paths = [path for path in run_log.find_files(map(Path, folders)) if not run_log.is_rotated(path)]
    records = sorted((record for path in paths[:MAX_FILES] for record in _read(path)), key=run_log.time_of)
    return [printable.show(render_line(record), LONGEST) for record in records[-LINES:]]


def _read(path: Path) -> Iterator[Record]:
    try:
        data = safe_files.read_tail(path, TAIL_BYTES)
    except OSError:  # it was deleted meanwhile
        return
    for line in data.splitlines()[-LINES:]:
        record = run_log.parse(line)
        if record is not None:
            yield record
