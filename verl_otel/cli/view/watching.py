# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the runs that clients request, then the others. One thread reads, another answers: one lock guards all runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from verl_otel._internal import error_boundary
from verl_otel.analysis import reader, saved_state
from verl_otel.analysis.model import Explanation
from verl_otel.cli.run_folders import is_run, list_runs
from verl_otel.semconv.run_state import ENDS, NO_END

LOOK_SECONDS: Final = 2.0
"""How often files are looked at."""
FRESH_SECONDS: Final = 0.5
"""A request has the files looked at if the last look is longer ago: what a viewer gets is not behind by a look."""
IDLE_SECONDS: Final = 120.0
"""A run that no client requested in this time is dropped."""
MAX_WATCHED: Final = 4
"""Runs that are read at the same time; above it the one whose last request is the oldest is dropped."""
REST_SHARE: Final = 1.0
"""After each piece of a run, time for the training: this multiple of the time that the piece took."""
EXPLAIN_SHARE: Final = 150.0
"""Seconds between explanations, as a multiple of the CPU time that one takes: a long run is explained less often."""
ABANDONED_SECONDS: Final = 600.0
"""A run without an end that was written longer ago than this is taken to have ended."""


class _Watched:
    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.live = reader.begin_page(folders)
        self.asked_at = time.monotonic()
        self.explanation: Explanation | None = None
        self.explained = -1
        """Version of the run when it was explained."""
        self.read_share = 0.0
        """Share of its files that had been read when it was explained."""
        self.explain_at = 0.0
        """When it may be explained again."""
        self.explained_at = time.monotonic()
        """When it was explained."""
        self.looked_at = float("-inf")
        """When its files were looked at."""
        self.spent = 0.0
        """CPU seconds that reading it took since it was saved."""

    def look(self) -> None:
        """Look for what is new, unless that was done just now, and read a piece of it."""
        now = time.monotonic()
        if now - self.looked_at < FRESH_SECONDS:
            return
        self.looked_at = now
        self.live.look()
        if self.live.is_behind and (self.live.is_finished or self.live.has_other_attempts()):
            self.live = reader.begin_page(self.live.folders)
            self.live.look()
        self.read()

    def read(self) -> None:
        """Read a piece."""
        begin = time.thread_time()
        self.live.read()
        self.spent += time.thread_time() - begin

    def save(self) -> None:
        """Keep how far it was read, if that took long."""
        if self.spent > reader.KEPT_SECONDS and not self.live.is_finished:
            saved_state.save(self.live.folders, reader.PAGE, self.live)
            self.spent = 0.0

    def explain(self) -> Explanation:
        """Return the explanation of the run; a new one at most every few seconds, also while it is first read."""
        is_due = time.monotonic() >= self.explain_at and self.explained != self.live.version
        was_read = self.read_share < 1 and not self.live.is_behind  # what is shown is a part of what was read
        if self.explanation is None or is_due or was_read:
            self._finish(self._explain_now())
        return self.explanation  # type: ignore[return-value]  # set above

    def _explain_now(self) -> Explanation:
        begin = time.thread_time()
        self.explained = self.live.version
        self.explained_at = time.monotonic()
        self.explanation = self.live.explain()
        read, size = self.live.progress()
        self.read_share = read / size if size else 1.0
        used = time.thread_time() - begin
        self.explain_at = time.monotonic() + max(LOOK_SECONDS / 2, EXPLAIN_SHARE * used)
        return self.explanation

    def _finish(self, run: Explanation) -> None:
        """Complete a run that has ended and was read to its end."""
        age = time.time() - run.end_ns / 1e9
        has_ended = run.state in ENDS or (run.state == NO_END and age > ABANDONED_SECONDS)
        if not has_ended or self.live.is_behind or self.live.is_finished:
            return
        self.live.look()
        if not self.live.is_behind:
            self.save()
            self.live.finish()
            self._explain_now()


class Watcher:
    """The runs that are being read.

    Args:
        catalogue: The runs that there are.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._runs: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def ask(self, name: str) -> tuple[Explanation, float] | None:
        """Return what is known of a run, and the share of its files that was read; None if there is no such run.

        The run is read from now on. The first answer has what one piece of its files contains.
        """
        with self._lock:
            watched = self._runs.get(name)
            if watched is None:
                folders = self._catalogue.find().get(name)
                if folders is None:
                    return None
                watched = self._runs[name] = _Watched(folders)
                self._forget()
            watched.look()
            watched.asked_at = time.monotonic()
            return watched.explain(), watched.read_share

    def peek(self, name: str) -> Explanation | None:
        """Return what was last known of a run that is being read; it is not read any longer because of this."""
        with self._lock:
            watched = self._runs.get(name)
            return None if watched is None else watched.explanation

    def find_age(self, name: str) -> float | None:
        """Return how many seconds ago a run was explained; None if it has ended and all its files were read."""
        with self._lock:
            watched = self._runs.get(name)
            return None if watched is None or watched.live.is_finished else time.monotonic() - watched.explained_at

    def run(self, stopped: threading.Event, others: Iterator[bool]) -> None:
        """Read until it is stopped.

        Args:
            stopped: Set when it is.
            others: Reads a piece of a run that no client has requested; false: there is none.
        """
        while not stopped.is_set():
            begin = time.monotonic()
            try:
                self._look()
                while time.monotonic() < begin + LOOK_SECONDS and not stopped.is_set():
                    began = time.thread_time()
                    if not self._read_once() and not next(others):
                        break
                    time.sleep(REST_SHARE * (time.thread_time() - began))
            except Exception as error:  # one damaged run must not end the reading of the others
                error_boundary.record_internal_error("live page", error)
            stopped.wait(max(0.0, begin + LOOK_SECONDS - time.monotonic()))

    def _look(self) -> None:
        with self._lock:
            self._forget()
            for watched in self._runs.values():
                watched.look()

    def _read_once(self) -> bool:
        """Read a piece of each run that is behind; return whether there is one."""
        with self._lock:
            behind = [run for run in self._runs.values() if run.live.is_behind and not run.live.is_finished]
            for watched in behind:
                watched.read()
        return bool(behind)

    def _forget(self) -> None:
        now = time.monotonic()
        oldest_first = sorted(self._runs, key=lambda name: self._runs[name].asked_at)
        for place, name in enumerate(oldest_first):
            if now - self._runs[name].asked_at > IDLE_SECONDS or len(oldest_first) - place > MAX_WATCHED:
                self._runs.pop(name).save()


# -- The runs that the page shows, by name. A name from a request is looked up here and is never part of a path --


class Catalogue:
    """Finds the runs again at each call: new ones appear, deleted ones go.

    Args:
        folders: Folders of runs, and folders that hold one per run. Those of the same name are nodes of one run.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)

    def find(self) -> dict[str, tuple[Path, ...]]:
        """Return the folders of each run by its name, the run that was started last first."""
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
