# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which run a command is about, and how far it is read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from verl_otel import config
from verl_otel.analysis import summary
from verl_otel.analysis.facts import Explanation

QUIET_SECONDS = 1.0
"""Work that is done by then says nothing of its progress."""


def find_folder(named: Path) -> Path:
    """Return a run's folder, which may be said by the run's id alone."""
    if named.exists() or len(named.parts) != 1:
        return named
    known = config.load().run_dir / named
    return known if known.exists() else named


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
        named: Its folder or its id; several for several nodes; none: the newest run.
        steps: Numbers of steps of which all detail is kept.

    Raises:
        FileNotFoundError: There is no such run.
    """
    folders = [find_folder(each) for each in named] or [find_newest()]
    with Meter(sys.stderr) as meter:
        return summary.explain(folders, steps=steps, progress=meter.show)


class Meter:
    """One line on a terminal that says how far the reading is; nothing elsewhere.

    Args:
        stream: Where it is shown.
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
        """Say how many bytes were read, and of how many."""
        if not self._stream.isatty() or time.monotonic() - self._began < QUIET_SECONDS:
            return
        text = f"reading: {done / max(1, total):4.0%} of {total / 1e9:.2f} GB"
        if text != self._shown:
            self._stream.write("\r" + text)
            self._stream.flush()
            self._shown = text
