# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stalls and crashes, as the black box wrote them down while the run went on (``events.jsonl`` in the run's folder)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verl_otel.analysis.facts import Event

NAME: Final = "events.jsonl"
RESOLVED: Final = "resolved"
"""A line of this kind ends the stall with the same key."""
SUPERSEDED: Final = "superseded"
"""Text of such a line where the process did not go on: something else is said of it."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def read(folders: Iterable[Path], problems: list[str]) -> tuple[Event, ...]:
    """Return the stalls and crashes of a run in the order of time; what went on says so.

    Args:
        folders: The run's folder, or one for each node.
        problems: Gets a text for each line that cannot be read.
    """
    found: list[Event] = []
    for folder in folders:
        path = folder / NAME
        for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), 1):
            try:
                found.append(_read_line(line))
            except _UNREADABLE as error:
                if line.strip():
                    problems.append(f"{NAME} line {number} cannot be read ({type(error).__name__}); the rest was used")
    found.sort(key=lambda event: event.time_ns)
    return _resolve(found)


def _read_line(line: bytes) -> Event:
    each = json.loads(line)
    kind, detail = str(each["kind"]), each.get("detail")
    text = str(each["text"]).removeprefix(f"{kind.upper()} ")  # whoever shows it says the kind
    return Event(kind, int(each["time_ns"]), text, detail if isinstance(detail, dict) else {})


def _resolve(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events without those that end another; that one says after how long it went on."""
    found: list[Event] = []
    for event in events:
        if event.kind != RESOLVED:
            found.append(event)
            continue
        if event.text == SUPERSEDED:
            continue
        for index in range(len(found) - 1, -1, -1):
            ended = found[index]
            if ended.detail.get("key") == event.detail.get("key"):
                after = (event.time_ns - ended.time_ns) / 1e9
                found[index] = ended._replace(
                    text=f"{ended.text}; it went on {after:.0f} s later", detail={**ended.detail, "resolved": after}
                )
                break
    return tuple(found)
