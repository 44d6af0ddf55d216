# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The file with the events of a run: stalls, crashes, stops by a guard, alerts. A process that appends one need not load the watchdog."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
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
    try:
        lines = safe_files.read_tail(run_path / NAME, 1 << 20, follow=False).splitlines()
    except OSError:
        return []
    keys: dict[tuple[str, str, str], None] = {}
    for line in lines:
        try:
            event = safe_files.parse_json(line)
            kind, process_name, name = map(str, event["detail"]["key"])
            if event["detail"]["place"] != node:
                continue
            resolved = event["kind"] == "resolved"
        except (ValueError, LookupError, TypeError):
            continue
        if resolved:
            keys.pop((kind, process_name, name), None)
        else:
            keys[(kind, process_name, name)] = None
    return list(keys)
