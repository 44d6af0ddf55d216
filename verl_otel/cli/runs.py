# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""List the runs of a folder, the newest first; delete old ones with --prune.

DIR is the folder that holds one folder per run; that of VERL_OTEL_RUN_DIR if absent. The newest run is the one that was started, or resumed,
last. Only what the run itself wrote into run.json is read, so that the list is quick for runs of any size; what that does not contain, as in runs
of an older version, is shown as "-". A step that has begun and not ended is not counted.

With --prune at least one of --older-than, --keep and --max-size says what is deleted, and nothing is deleted without --yes. --keep N
protects the newest N runs from the other two; alone, it deletes all others. A run that is running, or was written within the last hour,
is never deleted, nor are symbolic links and folders that are not runs.

Exit code: 0 listed or done, 1 there is no run, or one could not be deleted, 2 wrong usage.

Examples:
  verl-otel runs
  verl-otel runs /data/runs --json | jq -r '.runs[] | select(.state == "failed") | .run'
  verl-otel runs --prune --older-than 30d
  verl-otel runs --prune --older-than 30d --keep 5 --max-size 100GiB --yes
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel import config
from verl_otel._internal.printable import counted, seconds, show, show_lines
from verl_otel.analysis import saved_state
from verl_otel.analysis.io.run_files import holds_run
from verl_otel.cli import options, run_folders, run_overview
from verl_otel.cli.documents.base import fill
from verl_otel.cli.documents.runs import Pruned, PrunedRow, RunRow, Runs
from verl_otel.cli.formatting import SENTENCE, age, align, print_json, show_bytes
from verl_otel.cli.run_folders import is_data_folder, is_mark, is_run, list_runs
from verl_otel.errors import VerlOtelError
from verl_otel.semconv.run_state import RunState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="folder that holds one folder per run")
    options.add_run_dir(parser)
    options.add_json(parser)
    group = parser.add_argument_group("retention")
    group.add_argument("--prune", action="store_true", help="show which runs would be deleted; with --yes, delete them")
    group.add_argument(
        "--older-than",
        type=options.duration,
        metavar="AGE",
        help="delete runs that were last written longer ago than this: 12h, 30d, 8w",
    )
    group.add_argument("--keep", type=options.count, metavar="N", help="keep at least the newest N runs")
    group.add_argument(
        "--max-size",
        type=options.size,
        metavar="SIZE",
        help="delete the oldest runs until the others have at most this size: 500MiB, 10GiB",
    )
    group.add_argument("--yes", action="store_true", help="delete; without it nothing is deleted")


def run(arguments: argparse.Namespace) -> int:
    """List or delete. Returns 1 when there is no run to list, or one could not be deleted."""
    limits = Limits(arguments.older_than, arguments.keep, arguments.max_size)
    _check(arguments, limits)
    base = config.read("run_dir") if arguments.folder is None else arguments.folder
    if arguments.folder is not None:
        _check_folder(base)
    runs = [run_overview.read(folder) for folder in list_runs(base)]
    if arguments.prune:
        return _prune(choose(runs, limits), base, yes=arguments.yes, as_json=arguments.json)
    if arguments.json:
        print_json(fill(Runs, None, runs=runs, next=[_find_next(runs, base)]))
    elif runs:
        print(render(runs, base))
    if not runs:
        print(f"verl-otel: {show_lines(run_folders.describe_none(base), longest=5_000)}", file=sys.stderr)
    return int(not runs)


def _check(arguments: argparse.Namespace, limits: Limits) -> None:
    """Check that the options belong together. Raises `VerlOtelError`."""
    has_limit = any(limit is not None for limit in limits)
    if arguments.prune and not has_limit:
        raise VerlOtelError("--prune needs to know what to delete: give --older-than, --keep or --max-size")
    if not arguments.prune and (has_limit or arguments.yes):
        raise VerlOtelError("--older-than, --keep, --max-size and --yes belong to --prune")


def _check_folder(base: Path) -> None:
    """Check that a given folder can hold runs.

    Raises:
        VerlOtelError: It is missing, a file, a run, or the folder of a stack.
    """
    if not base.exists():
        raise VerlOtelError(run_folders.describe_path(base))
    if not base.is_dir():
        raise VerlOtelError(f"{base} is a file: give the folder that holds one folder per run")
    if is_data_folder(base):
        raise VerlOtelError(run_folders.describe_folder(base, "report"))
    if holds_run(base):
        report = shlex.join(["verl-otel", "report", str(base)])
        listing = shlex.join(["verl-otel", "runs", str(base.parent)])
        raise VerlOtelError(f"{base} is a run: {report}; {listing} lists the folder")


def _prune(choices: Sequence[Choice], base: Path, *, yes: bool, as_json: bool) -> int:
    """Delete the chosen runs, or show what would be deleted. Returns 1 when one could not be deleted."""
    results = [(choice, choice.protected) for choice in choices]
    failed = 0
    if yes:
        results = [(choice, choice.protected or delete(Path(choice.run.folder))) for choice in choices]
        failed = sum(bool(problem) and not choice.protected for choice, problem in results)
    if as_json:
        rows = [
            fill(PrunedRow, choice.run, reason=choice.reason, deleted=yes and not kept, kept=kept or None)
            for choice, kept in results
        ]
        following = shlex.join(["verl-otel", "runs", *_name_folder(base)])
        print_json(fill(Pruned, None, runs=rows, next=[following]))
    else:
        print("\n".join(_lines(results, yes=yes)))
    return int(failed > 0)


def _lines(results: Sequence[tuple[Choice, str]], *, yes: bool) -> list[str]:
    word = "deleted" if yes else "would be deleted"
    lines = []
    for choice, kept in results:
        about = f"{choice.run.run}  {show_bytes(choice.run.bytes)}  {age(time.time() - choice.run.written)} old"
        lines.append(show(f"{about}  {f'kept: {kept}' if kept else f'{word}: {choice.reason}'}", SENTENCE))
    gone = [choice.run for choice, kept in results if not kept]
    hint = "; --yes deletes them" if gone and not yes else ""
    return [*lines, f"{counted(len(gone), 'run')}, {show_bytes(sum(run.bytes for run in gone))} {word}{hint}"]


# -- The list --

_UNKNOWN: Final = "-"
_TITLES: Final = ("run", "state", "steps", "last step", "started (UTC)", "duration", "size", "folder")
_RIGHT: Final = tuple(map(_TITLES.index, ("steps", "size")))
"""Columns that are aligned to the right."""


def render(runs: Sequence[RunRow], base: Path) -> str:
    """Return the table of runs, and a line with their number and size."""
    rows = [_TITLES, *(tuple(map(show, _cells(run))) for run in runs)]
    total = show_bytes(sum(run.bytes for run in runs))
    where = f"{counted(len(runs), 'run')} in {show(base)}, {total}"
    return "\n".join([*align(rows, _RIGHT), "", where, show(f"Next: {_find_next(runs, base)}", SENTENCE)])


def _find_next(runs: Sequence[RunRow], base: Path) -> str:
    """Return the command that explains the newest run; without a run the one that says why there is none."""
    if not runs:
        return "verl-otel check"
    return shlex.join(["verl-otel", "explain", runs[0].folder if _name_folder(base) else runs[0].run])


def _name_folder(base: Path) -> list[str]:
    """Return a folder of runs as an argument; nothing for that of the settings."""
    return [] if base == config.read("run_dir") else [str(base)]


def _cells(run: RunRow) -> tuple[str, ...]:
    return (
        run.run,
        run.state,
        _UNKNOWN if run.steps is None else f"{run.steps:,}",
        _last_step(run),
        _UNKNOWN if run.started is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started)),
        _UNKNOWN if run.seconds is None else seconds(run.seconds),
        show_bytes(run.bytes),
        run.folder,
    )


def _last_step(run: RunRow) -> str:
    if run.last_step is None:
        return _UNKNOWN
    took = "" if run.last_step_seconds is None else f" ({seconds(run.last_step_seconds)})"
    return f"{run.last_step}{took}"


# -- Which runs may be deleted, and their deletion --

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

    run: RunRow
    reason: str
    """The limit that it exceeds."""
    protected: str
    """Why it is not deleted all the same; empty: it may be deleted."""


def choose(runs: Sequence[RunRow], limits: Limits) -> list[Choice]:
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


def _find_old(runs: Sequence[RunRow], seconds: float) -> Iterator[Choice]:
    now = time.time()
    for run in runs:
        if now - run.written > seconds:
            yield _choice(run, f"older than {age(seconds)}")


def _find_excess(runs: Sequence[RunRow], candidates: set[str], max_bytes: int) -> Iterator[Choice]:
    total = sum(run.bytes for run in runs)
    for run in reversed(runs):
        if total <= max_bytes:
            return
        if run.folder in candidates:
            choice = _choice(run, f"all runs exceed {show_bytes(max_bytes)}")
            total -= 0 if choice.protected else run.bytes
            yield choice


def _choice(run: RunRow, reason: str) -> Choice:
    return Choice(run, reason, find_protection(run))


def find_protection(run: RunRow) -> str:
    """Return why a run must not be deleted; empty if it may be."""
    if Path(run.folder).is_symlink():
        return "a symbolic link"
    if run.state == RunState.RUNNING.word:
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
    reason = find_protection(run_overview.read(folder))
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
        saved_state.forget([folder])
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""
