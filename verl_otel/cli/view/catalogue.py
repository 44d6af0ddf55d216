# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The runs that the page shows, by name. A name from a request is looked up here and is never part of a path."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from verl_otel.cli.run_folders import is_run, list_runs


class Catalogue:
    """Finds the runs again at each call: new ones appear, deleted ones go.

    Args:
        folders: Folders of runs, and folders that hold one folder per run. Folders of the same name are nodes of one run.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)

    def find(self) -> dict[str, tuple[Path, ...]]:
        """Return the folders of each run by its name, the run that was written last first."""
        found: dict[str, list[Path]] = {}
        for folder in self._folders:
            for run in [folder] if is_run(folder) else _list(folder):
                found.setdefault(run.absolute().name, []).append(run)
        return {name: tuple(folders) for name, folders in found.items()}


def _list(base: Path) -> list[Path]:
    try:
        return list_runs(base)
    except OSError:  # it was deleted, or cannot be read for a while
        return []
