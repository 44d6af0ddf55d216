# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Selects the run of a command, and shows the progress of reading it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from verl_otel import config
from verl_otel.analysis import summary
from verl_otel.analysis.model import Explanation

QUIET_SECONDS = 1.0
"""Shorter work shows no progress."""


def find_folder(named: Path) -> Path:
    """Return a run's folder, given by path or by the run's id."""
    if named.exists() or len(named.parts) != 1:
        return named
    default = config.load().run_dir / named
    return default if default.exists() else named


def find_newest() -> Path:
    """Return the folder of the newest run.

    Raises:
        FileNotFoundError: There is none.
    """
    base = config.load().run_dir
    runs = {path.parent for pattern in ("*/run.json", "*/traces-*") for path in base.glob(pattern)}
    if not runs:
        raise FileNotFoundError(f"no run in {base}: train with VERL_OTEL_ENABLED=1 first, or give a folder")
    return max(runs, key=lambda path: path.stat().st_mtime)


def explain(named: Iterable[Path], *, steps: frozenset[int] | None = None) -> Explanation:
    """Read a run, with progress on a terminal.

    Args:
        named: Folder or id of the run; several for several nodes; none: the newest run.
        steps: Numbers of steps whose detail is kept.

    Raises:
        FileNotFoundError: There is no such run.
    """
    folders = [find_folder(path) for path in named] or [find_newest()]
    with Meter(sys.stderr) as meter:
        return summary.explain(folders, steps=steps, progress=meter.show)


class Meter:
    """Shows the progress of reading as one line on a terminal; silent elsewhere.

    Args:
        stream: Stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._shown = ""

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._stream.flush()

    def show(self, done: int, total: int) -> None:
        """Show the number of bytes read and the total."""
        if not self._stream.isatty() or time.monotonic() - self._began < QUIET_SECONDS:
            return
        text = f"reading: {done / max(1, total):4.0%} of {total / 1e9:.2f} GB"
        if text != self._shown:
            self._stream.write("\r" + text)
            self._stream.flush()
            self._shown = text
