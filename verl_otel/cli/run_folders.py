# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the folders of runs. What is not the folder of a run, such as ``targets``, is passed over."""

from __future__ import annotations

import os
from pathlib import Path

from verl_otel.session.run_manifest import NAME as MANIFEST


def is_mark(name: str) -> bool:
    """Return whether a file of this name makes its folder that of a run: ``run.json`` or ``traces-*.jsonl``."""
    return name == MANIFEST or (name.startswith("traces-") and name.endswith((".jsonl", ".jsonl.gz")))


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run. A folder that cannot be read is none."""
    try:
        with os.scandir(folder) as entries:
            return any(is_mark(entry.name) for entry in entries)
    except OSError:
        return False


def list_runs(base: Path) -> list[Path]:
    """Return the folders of runs in a folder, the one that was written last first.

    Args:
        base: The folder that holds one folder per run; without it there is no run.

    Raises:
        OSError: It exists and cannot be read, or is no folder.
    """
    try:
        runs = [path for path in base.iterdir() if is_run(path)]
    except FileNotFoundError:
        return []
    return sorted(runs, key=modified, reverse=True)


def modified(path: Path) -> float:
    """Return when a file or folder was modified; 0 if it was deleted meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
