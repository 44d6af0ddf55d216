# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads stalls and crashes that the watchdog recorded during the run (``events.jsonl`` in the run's folder)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files
from verl_otel.analysis.io.run_files import MAX_PROBLEMS
from verl_otel.analysis.model import Event

NAME: Final = "events.jsonl"
RESOLVED: Final = "resolved"
"""Kind of a line that ends the stall with the same key."""
SUPERSEDED: Final = "superseded"
"""Text of such a line where the process did not continue: another event describes it."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def read(folders: Iterable[Path], problems: list[str]) -> tuple[Event, ...]:
    """Return the stalls and crashes of a run in the order of time; resolved ones are marked as such.

    Args:
        folders: The run's folder, or one for each node.
        problems: Receives a message for each line that cannot be read.
    """
    events: list[Event] = []
    for folder in folders:
        for number, line in enumerate(_read_lines(folder / NAME, problems), 1):
            try:
                if line is None:
                    raise safe_files.DamagedError("too long")
                events.append(_read_line(line))
            except _UNREADABLE as error:
                if (line is None or line.strip()) and len(problems) < MAX_PROBLEMS:
                    problems.append(f"{NAME} line {number} cannot be read ({type(error).__name__}); the rest was used")
    events.sort(key=lambda event: event.time_ns)
    return _resolve(events)


def _read_lines(path: Path, problems: list[str]) -> Iterator[bytes | None]:
    """Yield the lines of a file, None for one that is too long; no lines if there is no such file."""
    try:
        with safe_files.open_regular(path) as file:
            for _, line, _ in safe_files.read_lines(file, 0, os.fstat(file.fileno()).st_size):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{NAME} cannot be read ({error.strerror})")


def _read_line(line: bytes) -> Event:
    record = safe_files.parse_json(line)
    kind, detail = str(record["kind"]), record.get("detail")
    text = str(record["text"]).removeprefix(f"{kind.upper()} ")  # the kind is shown separately
    return Event(kind, safe_files.parse_int64(record["time_ns"]), text, detail if isinstance(detail, dict) else {})


def _resolve(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events without the resolving ones; a resolved event tells after how long."""
    resolved: list[Event] = []
    for event in events:
        if event.kind != RESOLVED:
            resolved.append(event)
            continue
        if event.text == SUPERSEDED:
            continue
        for index in range(len(resolved) - 1, -1, -1):
            ended = resolved[index]
            if ended.detail.get("key") == event.detail.get("key"):
                after = (event.time_ns - ended.time_ns) / 1e9
                resolved[index] = ended._replace(
                    text=f"{ended.text}; it went on {after:.0f} s later", detail={**ended.detail, "resolved": after}
                )
                break
    return tuple(resolved)
