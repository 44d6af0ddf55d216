# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A finding in words and as data: the line of the log, the object in ``events.jsonl``, what the log of a dead process tells."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel.semconv import attributes as attr
from verl_otel.session.black_box.culprits import MISSING, OVERDUE, Finding
from verl_otel.session.black_box.roll import Sight
from verl_otel.session.black_box.scene import DIED, FROZEN, STOPPED, TRAJECTORY, Row, Scene

EVENTS: Final = "events.jsonl"
MAX_EVENTS: Final = 64 << 20
"""Bytes of events of a run; what comes after is in the log only."""
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
"""What the last lines of a log say of the end of a process."""


def describe_row(scene: Scene, row: Row) -> dict[str, Any]:
    """Return an open span as data."""
    member = scene.members.get(row.who)
    values = row.attributes
    found = {
        "instance": member.instance if member else row.who,
        "pid": member.process.pid if member else 0,
        "host": member.host if member else "",
        "span": row.name,
        "age": round(scene.age(row), 1),
        "last_child": row.last_child,
        "phase": values.get(attr.PHASE),
        "rank": values.get(attr.RANK),
        "uid": values.get(attr.SAMPLE_UID),
        "index": values.get(attr.ROLLOUT_INDEX),
        "turn": values.get(attr.TURN_INDEX),
        "step": values.get(attr.STEP_NUMBER),
        "trace_id": row.trace,
        "span_id": row.span,
    }
    return {key: value for key, value in found.items() if value not in (None, "")}


def describe_culprit(scene: Scene, finding: Finding) -> dict[str, Any]:
    """Return the culprit as data: its innermost span, and of which trajectory and phase that is."""
    member = scene.members.get(finding.who)
    found: dict[str, Any] = {"instance": finding.who, "pid": 0}
    if member is not None:
        found = {"instance": member.instance, "pid": member.process.pid, "host": member.host, "rank": member.rank}
    if finding.row is not None:
        for row in reversed((finding.row, *finding.waiting)):  # what is further inside wins
            about = describe_row(scene, row)
            found.update({key: about[key] for key in ("phase", "step", "uid", "index", "turn") if key in about})
        found.update(describe_row(scene, finding.row))
        found["longest_peer"] = scene.longest(finding.row)
    if finding.rank is not None:
        found["rank"] = finding.rank
    return {key: value for key, value in found.items() if value is not None}


def find_trajectories(scene: Scene, who: str) -> list[Row]:
    """Return the trajectories that a process has open, the oldest first."""
    held = [row for row in scene.rows.values() if row.who == who and row.name == TRAJECTORY]
    return sorted(held, key=lambda row: row.start_ns)


def label(row: Row) -> str:
    """Return ``<uid>/<index>`` with a uid short enough to read."""
    uid = str(row.attributes.get(attr.SAMPLE_UID, "?"))
    return f"{uid[:8] if _UUID.fullmatch(uid) else uid[-24:]}/{row.attributes.get(attr.ROLLOUT_INDEX, '?')}"


def tell(scene: Scene, finding: Finding, sight: Sight | None, cause: str) -> str:
    """Return a finding in one line, without who waits."""
    culprit = describe_culprit(scene, finding)
    name = f"{culprit['instance']} (pid {culprit['pid']}, {culprit.get('host', '?')})"
    row = finding.row
    if finding.reason == DIED:
        held = find_trajectories(scene, finding.who)
        names = ", ".join(map(label, held[:5])) + (", …" if len(held) > 5 else "")  # noqa: PLR2004 - as above
        count = "one trajectory" if len(held) == 1 else f"{len(held)} trajectories"
        lost = f" holding {count} ({names})" if held else f" in {row.name}" if row is not None else ""
        if not lost and sight is not None and sight.held:
            lost = f" holding {sight.held} spans that were younger than a second"
        return f"CRASH {name} died{lost}{': ' + cause if cause else ''}"
    if finding.reason == MISSING:
        return f"STALL rank {finding.rank}, {name}, has not begun {finding.waiting[0].name}, which waits for it"
    if row is None:
        return f"STALL {name} {_say_state(finding.reason, sight)}"
    longest = culprit.get("longest_peer")
    before = f"the longest before took {longest:.3g} s" if longest is not None else "there was none before"
    what = f"{row.name}{_say_trajectory((row, *finding.waiting))} has been open for {culprit['age']:.0f} s, {before}"
    more = f" (and {finding.others} more)" if finding.others else ""
    if finding.reason == OVERDUE:
        blocked = sight.member.blocked if sight is not None else ""
        return f"STALL in {name}: {what}{more}{'; its event loop is blocked at ' + blocked if blocked else ''}"
    return f"STALL {name} {_say_state(finding.reason, sight)}: {what}{more}"


def _say_state(reason: str, sight: Sight | None) -> str:
    silent = f" for {sight.silent:.0f} s" if sight is not None else ""
    words = {
        STOPPED: "is stopped by a signal or a debugger",
        FROZEN: "is frozen: no thread of Python has moved",
        DIED: "has died",
    }
    return words.get(reason, reason) + (silent if reason in (STOPPED, FROZEN) else "")


def _say_trajectory(rows: Iterable[Row]) -> str:
    found = ""
    for row in rows:
        turn = row.attributes.get(attr.TURN_INDEX)
        if turn is not None:
            found = f", turn {turn}"
        if row.name == TRAJECTORY:
            return f" of trajectory {label(row)}{found}"
    return ""


def tell_waiting(scene: Scene, finding: Finding) -> str:
    """Return who waits, in words; empty if nobody is known to."""
    others = [row for row in finding.waiting if row.is_trainer] or [
        row for row in finding.waiting if row.who != finding.who
    ]
    if not others:
        return ""
    about = describe_row(scene, others[0])
    return f"; {about['instance']} waits in {about['span']} for {about['age']:.0f} s"


def read_log(paths: Iterable[str]) -> list[str]:
    """Return the last lines of the files that a process writes its output to."""
    found: list[str] = []
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
                text = file.read(LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        found += [line[:MAX_LINE] for line in text.splitlines()[-LOG_LINES:]]
    return found


def find_cause(log: Iterable[str]) -> str:
    """Return why a process ended, if its log has a word for it."""
    text = "\n".join(log)
    return next((cause for pattern, cause in _CAUSES if pattern.search(text)), "")


def append(run_path: Path, kind: str, text: str, detail: Mapping[str, Any]) -> None:
    """Add an event to the run's file, unless that is full. Raises `OSError`."""
    made = {"kind": kind, "time_ns": time.time_ns(), "text": text, "detail": detail}
    line = json.dumps(made, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
    handle = os.open(run_path / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(handle).st_size + len(line) <= MAX_EVENTS:
            os.write(handle, line)
    finally:
        os.close(handle)


def read_reported(run_path: Path, place: str) -> list[tuple[str, str, str]]:
    """Return the keys of what was reported on this node and not resolved, for whoever takes the watch over."""
    try:
        with (run_path / EVENTS).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 20)))
            lines = file.read(1 << 20).splitlines()
    except OSError:
        return []
    found: dict[tuple[str, str, str], None] = {}
    for line in lines:
        try:
            event = json.loads(line)
            kind, who, name = event["detail"]["key"]
            if event["detail"]["place"] != place:
                continue
        except (ValueError, LookupError, TypeError):
            continue
        if event["kind"] == "resolved":
            found.pop((kind, who, name), None)
        else:
            found[(kind, who, name)] = None
    return list(found)
