# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a run, ``run.json`` in its folder: its attempts, when they started and ended, and facts about the run."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from verl_otel import resource
from verl_otel._internal import error_boundary, private_files, untrusted_files
from verl_otel._internal.masking import mask_command
from verl_otel._version import __version__

NAME: Final = "run.json"


def is_first_process() -> bool:
    """Return whether this process starts a run: it is no rank but the first, no child, and its environment names no run."""
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", bool)()
    return (
        os.environ.get("RANK", "0") == "0"
        and not any(os.environ.get(name) for name in ("VERL_OTEL_RUN_ID", "VERL_OTEL_RUN_ATTEMPT"))
        and not parent
        and not resource.is_forked()
    )


def can_write(folder: Path) -> bool:
    """Return whether the folder of a run can be made. The file exporter logs it if it cannot."""
    try:
        private_files.make_folder(folder)
    except OSError:
        return False
    return True


def begin_attempt(folder: Path) -> int:
    """Record the start of a run and return the number of the attempt: 1, or one more than the last with this id."""
    manifest = read(folder)
    attempts = manifest.get("attempts", [])
    attempts = attempts if isinstance(attempts, list) else []
    attempt = len(attempts) + 1
    attempts.append(
        {"attempt": attempt, "started": time.time(), "command": mask_command(sys.orig_argv), "pid": os.getpid()}
    )
    _write(folder, {**manifest, "run_id": folder.name, "verl_otel": __version__, "attempts": attempts})
    return attempt


def end_attempt(folder: Path) -> None:
    """Record that the process that started the last attempt exits normally, whether or not the training succeeded."""
    manifest = read(folder)
    attempts = manifest.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict):
        _write(folder, {**manifest, "attempts": [*attempts[:-1], {**attempts[-1], "ended": time.time()}]})


def update(folder: Path, facts: dict[str, Any]) -> None:
    """Add facts about the run, such as project, experiment and algorithm."""
    _write(folder, {**read(folder), **facts})


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run; empty if there is none or it is damaged."""
    try:
        manifest = untrusted_files.read_json(folder / NAME)
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _write(folder: Path, record: dict[str, Any]) -> None:
    try:
        private_files.make_folder(folder)
        private_files.write_atomically(folder / NAME, json.dumps(record, indent=1, default=str) + "\n")
    except OSError as error:
        error_boundary.warn_once("manifest", "verl-otel: cannot write %s: %s", folder / NAME, error.strerror)
