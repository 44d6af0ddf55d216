# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The file with the events of a run: stalls, crashes, stops by a guard, alerts. A process that appends one need not load the watchdog."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import safe_files

NAME: Final = "events.jsonl"
MAX_BYTES: Final = 64 << 20
"""Later events are in the log only."""


def append_event(run_path: Path, kind: str, text: str, detail: Mapping[str, Any]) -> None:
    """Append an event to the run's file, unless that is full. Raises `OSError`."""
    event = {"kind": kind, "time_ns": time.time_ns(), "text": text, "detail": detail}
    line = json.dumps(event, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
    handle = safe_files.open_private(run_path / NAME)
    try:
        if os.fstat(handle).st_size + len(line) <= MAX_BYTES:
            os.write(handle, line)
    finally:
        os.close(handle)


def read_reported(run_path: Path, node: str) -> list[tuple[str, str, str]]:
    """Return the keys of the incidents of this node that were reported and not resolved, for a monitor that takes over."""
    keys: dict[tuple[str, str, str], None] = {}
    for event in _read(run_path, node):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            kind, process_name, name = map(str, event["detail"]["key"])
            if event["kind"] == "resolved":
                keys.pop((kind, process_name, name), None)
            else:
                keys[(kind, process_name, name)] = None
    return list(keys)


def read_hung(run_path: Path, node: str) -> dict[str, float]:
    """Return the names of spans of this node that were reported as hung, and the longest in seconds that was usual, for the same."""
    hung: dict[str, float] = {}
    for event in _read(run_path, node):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            if event["kind"] == "stall":
                culprit = event["detail"]["culprit"]
                seconds = max(float(culprit["age"]), float(culprit.get("longest_peer", 0.0)))
                hung.setdefault(str(culprit["span"]), seconds)
    return hung


def _read(run_path: Path, node: str) -> Iterator[Any]:
    """Yield the last events of a node."""
    try:
        lines = safe_files.read_tail(run_path / NAME, 1 << 20, follow=False).splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            event = safe_files.parse_json(line)
            if event["detail"]["place"] == node:
                yield event
