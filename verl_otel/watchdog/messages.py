# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Formats findings: the line of the log, the object in ``events.jsonl``, and the cause that the log of a dead process contains."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import masking, safe_files
from verl_otel.semconv import attributes as attr
from verl_otel.watchdog.diagnosis import MISSING, OVERDUE, Finding
from verl_otel.watchdog.process_table import ProcessStatus
from verl_otel.watchdog.snapshot import DIED, FROZEN, STOPPED, TRAJECTORY, OpenSpanRow, Snapshot

EVENTS: Final = "events.jsonl"
MAX_EVENTS: Final = 64 << 20
"""Bytes of the events of a run; later events are in the log only."""
MAX_TRAJECTORIES: Final = 50
LOG_LINES: Final = 20
LOG_BYTES: Final = 16384
MAX_LINE: Final = 300
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_CAUSES: Final = (
    (
        re.compile(r"Watchdog caught collective operation timeout|NCCL.{0,40}time(?:d )?-?out", re.IGNORECASE),
        "NCCL time-out",
    ),
    (re.compile(r"gloo.{0,200}time(?:d )?-?out", re.IGNORECASE), "gloo time-out"),
    (re.compile(r"CUDA out of memory|OutOfMemoryError"), "out of GPU memory"),
    (re.compile(r"CUDA error: .{0,80}"), "CUDA error"),
    (re.compile(r"SIGSEGV|Segmentation fault"), "segmentation fault"),
)
"""Patterns in the last lines of a log, and the cause of death that they indicate."""


def describe_span(snapshot: Snapshot, row: OpenSpanRow) -> dict[str, Any]:
    """Return an open span as data."""
    report = snapshot.reports.get(row.process_name)
    attributes = row.attributes
    values = {
        "instance": report.instance if report else row.process_name,
        "pid": report.process.pid if report else 0,
        "host": report.host if report else "",
        "span": row.name,
        "age": round(snapshot.age(row), 1),
        "last_child": row.last_child,
        "phase": attributes.get(attr.PHASE),
        "rank": attributes.get(attr.RANK),
        "uid": attributes.get(attr.SAMPLE_UID),
        "index": attributes.get(attr.ROLLOUT_INDEX),
        "turn": attributes.get(attr.TURN_INDEX),
        "step": attributes.get(attr.STEP_NUMBER),
        "trace_id": row.trace_id,
        "span_id": row.span_id,
    }
    return {key: value for key, value in values.items() if value not in (None, "")}


def describe_culprit(snapshot: Snapshot, finding: Finding) -> dict[str, Any]:
    """Return the culprit as data: its innermost span, and the trajectory and phase of that span."""
    report = snapshot.reports.get(finding.process_name)
    culprit: dict[str, Any] = {"instance": finding.process_name, "pid": 0}
    if report is not None:
        culprit = {"instance": report.instance, "pid": report.process.pid, "host": report.host, "rank": report.rank}
    if finding.row is not None:
        for row in reversed((finding.row, *finding.waiting)):  # values of inner spans win
            description = describe_span(snapshot, row)
            culprit.update(
                {key: description[key] for key in ("phase", "step", "uid", "index", "turn") if key in description}
            )
        culprit.update(describe_span(snapshot, finding.row))
        culprit["longest_peer"] = snapshot.longest(finding.row)
    if finding.rank is not None:
        culprit["rank"] = finding.rank
    return {key: value for key, value in culprit.items() if value is not None}


def list_trajectories(snapshot: Snapshot, process_name: str) -> list[OpenSpanRow]:
    """Return the open trajectories of a process, oldest first."""
    trajectories = [
        row for row in snapshot.rows.values() if row.process_name == process_name and row.name == TRAJECTORY
    ]
    return sorted(trajectories, key=lambda row: row.start_ns)


def trajectory_label(row: OpenSpanRow) -> str:
    """Return ``<uid>/<index>`` with a uid short enough to read."""
    uid = str(row.attributes.get(attr.SAMPLE_UID, "?"))
    return f"{uid[:8] if _UUID.fullmatch(uid) else uid[-24:]}/{row.attributes.get(attr.ROLLOUT_INDEX, '?')}"


def format_incident(snapshot: Snapshot, finding: Finding, status: ProcessStatus | None, cause: str) -> str:
    """Return a finding in one line, without the processes that wait."""
    culprit = describe_culprit(snapshot, finding)
    name = f"{culprit['instance']} (pid {culprit['pid']}, {culprit.get('host', '?')})"
    row = finding.row
    if finding.reason == DIED:
        trajectories = list_trajectories(snapshot, finding.process_name)
        names = ", ".join(map(trajectory_label, trajectories[:5])) + (", …" if len(trajectories) > 5 else "")  # noqa: PLR2004 - as above
        count = "one trajectory" if len(trajectories) == 1 else f"{len(trajectories)} trajectories"
        held = f" holding {count} ({names})" if trajectories else f" in {row.name}" if row is not None else ""
        if not held and status is not None and status.open_count:
            held = f" holding {status.open_count} spans that were younger than a second"
        return f"CRASH {name} died{held}{': ' + cause if cause else ''}"
    if finding.reason == MISSING:
        return f"STALL rank {finding.rank}, {name}, has not begun {finding.waiting[0].name}, which waits for it"
    if row is None:
        return f"STALL {name} {_format_state(finding.reason, status)}"
    longest = culprit.get("longest_peer")
    peers = f"the longest before took {longest:.3g} s" if longest is not None else "there was none before"
    what = f"{row.name}{_format_trajectory((row, *finding.waiting))} has been open for {culprit['age']:.0f} s, {peers}"
    others = f" (and {finding.others} more)" if finding.others else ""
    if finding.reason == OVERDUE:
        blocked = status.report.blocked if status is not None else ""
        return f"STALL in {name}: {what}{others}{'; its event loop is blocked at ' + blocked if blocked else ''}"
    return f"STALL {name} {_format_state(finding.reason, status)}: {what}{others}"


def _format_state(reason: str, status: ProcessStatus | None) -> str:
    silent = f" for {status.silent_seconds:.0f} s" if status is not None else ""
    words = {
        STOPPED: "is stopped by a signal or a debugger",
        FROZEN: "is frozen: no thread of Python has moved",
        DIED: "has died",
    }
    return words.get(reason, reason) + (silent if reason in (STOPPED, FROZEN) else "")


def _format_trajectory(rows: Iterable[OpenSpanRow]) -> str:
    text = ""
    for row in rows:
        turn = row.attributes.get(attr.TURN_INDEX)
        if turn is not None:
            text = f", turn {turn}"
        if row.name == TRAJECTORY:
            return f" of trajectory {trajectory_label(row)}{text}"
    return ""


def format_waiting(snapshot: Snapshot, finding: Finding) -> str:
    """Return which process waits, as text; empty if none is known."""
    others = [row for row in finding.waiting if row.is_trainer] or [
        row for row in finding.waiting if row.process_name != finding.process_name
    ]
    if not others:
        return ""
    description = describe_span(snapshot, others[0])
    return f"; {description['instance']} waits in {description['span']} for {description['age']:.0f} s"


def read_log_tail(paths: Iterable[str]) -> list[str]:
    """Return the last lines of the output files of a process, with secrets masked."""
    lines: list[str] = []
    for path in paths:
        try:
            text = safe_files.read_tail(Path(path), LOG_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):  # it is gone, not a regular file, or its name contains a NUL
            continue
        lines += [masking.mask_text(line[: 4 * MAX_LINE])[:MAX_LINE] for line in text.splitlines()[-LOG_LINES:]]
    return lines


def find_cause(log: Iterable[str]) -> str:
    """Return why a process died, if its log contains a known pattern."""
    text = "\n".join(log)
    return next((cause for pattern, cause in _CAUSES if pattern.search(text)), "")


def append_event(run_path: Path, kind: str, text: str, detail: Mapping[str, Any]) -> None:
    """Append an event to the run's file, unless that is full. Raises `OSError`."""
    event = {"kind": kind, "time_ns": time.time_ns(), "text": text, "detail": detail}
    line = json.dumps(event, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
    handle = safe_files.open_private(run_path / EVENTS)
    try:
        if os.fstat(handle).st_size + len(line) <= MAX_EVENTS:
            os.write(handle, line)
    finally:
        os.close(handle)


def read_reported(run_path: Path, node: str) -> list[tuple[str, str, str]]:
    """Return the keys of the incidents of this node that were reported and not resolved, for a monitor that takes over."""
    try:
        lines = safe_files.read_tail(run_path / EVENTS, 1 << 20, follow=False).splitlines()
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
