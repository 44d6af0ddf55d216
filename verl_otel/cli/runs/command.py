# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""List the runs of a folder, the newest first; delete old ones with --prune.

DIR is the folder that holds one folder per run; that of VERL_OTEL_RUN_DIR if absent. Only the ends of files are read, so that the list
is quick for runs of any size; what they do not contain is shown as "-". A step that has begun and not ended is not counted.

With --prune at least one of --older-than, --keep and --max-size says what is deleted, and nothing is deleted without --yes. --keep N
protects the newest N runs from the other two; alone, it deletes all others. A run that is running, or was written within the last hour,
is never deleted, nor are symbolic links and folders that are not runs.

Exit code: 0 listed or done, 1 there is no run, or one could not be deleted, 2 wrong usage.

Examples:
  verl-otel runs
  verl-otel runs /data/runs --json | jq -r '.[] | select(.state == "failed") | .run'
  verl-otel runs --prune --older-than 30d
  verl-otel runs --prune --older-than 30d --keep 5 --max-size 100GiB --yes
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from verl_otel import config
from verl_otel._internal.printable import show
from verl_otel.analysis.io.run_files import holds_run
from verl_otel.cli import missing_run, options
from verl_otel.cli.formatting import SENTENCE, age, print_json, show_bytes
from verl_otel.cli.run_folders import list_runs
from verl_otel.cli.runs import overview, render, retention
from verl_otel.cli.runs.retention import Choice, Limits
from verl_otel.cli.stack.data_folder import is_data_folder
from verl_otel.errors import VerlOtelError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="folder that holds one folder per run")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
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
    runs = [overview.read(folder) for folder in list_runs(base)]
    if arguments.prune:
        return _prune(retention.choose(runs, limits), yes=arguments.yes, as_json=arguments.json)
    if arguments.json:
        print_json([render.to_json(run) for run in runs])
    elif runs:
        print(render.render(runs, base))
    if not runs:
        print(f"verl-otel: {missing_run.describe_none(base)}", file=sys.stderr)
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
        raise VerlOtelError(missing_run.describe_path(base))
    if not base.is_dir():
        raise VerlOtelError(f"{base} is a file: give the folder that holds one folder per run")
    if is_data_folder(base):
        raise VerlOtelError(missing_run.describe_folder(base, "report"))
    if holds_run(base):
        raise VerlOtelError(f"{base} is a run: verl-otel report {base}; verl-otel runs {base.parent} lists the folder")


def _prune(choices: Sequence[Choice], *, yes: bool, as_json: bool) -> int:
    """Delete the chosen runs, or show what would be deleted. Returns 1 when one could not be deleted."""
    results = [(choice, choice.protected) for choice in choices]
    failed = 0
    if yes:
        results = [(choice, choice.protected or retention.delete(choice.run.folder)) for choice in choices]
        failed = sum(bool(problem) and not choice.protected for choice, problem in results)
    if as_json:
        rows = [
            {**render.to_json(choice.run), "reason": choice.reason, "deleted": yes and not kept, "kept": kept or None}
            for choice, kept in results
        ]
        print_json(rows)
    else:
        print("\n".join(_lines(results, yes=yes)))
    return int(failed > 0)


def _lines(results: Sequence[tuple[Choice, str]], *, yes: bool) -> list[str]:
    word = "deleted" if yes else "would be deleted"
    lines = []
    for choice, kept in results:
        about = f"{choice.run.folder.name}  {show_bytes(choice.run.size)}  {age(time.time() - choice.run.written)} old"
        lines.append(show(f"{about}  {f'kept: {kept}' if kept else f'{word}: {choice.reason}'}", SENTENCE))
    gone = [choice.run for choice, kept in results if not kept]
    hint = "; --yes deletes them" if gone and not yes else ""
    return [*lines, f"{render.count(gone)}, {show_bytes(sum(run.size for run in gone))} {word}{hint}"]
