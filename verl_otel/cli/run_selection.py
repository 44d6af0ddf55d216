# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Selects the run of a command, and shows the progress of reading it."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from verl_otel import config
from verl_otel._internal.printable import counted, show
from verl_otel.analysis import findings, reader
from verl_otel.analysis.io import collector_files
from verl_otel.analysis.io.run_files import holds_run
from verl_otel.analysis.model import Explanation, Step
from verl_otel.analysis.run import Run
from verl_otel.cli import options, run_folders
from verl_otel.cli.run_folders import is_data_folder, list_runs
from verl_otel.errors import VerlOtelError
from verl_otel.semconv.run_state import NO_END

QUIET_SECONDS = 1.0
"""Shorter work shows no progress."""


def find_folder(named: Path, command: str) -> Path:
    """Return the folder that a path, a run's id or its beginning means; any other path as it is.

    Args:
        named: What the user gave.
        command: Name of the command, for messages.

    Raises:
        FileNotFoundError: It is the beginning of several ids, or the folder of a stack.
        VerlOtelError: The path cannot be read.
    """
    try:
        is_there = named.exists()
        is_stack = is_data_folder(named)
    except (OSError, ValueError) as error:  # no permission, a name that is too long, or one with a NUL
        raise VerlOtelError(f"{named} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if is_stack:
        raise FileNotFoundError(run_folders.describe(named, command))
    if len(named.parts) != 1 or (is_there and not _hides_run(named)):
        return named
    return _find_id(named)


def _hides_run(named: Path) -> bool:
    """Return whether a folder without a run, such as one with checkpoints, has the name of a run."""
    return named.is_dir() and not holds_run(named) and holds_run(Path(config.read("run_dir")) / named)


def _find_id(named: Path) -> Path:
    base = Path(config.read("run_dir"))
    if (base / named).exists():
        return base / named
    runs = list_runs(base)
    candidates = [run for run in runs if run.name.startswith(named.name)]
    if len(candidates) > 1:
        raise FileNotFoundError(run_folders.describe_name(named.name, base, runs))
    return candidates[0] if candidates else named


def find_newest() -> Path:
    """Return the folder of the newest run.

    Raises:
        FileNotFoundError: There is none. The message has the possible reasons.
    """
    base = config.read("run_dir")
    runs = list_runs(base)
    if not runs:
        raise FileNotFoundError(run_folders.describe_none(base))
    return runs[0]


def name_run(run: Explanation) -> str:
    """Return what a command takes to read this run again: its id, otherwise its folders, or files of a Collector."""
    folders = [Path(folder) for folder in run.folders]
    if len(folders) == 1 and folders[0].name == run.run_id and folders[0].parent == Path(config.read("run_dir")):
        return run.run_id
    files = ["--otlp"] if any(folder.is_file() for folder in folders) else []
    return show(shlex.join([*files, *run.folders]), 1000)


def find_places(named: Sequence[Path], command: str, *, files: bool = False) -> list[Path]:
    """Return the existing folders of a run.

    Args:
        named: Folder or id of the run; several for several nodes; none: the newest run.
        command: Name of the command, for messages.
        files: Whether a place may be a file.

    Raises:
        FileNotFoundError: There is no such run. The message has what is there.
    """
    places = [find_folder(path, command) for path in named] or [find_newest()]
    for place in places:
        if not (place.is_dir() or (files and place.exists())):
            raise FileNotFoundError(run_folders.describe(place, command))
    return places


def explain(
    named: Sequence[Path], command: str, *, steps: frozenset[int] | None = None, otlp: Sequence[Path] = ()
) -> Explanation:
    """Explain a run, or what Collectors have of one.

    Args:
        named: Folder or id of the run; several for several nodes; none: the newest run.
        command: Name of the command, for messages.
        steps: Numbers of steps whose detail is kept.
        otlp: Files of a Collector or of Tempo to read instead of the files of the run.

    Raises:
        FileNotFoundError: There is no such run. The message says where it was searched for, and what is there.
    """
    if otlp:
        return explain_traces(otlp, named, steps=steps)
    return open_run(named, command, steps=steps).explanation


def open_run(named: Sequence[Path], command: str, *, steps: frozenset[int] | None = None) -> Run:
    """Read a run, with progress on a terminal. Arguments and errors are those of `explain`."""
    folders = [find_folder(path, command) for path in named] or [find_newest()]
    try:
        with Meter(sys.stderr) as meter:
            return Run(*reader.read(folders, steps=steps, progress=meter.show))
    except FileNotFoundError:
        missing = next((folder for folder in folders if not holds_run(folder)), None)
        if missing is None:
            raise
        raise FileNotFoundError(run_folders.describe(missing, command)) from None


def explain_traces(files: Sequence[Path], named: Sequence[Path], *, steps: frozenset[int] | None = None) -> Explanation:
    """Read a run from traces that a Collector or Tempo wrote; needs as much room for temporary files.

    Args:
        files: Files with OTLP/JSON.
        named: Id of the run, or its beginning; none: the run that ended last.
        steps: Numbers of steps whose detail is kept.

    Raises:
        VerlOtelError: A file cannot be read, or there is no such run.
    """
    if len(named) > 1:
        raise VerlOtelError("give the id of one run with --otlp")
    with tempfile.TemporaryDirectory(prefix="verl-otel-") as folder:
        try:
            imported = collector_files.convert(files, Path(folder), "".join(map(str, named)))
        except OSError as error:
            place = error.filename or folder  # a full disk has no name of a file
            raise VerlOtelError(f"--otlp: {place} cannot be read or written ({error.strerror})") from None
        with Meter(sys.stderr) as meter:
            explanation = reader.read([Path(folder)], steps=steps, progress=meter.show)[0]
    if imported.others and not named:
        others = counted(len(imported.others), "other run")
        print(f"verl-otel: the files have {others}, for example {imported.others[-1]}: give its id", file=sys.stderr)
    problems = (*imported.problems, *explanation.problems, NO_SCALARS)
    return explanation._replace(folders=tuple(map(str, files)), problems=problems, state=NO_END)


NO_SCALARS: Final = (
    "rewards, how the run learned and how it ended: of such files only the traces are read, which have no scalars"
)
"""What is missing in a run from traces."""


class Meter:
    """Shows the progress of reading as one line on a terminal; silent elsewhere.

    Args:
        stream: Stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._shown = ""

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._stream.flush()

    def show(self, done: int, total: int) -> None:
        """Show the number of bytes read and the total."""
        if not self._stream.isatty() or time.monotonic() - self._began < QUIET_SECONDS:
            return
        text = f"reading: {done / max(1, total):4.0%} of {total / 1e9:.2f} GB"
        if text != self._shown:
            self._stream.write("\r" + text)
            self._stream.flush()
            self._shown = text


def choose_steps(run: Explanation, asked: options.Steps, number: int | None = None) -> list[Step]:
    """Return the steps that are explained; superseded ones come after those that count.

    Args:
        run: The run.
        asked: How many of the slowest steps, or which.
        number: The number of the only one; None: those that are asked for.

    Raises:
        VerlOtelError: The run has none of them.
    """
    if number is None and asked.most:
        return findings.choose_steps(run, asked.most)
    numbers = asked.numbers if number is None else range(number, number + 1)
    chosen = [step for step in run.steps if step.number in numbers]
    if not chosen:
        what = "none of these steps is" if number is None else f"step {number} is not"
        raise VerlOtelError(f"{what} in the run: {_list_numbers(run)}")
    return sorted(chosen, key=lambda step: step.repeated)


def _list_numbers(explanation: Explanation) -> str:
    """Return the numbers of the steps of a run, in words."""
    numbers = sorted(step.number for step in explanation.steps if step.number is not None)
    if not numbers:
        return "none of its steps has ended"
    if len(numbers) == 1:
        return f"it has one step, {numbers[0]}"
    return f"it has {len(numbers):,} steps, {numbers[0]} to {numbers[-1]}"
