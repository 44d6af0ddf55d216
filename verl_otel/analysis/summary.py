# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explains a run from its files. How far a large one was read is kept: the next command reads what was added."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel.analysis import reader, saved_state
from verl_otel.analysis.io import run_files
from verl_otel.analysis.model import Explanation
from verl_otel.analysis.reader import RunReader

PIECE_BYTES: Final = 8 << 20
"""Bytes that are read at a time: 12,000 spans, about 30 MB as objects."""
KEPT_SECONDS: Final = 3.0
"""What took longer to read is kept."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes read and the total."""


def explain(folders: Iterable[Path], **options: Any) -> Explanation:
    """Explain a run. Arguments and errors are those of `read`."""
    return read(folders, **options)[0]


def read(
    folders: Iterable[Path],
    *,
    steps: frozenset[int] | None = None,
    progress: Progress | None = None,
    keep_after: float = KEPT_SECONDS,
) -> tuple[Explanation, RunReader]:
    """Explain a run; return its reader, too.

    Args:
        folders: The folder of the run, or one folder per node.
        steps: Numbers of steps whose detail is kept; a short run keeps the detail of all steps.
        progress: Called after each part that was read.
        keep_after: How far it was read is kept for the next call if that took at least this many seconds.

    Raises:
        FileNotFoundError: A folder does not exist or contains no file of a run.
    """
    places, asked = run_files.check_folders(folders), steps or frozenset()
    was_on = gc.isenabled()
    gc.disable()  # nothing here creates cycles, and searching for them takes a third of the time
    try:
        run = reader.resume(places) or reader.begin(places)
        explanation = _read(places, run, asked, progress, keep_after)
        if {step.number for step in explanation.steps if not step.path} & asked:
            run = reader.begin(places)
            explanation = _read(places, run, asked, progress, keep_after)
        return explanation, run
    finally:
        if was_on:
            gc.freeze()
            # Moves all new objects to the oldest generation: the next collection does not scan a million of them.
            gc.unfreeze()
            gc.enable()


def _read(
    places: Sequence[Path], run: RunReader, asked: frozenset[int], progress: Progress | None, keep_after: float
) -> Explanation:
    """Read the rest of a run, and explain it."""
    begin = time.monotonic()
    run.ask(asked)
    run.look()
    while run.is_behind:
        run.read(PIECE_BYTES)
        if progress is not None:
            progress(*run.progress())
    if time.monotonic() - begin >= keep_after:
        saved_state.save(places, reader.COMMAND, run)
    run.finish()
    return run.explain()
