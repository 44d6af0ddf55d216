# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the folders of runs, and says of one that was not found what is there instead."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from verl_otel import config
from verl_otel._internal.printable import counted, show
from verl_otel.analysis.io import run_log
from verl_otel.analysis.io.run_files import has_manifest
from verl_otel.session import run_manifest


def is_mark(name: str) -> bool:
    """Return whether a file of this name can make its folder that of a run: ``run.json`` or ``traces-*.jsonl``."""
    return name == run_manifest.NAME or _has_spans(name)


def _has_spans(name: str) -> bool:
    return name.startswith("traces-") and name.endswith((".jsonl", ".jsonl.gz"))


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run. A folder that cannot be read is none."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return False
    return any(map(_has_spans, names)) or (run_manifest.NAME in names and has_manifest(folder))


def list_runs(base: Path) -> list[Path]:
    """Return the folders of runs in a folder, the one that was started last first.

    Where no start is recorded, as of a training of the user's own, the time counts at which the folder was written.

    Args:
        base: The folder that holds one folder per run; without it there is no run.

    Raises:
        OSError: It exists and cannot be read, or is no folder.
    """
    try:
        runs = [path for path in base.iterdir() if is_run(path)]
    except FileNotFoundError:
        return []
    return sorted(runs, key=_find_start, reverse=True)


def _find_start(folder: Path) -> float:
    """Return when the newest attempt of a run started, in seconds since 1970."""
    return run_manifest.find_start(run_manifest.read(folder)) or modified(folder)


def modified(path: Path) -> float:
    """Return when a file or folder was modified; 0 if it was deleted meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# -- The folder with all data of a stack (``--data``) --

SETTINGS_FILE: Final = "prometheus.yml"
COLLECTOR_FOLDER: Final = "otelcol"


def is_data_folder(folder: Path) -> bool:
    """Return whether a folder is the ``--data`` of a stack."""
    return (folder / SETTINGS_FILE).is_file() and (folder / COLLECTOR_FOLDER).is_dir()


# -- Messages for a run that was not found: where it was searched for, what is there, and what to do --

MAX_NAMES: Final = 10
"""Maximum number of runs that a message names."""
MAX_ENDPOINT: Final = 200
EXPECTED: Final = "expected traces-*.jsonl"
_COMPARE: Final = "compare"
"""The command that takes two runs: an example with one of them would be wrong."""


def describe(named: Path, command: str) -> str:
    """Return the message for a path or a name that is not the folder of a run.

    Args:
        named: What the user gave.
        command: Name of the command, which is in the examples.
    """
    if named.is_dir():
        return describe_folder(named, command)
    if named.exists():
        return describe_file(named, command)
    if len(named.parts) != 1:
        return describe_path(named)
    base = config.read("run_dir")
    return describe_name(named.name, base, list_runs(base))


def describe_none(base: Path, wanted: str = "") -> str:
    """Return the message for a folder of runs that has none: the reasons that this environment shows, or all possible ones.

    Args:
        base: The folder that was searched.
        wanted: Name of the run that was searched for; empty: any.
    """
    subject = f"no run {wanted!r} in {base}, which holds none" if wanted else f"no run in {base}"
    if not base.exists():
        subject = f"no run in {base}, which does not exist"
    sent = sorted((folder for folder in _list_folders(base) if run_manifest.read_destination(folder)), key=modified)
    if sent:
        return f"{subject} has files. The newest: {describe_sent(sent[-1])}"
    for beside in filter(_has_runs, ("runs", ".")):
        place = show(shlex.quote(os.path.abspath(beside)), MAX_ENDPOINT)  # noqa: PTH100 - without a "." at its end
        found = counted(len(list_runs(Path(beside))), "run")
        return f"{subject}. {found} {'is' if found == '1 run' else 'are'} here: export VERL_OTEL_RUN_DIR={place}"
    reasons = "\n".join(f"  {reason}" for reason in list_reasons())
    return (
        f"{subject}. Possible reasons:\n{reasons}\n"
        "A run that was written elsewhere (VERL_OTEL_RUN_DIR of the training) is read by its path: give the folder."
    )


def _has_runs(folder: str) -> bool:
    try:
        return bool(list_runs(Path(folder)))
    except OSError:
        return False


def describe_sent(folder: Path) -> str:
    """Return where a run went that wrote no files; empty if the folder does not say."""
    destination = run_manifest.read_destination(folder)
    if destination is None:
        return ""
    exporters, endpoint = destination
    where = f", to {show(endpoint, MAX_ENDPOINT)}" if endpoint and "otlp" in exporters else ""
    return (
        f"run {folder.name} wrote no files: its VERL_OTEL_EXPORTERS was {show(','.join(exporters), MAX_ENDPOINT)}{where}. "
        "With `file` among them runs can be read here; verl-otel report --otlp FILE reads traces that a Collector has written."
    )


def _list_folders(base: Path) -> list[Path]:
    try:
        return [path for path in base.iterdir() if path.is_dir()]
    except OSError:
        return []


def list_reasons() -> list[str]:
    """Return why a training may have left no run: what the variables of this shell show, otherwise every possible reason."""
    switch, exporters = os.environ.get("VERL_OTEL_ENABLED", ""), config.read("exporters")
    evident = []
    if config.is_disabled():
        evident.append("OTEL_SDK_DISABLED=true is set here, which turns everything off")
    elif switch and not config.is_enabled():
        evident.append(f"VERL_OTEL_ENABLED={switch} is set here, which switches verl-otel off: set it to 1")
    if "file" not in exporters:
        given = os.environ["VERL_OTEL_EXPORTERS"]
        evident.append(f"VERL_OTEL_EXPORTERS={given} is set here, so that no files are written: it needs `file`")
    unused = "the program did not use verl_otel: verl-otel check says whether verl loads it"
    if evident:
        return evident
    if switch:
        return [unused]
    return [
        "the switch was not set: put VERL_OTEL_ENABLED=1 in front of the training command",
        unused,
        "VERL_OTEL_EXPORTERS of the training had no `file`",
    ]


def describe_name(name: str, base: Path, runs: Sequence[Path]) -> str:
    """Return the message for the name of a run that does not exist, or for the beginning of several names.

    Args:
        name: The name, as given.
        base: The folder of all runs.
        runs: The runs in it, newest first.
    """
    if not runs:
        return describe_none(base, name)
    candidates = [run.name for run in runs if run.name.startswith(name)]
    if candidates:
        return f"{name!r} is the beginning of {len(candidates)} runs in {base}: {_enumerate(candidates)}"
    similar = difflib.get_close_matches(name, [run.name for run in runs], n=1)
    meant = f"; did you mean {similar[0]}?" if similar else ""
    return f"no run {name!r} in {base} ({_count(runs)}; verl-otel runs lists them){meant}"


def describe_path(path: Path) -> str:
    """Return the message for a path that does not exist: what the folder has in which it should be."""
    parent = path.parent
    if not parent.is_dir():
        return f"{path} does not exist"
    runs = list_runs(parent)
    there = f"{_count(runs)}; {_example('runs', parent)} lists them" if runs else "no run"
    return f"{path} does not exist; {parent} holds {there}"


def describe_file(path: Path, command: str) -> str:
    """Return the message for a file that was given instead of a folder."""
    if is_run(path.parent):
        return f"{path} is a file of a run: give the folder: {_example(command, path.parent)}"
    logger = run_log.find_logger(path)
    if logger:
        read = (
            f"{_example('explain', path)} and {_example('logs', path)} read it"
            if logger == "file"
            else f"{_example('explain', path)} reads it"
        )
        return f"{path} is a log of verl's {logger} logger, and no run: {read}"
    if path.suffix == ".jsonl":
        return f'{path} is no log of verl\'s file logger (lines {{"step": 1, "data": {{...}}}}), and no run: give the folder of a run'
    return f"{path} is a file: give the folder of a run"


def describe_folder(folder: Path, command: str) -> str:
    """Return the message for a folder that is not the folder of a run: what it is, and which runs it holds."""
    if is_data_folder(folder):
        runs_folder = config.read("run_dir")
        return f"{folder} is the data folder of a verl-otel stack, not of a run; runs are in {runs_folder}"
    runs = list_runs(folder)
    if not runs:
        return describe_sent(folder) or f"{folder} holds no run: {EXPECTED}"
    if len(runs) == 1:
        return f"{folder} is not a run; it holds one: {_example(command, runs[0])}"
    return f"{folder} is not a run; it holds {len(runs)} runs: {_enumerate([run.name for run in runs])}"


def _example(command: str, path: Path) -> str:
    return str(path) if command == _COMPARE else shlex.join(["verl-otel", command, str(path)])


def _count(runs: Sequence[Path]) -> str:
    return f"{len(runs)} runs, newest {runs[0].name}" if len(runs) > 1 else f"1 run, {runs[0].name}"


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
