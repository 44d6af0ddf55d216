# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the list of runs as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel._internal.printable import show
from verl_otel.cli.formatting import align, seconds, show_bytes
from verl_otel.cli.runs.overview import Overview

UNKNOWN: Final = "-"
_TITLES: Final = ("run", "state", "steps", "last step", "started", "duration", "size", "folder")
_RIGHT: Final = tuple(map(_TITLES.index, ("steps", "size")))
"""Columns that are aligned to the right."""


def to_json(run: Overview) -> dict[str, Any]:
    """Return a run as plain data. The keys are stable; times in seconds since 1970, null for unknown values."""
    return {
        "run": run.folder.name,
        "state": run.state,
        "steps": run.steps,
        "last_step": run.last_step,
        "last_step_seconds": run.last_step_seconds,
        "started": run.started,
        "seconds": run.seconds,
        "bytes": run.size,
        "written": run.written,
        "folder": str(run.folder),
    }


def render(runs: Sequence[Overview], base: Path) -> str:
    """Return the table of runs, and a line with their number and size."""
    rows = [_TITLES, *(tuple(map(show, _cells(run))) for run in runs)]
    total = show_bytes(sum(run.size for run in runs))
    return "\n".join([*align(rows, _RIGHT), "", f"{count(runs)} in {show(base)}, {total}"])


def count(runs: Sequence[object]) -> str:
    """Return the number of runs with its noun."""
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"


def _cells(run: Overview) -> tuple[str, ...]:
    return (
        run.folder.name,
        run.state,
        UNKNOWN if run.steps is None else f"{run.steps:,}",
        _last_step(run),
        UNKNOWN if run.started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
        UNKNOWN if run.seconds is None else seconds(run.seconds),
        show_bytes(run.size),
        str(run.folder),
    )


def _last_step(run: Overview) -> str:
    if run.last_step is None:
        return UNKNOWN
    took = "" if run.last_step_seconds is None else f" ({seconds(run.last_step_seconds)})"
    return f"{run.last_step}{took}"
