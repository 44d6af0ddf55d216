# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run's own record, ``run.json`` in its folder: when it was started, how often, and what it is."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from verl_otel import _guard
from verl_otel._version import __version__

NAME: Final = "run.json"
_MARKS: Final = r"(?:passw|passphrase|secret|credential|authorization|(?:api|access|private)[_-]?key)[\w.-]*|(?<![a-z0-9])token|headers"
"""From where on a name is that of a secret. Not every key and token is one: verl counts tokens and names columns by keys."""
_ASSIGNED: Final = re.compile(rf"((?:{_MARKS})[\"']*\s*[=:]\s*).*", re.IGNORECASE | re.DOTALL)
_OPTION: Final = re.compile(rf"--?[\w.-]*?(?:{_MARKS})|bearer", re.IGNORECASE)
_BEARER: Final = re.compile(r"(\bbearer(?:\s|%20)+)\S+", re.IGNORECASE)
_LOGIN: Final = re.compile(r"(://)[^\s/]*@")


def begin_attempt(folder: Path) -> int:
    """Record that a run starts and return which attempt it is: 1, or one more than the last with this id."""
    known = read(folder)
    attempts = known.get("attempts", [])
    attempts = attempts if isinstance(attempts, list) else []
    attempt = len(attempts) + 1
    attempts.append(
        {"attempt": attempt, "started": time.time(), "command": shown_command(sys.orig_argv), "pid": os.getpid()}
    )
    _write(folder, {**known, "run_id": folder.name, "verl_otel": __version__, "attempts": attempts})
    return attempt


def end_attempt(folder: Path) -> None:
    """Record that the process that started the run's last attempt ends in order, whatever became of the training."""
    known = read(folder)
    attempts = known.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict):
        _write(folder, {**known, "attempts": [*attempts[:-1], {**attempts[-1], "ended": time.time()}]})


def shown_command(arguments: list[str]) -> list[str]:
    """Return a command line without the values of what may be a secret."""
    shown = []
    before = ""
    for argument in arguments:
        if _OPTION.fullmatch(before) and not argument.startswith("--"):
            shown.append("***")
        else:
            masked = _ASSIGNED.sub(r"\1***", argument)
            shown.append(_LOGIN.sub(r"\1***@", _BEARER.sub(r"\1***", masked)))
        before = argument
    return shown


def update(folder: Path, facts: dict[str, Any]) -> None:
    """Add what is known of the run now: project, experiment, algorithm."""
    _write(folder, {**read(folder), **facts})


def read(folder: Path) -> dict[str, Any]:
    """Return the record of a run; empty if there is none or it is damaged."""
    try:
        found = json.loads((folder / NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(folder: Path, record: dict[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{NAME}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(record, indent=1, default=str) + "\n", "utf-8")
        temporary.replace(folder / NAME)
    except OSError as error:
        _guard.say("manifest", "verl-otel: cannot write %s: %s", folder / NAME, error.strerror)
