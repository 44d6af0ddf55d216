# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all runs: what their manifests contain, and what an analysis has found in each, opened or not.

A run is read again only when one of its files has changed. What was found in a run that has ended is kept in the user's
cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from verl_otel._internal import error_boundary
from verl_otel.analysis import reader, saved_state, scalars, step_lengths
from verl_otel.analysis.io import run_files
from verl_otel.analysis.model import Explanation
from verl_otel.cli import run_overview
from verl_otel.cli.documents.base import to_plain
from verl_otel.cli.documents.explain import sum_devices
from verl_otel.cli.headlines import find_headlines
from verl_otel.cli.page import data
from verl_otel.cli.view.watching import Catalogue, Watcher
from verl_otel.semconv.run_state import CRASHED, NO_END, RunState

FRESH_SECONDS: Final = 4.0
"""Age below which the list is not made again: several viewers share it."""
MAX_RUNS: Final = 500
SPARK: Final = 60
"""Points of a small line."""
MAX_RUNNING: Final = 2
"""Running runs whose findings are in the list although no client has opened their pages."""
FINDING: Final = "finding"
"""Name under which the summary of a run that has ended is kept."""
_BAD: Final = frozenset({RunState.FAILED.word, RunState.STOPPED.word, CRASHED, NO_END})
_Row = dict[str, Any]
NOTHING: Final[_Row] = {"finding": None, "productive": None, "seconds_line": [], "reward_line": []}
"""The summary of a run that was not analysed."""


class _Kept(msgspec.Struct):
    signature: str
    """Of the files of the run."""
    summary: _Row


class Listing:
    """The list of runs.

    Args:
        catalogue: The runs.
        watcher: Has what was found in the runs that are being read.
    """

    def __init__(self, catalogue: Catalogue, watcher: Watcher) -> None:
        self._catalogue = catalogue
        self._watcher = watcher
        self._rows: dict[str, tuple[str, _Row]] = {}
        self._folders: dict[str, tuple[Path, ...]] = {}
        self._found: dict[str, _Row] = {}
        """What was found in runs that have ended, by the signature of their files."""
        self._watched: dict[str, tuple[Explanation, _Row]] = {}
        """The last summary of each run that is being read."""
        self._made_at = float("-inf")

    def read(self) -> list[_Row]:
        """Return a row for each run: those that need attention first, of these the running ones, then the newest."""
        self._refresh()
        running = [(not row["stalled"], name) for name, (_, row) in self._rows.items() if _is_running(row)]
        for _, name in sorted(running, key=itemgetter(0))[:MAX_RUNNING]:
            self._watcher.ask(name)
        rows = ({**row, **self._summary(name, signature)} for name, (signature, row) in self._rows.items())
        rated = ({**row, "attention": _rate(row)} for row in rows)
        return sorted(
            rated,
            key=lambda row: (-row["attention"], not row["stalled"], not _is_running(row), -(row["started"] or 0)),
        )

    def find_state(self, name: str) -> str:
        """Return the state of a run; empty if it is not in the list."""
        self._refresh()
        return str(self._rows[name][1]["state"]) if name in self._rows else ""

    def _refresh(self) -> None:
        if time.monotonic() - self._made_at > FRESH_SECONDS:
            self._folders = dict(list(self._catalogue.find().items())[:MAX_RUNS])
            self._rows = {name: self._read(name, folders) for name, folders in self._folders.items()}
            for gone in self._found.keys() - {signature for signature, _ in self._rows.values()}:
                self._found.pop(gone, None)
            self._made_at = time.monotonic()

    def _read(self, name: str, folders: tuple[Path, ...]) -> tuple[str, _Row]:
        signature = _sign(folders)
        known = self._rows.get(name)
        if known is not None and known[0] == signature and not _is_running(known[1]):
            return known
        kept = saved_state.load(folders, FINDING, _Kept)
        if kept is not None and kept.signature == signature:
            self._found[signature] = kept.summary
        overviews = [run_overview.read(folder) for folder in folders]
        overview = max(overviews, key=lambda overview: overview.last_step or -1)
        events = run_files.read_events(folders, [])
        is_stalled = any(event.kind == "stall" and not event.resolved for event in events)
        row = {
            **to_plain(overview),
            "run": name,
            "folder": None,
            "nodes": len(folders),
            "stalled": is_stalled and overview.state == RunState.RUNNING.word,
        }
        return signature, data.clean(row)

    def _summary(self, name: str, signature: str) -> _Row:
        """Return what was found in a run: now, if it is being read; else what was kept of it."""
        run = self._watcher.peek(name)
        if run is None or not run.steps:
            self._watched.pop(name, None)
            return self._found.get(signature) or NOTHING
        if name not in self._watched or self._watched[name][0] is not run:
            self._watched[name] = run, summarise(run)
        return self._watched[name][1]

    def analyse(self) -> Iterator[bool]:
        """Analyse the runs that have ended and that no client has opened, the smallest first.

        Yields:
            Whether a piece of one was read. It does not end.
        """
        while True:
            for name, (signature, row) in sorted(self._rows.items(), key=lambda item: item[1][1]["bytes"]):
                folders = self._folders.get(name)
                if signature in self._found or _is_running(row) or folders is None:
                    continue
                known, age = self._watcher.peek(name), self._watcher.find_age(name)
                if known is not None and age is not None:
                    continue  # it is being read for a client
                found: _Row = {}
                try:
                    if known is None:
                        live = reader.begin_page(folders)
                        live.look()
                        while live.is_behind:
                            live.read()
                            yield True
                        live.finish()
                        known = live.explain()
                    found = summarise(known)
                except Exception as error:  # one damaged run must not end the reading of the others
                    error_boundary.record_internal_error("live page", error)
                self._found[signature] = found
                saved_state.save(folders, FINDING, _Kept(signature, found), keep=MAX_RUNS)
                yield True
            yield False


def summarise(run: Explanation) -> _Row:
    """Return what the list shows of a run: its first finding, steps and reward as small lines, its productive share."""
    starting = set(map(id, step_lengths.find_start_up(run.steps)))
    summary: _Row = data.clean(
        {
            "finding": next(map(to_plain, find_headlines(run)), None),
            "seconds_line": _thin([step.seconds for step in run.steps if id(step) not in starting]),
            "reward_line": _thin(list(scalars.find_rewards(run.series).values())),
            "productive": sum_devices(run.devices).states.get("productive"),
        }
    )
    return summary


def _is_running(row: _Row) -> bool:
    return bool(row["state"] == RunState.RUNNING.word)


def _rate(row: _Row) -> int:
    """Return how much a run needs attention: 2: an action is needed now, 1: it ended with a finding, 0: none."""
    has_finding = bool(row.get("finding") and row["finding"]["is_finding"])
    if row["state"] in _BAD or row["stalled"] or (_is_running(row) and has_finding):
        return 2
    return int(has_finding)


def _thin(values: list[float]) -> list[float | None]:
    return data.thin(values, values, SPARK)[1]


def _sign(folders: tuple[Path, ...]) -> str:
    """Return a signature of the files of a run: none has changed while it is the same."""
    entries: list[tuple[str, int, int]] = []
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            entries += sorted((entry.path, (status := entry.stat()).st_size, status.st_mtime_ns) for entry in found)
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:32]
