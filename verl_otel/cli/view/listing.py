# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all runs with what the ends of their files contain. A run is read again only when one of its files has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from verl_otel.analysis.io import events
from verl_otel.cli.page import downsampling
from verl_otel.cli.runs import file_ends, overview, render
from verl_otel.cli.view import api
from verl_otel.cli.view.catalogue import Catalogue
from verl_otel.cli.view.watching import Watcher
from verl_otel.semconv import metric_names

FRESH_SECONDS: Final = 4.0
"""Age below which the list is not made again: several viewers share it."""
MAX_RUNS: Final = 500
MAX_RUNNING: Final = 2
"""Running runs whose verdicts are in the list although no client has opened their pages."""
REWARDS: Final = ("verl.critic.rewards.mean", "verl.critic.score.mean", metric_names.AVERAGE_REWARD)
_Signature = tuple[tuple[str, int, int], ...]


class Listing:
    """The list of runs.

    Args:
        catalogue: The runs.
        watcher: Has the verdicts of the runs that are being read.
    """

    def __init__(self, catalogue: Catalogue, watcher: Watcher) -> None:
        self._catalogue = catalogue
        self._watcher = watcher
        self._rows: dict[str, tuple[_Signature, dict[str, Any]]] = {}
        self._made_at = float("-inf")

    def read(self) -> list[dict[str, Any]]:
        """Return a row for each run, the one that was written last first."""
        self._refresh()
        running = [name for name, (_, row) in self._rows.items() if row["state"] == overview.RUNNING][:MAX_RUNNING]
        for name in running:
            self._watcher.ask(name)
        return [{**row, "last": self._last_step(name)} for name, (_, row) in self._rows.items()]

    def _refresh(self) -> None:
        if time.monotonic() - self._made_at > FRESH_SECONDS:
            runs = dict(list(self._catalogue.find().items())[:MAX_RUNS])
            self._rows = {name: self._read(name, folders) for name, folders in runs.items()}
            self._made_at = time.monotonic()

    def find_state(self, name: str) -> str:
        """Return the state of a run; empty if it is not in the list."""
        self._refresh()
        return str(self._rows[name][1]["state"]) if name in self._rows else ""

    def _read(self, name: str, folders: tuple[Path, ...]) -> tuple[_Signature, dict[str, Any]]:
        signature = tuple(entry for folder in folders for entry in _sign(folder))
        known = self._rows.get(name)
        if known is not None and known[0] == signature and known[1]["state"] != overview.RUNNING:
            return known
        rows = [render.to_json(overview.read(folder)) for folder in folders]
        row = max(rows, key=lambda row: row["last_step"] or -1)
        found = events.read(folders, [])
        rewards = [file_ends.read_last(folder, REWARDS) for folder in folders]
        reward = next((value for value in rewards if value is not None), None)
        return signature, {
            **row,
            "run": name,
            "folder": None,
            "nodes": len(folders),
            "reward": None if reward is None else downsampling.finite(reward),
            "alarms": len(found),
            "open_alarms": sum("resolved" not in event.detail for event in found),
        }

    def _last_step(self, name: str) -> dict[str, Any] | None:
        run = self._watcher.peek(name)
        return api.describe_step(run.steps[-1]) if run is not None and run.steps else None


def _sign(folder: Path) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, (status := entry.stat()).st_size, status.st_mtime_ns) for entry in entries)
    except OSError:
        return []
