# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Selects the runs that may be deleted, and deletes them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.cli.formatting import age, show_bytes
from verl_otel.cli.run_folders import is_mark, is_run
from verl_otel.cli.runs import overview
from verl_otel.cli.runs.overview import Overview

RECENT_SECONDS: Final = 3600.0
"""A run that was written less than this long ago is not deleted."""


class Limits(NamedTuple):
    """What is kept; None: no such limit."""

    older_than: float | None = None
    """Delete runs that were last written more than this many seconds ago."""
    keep: int | None = None
    """Keep at least this many runs, the newest; without the other two limits delete all others."""
    max_bytes: int | None = None
    """Delete the oldest runs until the others have at most this size."""


class Choice(NamedTuple):
    """A run that a limit selects."""

    run: Overview
    reason: str
    """The limit that it exceeds."""
    protected: str
    """Why it is not deleted all the same; empty: it may be deleted."""


def choose(runs: Sequence[Overview], limits: Limits) -> list[Choice]:
    """Return the runs that the limits select.

    Args:
        runs: All runs, newest first.
        limits: At least one of them is set.
    """
    candidates = runs[limits.keep or 0 :]
    if limits.older_than is None and limits.max_bytes is None:
        return [_choice(run, f"not one of the newest {limits.keep}") for run in candidates]
    old = [] if limits.older_than is None else list(_find_old(candidates, limits.older_than))
    if limits.max_bytes is None:
        return old
    deleted = {choice.run.folder for choice in old if not choice.protected}
    rest = [run for run in runs if run.folder not in deleted]
    return old + [
        choice
        for choice in _find_excess(rest, {run.folder for run in candidates}, limits.max_bytes)
        if choice.run.folder not in {other.run.folder for other in old}
    ]


def _find_old(runs: Sequence[Overview], seconds: float) -> Iterator[Choice]:
    now = time.time()
    for run in runs:
        if now - run.written > seconds:
            yield _choice(run, f"older than {age(seconds)}")


def _find_excess(runs: Sequence[Overview], candidates: set[Path], max_bytes: int) -> Iterator[Choice]:
    total = sum(run.size for run in runs)
    for run in reversed(runs):
        if total <= max_bytes:
            return
        if run.folder in candidates:
            choice = _choice(run, f"all runs exceed {show_bytes(max_bytes)}")
            total -= 0 if choice.protected else run.size
            yield choice


def _choice(run: Overview, reason: str) -> Choice:
    return Choice(run, reason, find_protection(run))


def find_protection(run: Overview) -> str:
    """Return why a run must not be deleted; empty if it may be."""
    if run.folder.is_symlink():
        return "a symbolic link"
    if run.state == overview.RUNNING:
        return "running"
    passed = time.time() - run.written
    return f"written {age(passed)} ago" if passed < RECENT_SECONDS else ""


def delete(folder: Path) -> str:
    """Delete a run, unless it has been continued since it was selected.

    The files that make the folder that of a run are deleted last: after an interruption the rest is still listed, and deleted the
    next time. Symbolic links are deleted, and not what they point to.

    Returns:
        Why it was not deleted; empty if it was.
    """
    if not is_run(folder):
        return "not a run any more"
    reason = find_protection(overview.read(folder))
    if reason:
        return reason
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: is_mark(entry.name))
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)  # noqa: PTH108 - an entry of `scandir`
        folder.rmdir()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""
