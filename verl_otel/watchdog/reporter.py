# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reports findings, with the cause of a death: in ``events.jsonl``, as a span and metric, to other nodes, in the log, as a notification.

A notification is JSON on the standard input of a command, or a POST to a web address. Its key ``text`` is what the webhooks of Slack and
Mattermost show. Log lines, stacks and contents of the training are not sent.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import shlex
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from verl_otel._internal import error_boundary, log_lines, masking, own_code, safe_files
from verl_otel._internal.printable import counted, seconds, show
from verl_otel.config import Config
from verl_otel.model import REMOTE, LinkRecord, name_trajectory
from verl_otel.recording import series
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs, metric_names
from verl_otel.semconv.spans import STATUS_ERROR
from verl_otel.system import procfs
from verl_otel.watchdog import cluster_backend, event_file
from verl_otel.watchdog.cluster_backend import ClusterNote, DeathInfo
from verl_otel.watchdog.diagnosis import MISSING, OVERDUE, Finding
from verl_otel.watchdog.overdue import DIED, FROZEN, STOPPED, TRAJECTORY, OpenSpanRow, Snapshot
from verl_otel.watchdog.process_reports import ProcessReport
from verl_otel.watchdog.process_table import ProcessStatus

# -- findings as text and as data --

MAX_CHILDREN: Final = 3
"""Forked children that died at work which get an event: a sandbox may kill one for each answer, and commands show few events."""
MAX_TRAJECTORIES: Final = 50
LOG_LINES: Final = 20
LOG_BYTES: Final = 16384
MAX_LOG_LINE: Final = 300
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


def describe_culprit(snapshot: Snapshot, finding: Finding, status: ProcessStatus | None) -> dict[str, Any]:
    """Return the culprit as data: its innermost span, and the trajectory and phase of that span."""
    # A process without telemetry that has ended is in no snapshot until its end was reported as a crash.
    report = snapshot.reports.get(finding.process_name) or (status.report if status is not None else None)
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


def name_group(snapshot: Snapshot, finding: Finding) -> str:
    """Return what the same incident in other ranks of the job has in common with this one; empty if the process is no rank.

    Ranks wait for each other: what holds one of them is found in all of them, by the monitors of all nodes.
    """
    report = snapshot.reports.get(finding.process_name)
    if report is None or report.rank is None:
        return ""
    return " ".join((finding.reason, report.role, finding.row.name if finding.row is not None else ""))


def list_trajectories(snapshot: Snapshot, process_name: str) -> list[OpenSpanRow]:
    """Return the open trajectories of a process, oldest first."""
    trajectories = [
        row for row in snapshot.rows.values() if row.process_name == process_name and row.name == TRAJECTORY
    ]
    return sorted(trajectories, key=lambda row: row.start_ns)


def trajectory_label(row: OpenSpanRow) -> str:
    """Return the name of a trajectory, as `name_trajectory` returns it."""
    uid = str(row.attributes.get(attr.SAMPLE_UID, ""))
    return name_trajectory(uid, row.attributes.get(attr.ROLLOUT_INDEX, "?"), row.trace_id)


def _describe_held(trajectories: Sequence[OpenSpanRow]) -> str:
    """Return the open trajectories of a dead process in words; empty if it had none."""
    names = ", ".join(map(trajectory_label, trajectories[:5])) + (", …" if len(trajectories) > 5 else "")  # noqa: PLR2004 - a line's worth
    count = "one trajectory" if len(trajectories) == 1 else f"{len(trajectories)} trajectories"
    return f" holding {count} ({names})" if trajectories else ""


def format_incident(snapshot: Snapshot, finding: Finding, status: ProcessStatus | None, cause: str) -> str:
    """Return a finding in one line, without the processes that wait."""
    culprit = describe_culprit(snapshot, finding, status)
    name = f"{culprit['instance']} (pid {culprit['pid']}, {culprit.get('host', '?')})"
    row = finding.row
    if finding.reason == DIED:
        held = _describe_held(list_trajectories(snapshot, finding.process_name)) or (f" in {row.name}" if row else "")
        if not held and status is not None and status.open_count:
            held = f" holding {counted(status.open_count, 'span')} that were younger than a second"
        return f"CRASH {name} died{held}{': ' + cause if cause else ''}"
    if finding.reason == MISSING:
        return f"STALL rank {finding.rank}, {name}, has not begun {finding.waiting[0].name}, which waits for it"
    if row is None:
        return f"STALL {name} {_format_state(finding.reason, status)}"
    longest = culprit.get("longest_peer")
    peers = f"the longest before took {seconds(longest)}" if longest is not None else "there was none before"
    what = f"{row.name}{_format_trajectory((row, *finding.waiting))} has been open for {culprit['age']:.0f} s, {peers}"
    others = f" (and {finding.others} more)" if finding.others else ""
    if finding.reason == OVERDUE:
        blocked = status.report.blocked if status is not None else ""
        return f"STALL in {name}: {what}{others}{'; its event loop is blocked at ' + blocked if blocked else ''}"
    return f"STALL {name} {_format_state(finding.reason, status)}: {what}{others}"


def _format_state(reason: str, status: ProcessStatus | None) -> str:
    silent = f" for {status.silent_seconds:.0f} s" if status is not None else ""
    words = {
        STOPPED: "has been stopped by a signal or a debugger",
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
    """Return the last lines of the output files of a process, with secrets masked. They may quote prompts: see `read_frames`."""
    return [
        masking.mask_text(line[: 4 * MAX_LOG_LINE])[:MAX_LOG_LINE]
        for lines in _read_outputs(paths)
        for line in lines[-LOG_LINES:]
    ]


def _read_outputs(paths: Iterable[str]) -> Iterator[list[str]]:
    for path in paths:
        try:
            yield safe_files.read_tail(Path(path), LOG_BYTES).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):  # it is gone, not a regular file, or its name contains a NUL
            continue


_FRAME: Final = re.compile(r'File "([\w./<>@+-]{1,200})(", line \d{1,9},? in [\w.<>]{1,100})')
"""A frame in a traceback of Python, or of its module ``faulthandler``. Of the file name only what names of modules consist of."""
_EXCEPTION: Final = re.compile(r"[\s|+-]*([A-Za-z_][\w.]{0,100})(?=:|$)")
_LEFT_OUT: Final = "(text is left out, because it may quote prompts: VERL_OTEL_CAPTURE_CONTENT=1 keeps the last lines)"
_FATAL: Final = re.compile(
    r"Fatal Python error: (?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception)"
)


def read_frames(paths: Iterable[str]) -> list[str]:
    """Return what the last lines of the output files of a process tell without content: frames and types of exceptions.

    Messages, the prints of the training (verl's reward managers print prompts and responses) and lines of source code are left out. The first
    line says so.
    """
    kept: list[str] = []
    is_empty = True
    for lines in _read_outputs(paths):
        own: list[str] = []
        column, has_header = 0, False
        for line in lines:
            frame, fatal = _FRAME.search(line), _FATAL.match(line)
            if frame is not None:
                own.append(f'  File "{own_code.shorten(frame[1])}{frame[2]}')
                column = frame.start() if has_header else 0
            elif fatal is not None:
                own.append(fatal[0])
            elif column and len(line) - len(line.lstrip(" |+-")) < column:
                # The first line after the frames that is no deeper than their header.
                column, has_header, exception = 0, False, _EXCEPTION.match(line)
                own += [exception[1]] if exception is not None else []
            elif "Traceback (most recent call last)" in line:
                has_header = True
        kept += own[-LOG_LINES:]
        is_empty = is_empty and not lines
    return [] if is_empty else [_LEFT_OUT, *kept]


def find_cause(log: Iterable[str]) -> str:
    """Return why a process died, if its log contains a known pattern."""
    text = "\n".join(log)
    return next((cause for pattern, cause in _CAUSES if pattern.search(text)), "")


# -- notifications --

NOTIFY_SECONDS: Final = 30.0
"""Seconds that a command may run, or an address may take to answer."""
MAX_SENT, SENT_SECONDS = 6, 60.0
"""Notifications within a number of seconds: with a node all its processes die."""
_WEB: Final = ("http://", "https://")


class Notifier:
    """Sends the events of one run.

    Args:
        target: A command, or an address that begins with ``http://`` or ``https://``; empty: no notification is sent.
        run_id: The run.
        folder: Its folder.
    """

    def __init__(self, target: str, run_id: str, folder: Path) -> None:
        self._target = target
        self._run = {"run_id": run_id, "folder": str(folder), "next": f"verl-otel explain {run_id} --events"}
        self._sent: deque[float] = deque(maxlen=MAX_SENT)

    def send(self, kind: str, text: str, culprit: dict[str, Any]) -> None:
        """Send an event on a thread of its own. Beyond `MAX_SENT` in `SENT_SECONDS` nothing is sent: the log and the file have it.

        Args:
            kind: ``stall``, ``crash`` or ``resolved``.
            text: The line of the log.
            culprit: Instance, pid, host, span and others, as in ``events.jsonl``.
        """
        now = time.monotonic()
        if not self._target or (len(self._sent) == MAX_SENT and now - self._sent[0] < SENT_SECONDS):
            return
        self._sent.append(now)
        event = {"kind": kind, "text": f"verl-otel: {text}", "time": time.time(), **self._run, "culprit": culprit}
        body = json.dumps(event, default=str).encode()
        threading.Thread(target=_send, args=(self._target, body), name="verl-otel-notify", daemon=True).start()


def _make_request(address: str, body: bytes) -> urllib.request.Request:
    """Return a request. User and password of the address become a header: `urllib` takes them for a part of the host."""
    headers = {"Content-Type": "application/json"}
    parts = urlsplit(address)
    login, separator, host = parts.netloc.rpartition("@")
    if separator:
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
    return urllib.request.Request(urlunsplit(parts._replace(netloc=host)), body, headers)  # noqa: S310 - see `_WEB`


def _send(target: str, body: bytes) -> None:
    """Send a notification; a failure is logged once, without the address, which may hold a secret."""
    try:
        if target.startswith(_WEB):
            request = _make_request(target, body)
            with urllib.request.urlopen(request, timeout=NOTIFY_SECONDS):  # noqa: S310
                return
        subprocess.run(  # noqa: S603 - the user's own command
            shlex.split(target), input=body, stdout=subprocess.DEVNULL, timeout=NOTIFY_SECONDS, check=True
        )
    except Exception as error:
        error_boundary.may_propagate(error)
        reason = str(error) if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        if isinstance(error, subprocess.CalledProcessError):
            reason = f"exit code {error.returncode}"
        error_boundary.warn_once("on stall", "verl-otel: VERL_OTEL_ON_STALL failed: %s (logged once)", reason)


# -- reports --

CLUSTER_SECONDS: Final = 6.0
"""Seconds that the report of a trainer that waits for another node is delayed for a finding from there."""
NOTE_SECONDS: Final = 10.0
"""Seconds between two publications of the same incidents to other nodes."""
FRESH_SECONDS: Final = 60.0
GROUP_SECONDS: Final = 60.0
"""Seconds within which the same finding in several ranks is one: a launcher ends the others 30 s after the first."""
MAX_EXPLAIN: Final = 5
"""Number of times that a cluster is asked for the cause of one death."""
MAX_LINES, LINES_SECONDS = 6, 60.0
"""Lines of the log within a number of seconds: with a node all its processes die."""
_SITES: Final = {kind: CallSite(kind, hook=True) for kind in ("stall", "crash")}
MAX_TEXT: Final = 2000
"""Characters of a finding: names of spans and hosts may be of any length."""
_logger = logging.getLogger(logs.REPORTS)


class Reporter:
    """Reports the incidents of one node, and remembers the active ones.

    Args:
        config: The settings.
        node: This node.
    """

    def __init__(self, config: Config, node: str) -> None:
        self._run_path = config.run_path
        self._run_id = config.run_id
        self._keeps_content = config.capture_content
        self._node = node
        self._oom_kills_seen = procfs.count_oom_kills()
        self._deaths: dict[str, DeathInfo | None] = {}
        self._explain_attempts: Counter[str] = Counter()
        self._active: dict[tuple[str, str, str], ClusterNote] = {}
        self._published_at = float("-inf")
        self._published = False
        self._remote_findings: list[ClusterNote] = []
        self._notifier = Notifier(config.on_stall, config.run_id, config.run_path)
        self._lines: deque[float] = deque(maxlen=MAX_LINES)
        """Monotonic times of the last lines of the log."""
        self._groups: dict[str, float] = {}
        """Monotonic time of the last finding of each group, see `name_group`."""
        self._silent: set[tuple[str, str, str]] = set()
        """Keys of active incidents that another rank has reported before."""
        self._dead_children = 0

    def read_reported(self) -> list[tuple[str, str, str]]:
        """Return the keys of the unresolved incidents that were reported, also by a former monitor."""
        return event_file.read_reported(self._run_path, self._node)

    def read_hung(self) -> dict[str, float]:
        """Return what was reported as hung, also by a former monitor: names of spans, and the longest in seconds that was usual."""
        return event_file.read_hung(self._run_path, self._node)

    # -- causes of death --------------------------------------------------------------------------------------------

    def explain(self, status: ProcessStatus) -> DeathInfo | None:
        """Return why a process died, if the cluster knows it and the death was not intended."""
        death = self._find_death(status)
        return death if death is not None and not death.expected else None

    def is_expected(self, status: ProcessStatus) -> bool:
        """Return whether the cluster says that the death was intended."""
        death = self._find_death(status)
        return death is not None and death.expected

    def _find_death(self, status: ProcessStatus) -> DeathInfo | None:
        report = status.report
        if not report.actor:
            return None
        name = report.process_name
        if self._deaths.get(name) is None and self._explain_attempts[name] < MAX_EXPLAIN:
            self._explain_attempts[name] += 1
            self._deaths[name] = cluster_backend.query(lambda cluster: cluster.explain(report.actor))
        return self._deaths.get(name)

    def _find_cause(self, finding: Finding, status: ProcessStatus | None, log: list[str]) -> str:
        if finding.reason != DIED or status is None:
            return ""
        kills = procfs.count_oom_kills()
        by_kernel, self._oom_kills_seen = kills > self._oom_kills_seen, kills
        death = self.explain(status)
        cause = find_cause(log) or ("killed by the kernel, out of memory" if by_kernel else "")
        return cause or (death.text if death is not None else "killed, or ended without a word")

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def awaits_cluster(self, finding: Finding, snapshot: Snapshot, waited: float) -> bool:
        """Return whether to delay a report: the culprit may be on another node that has not published it yet."""
        row = finding.row
        if finding.reason != OVERDUE or row is None or not row.is_trainer or snapshot.children.get(row.span_id):
            return False
        notes = cluster_backend.query(lambda cluster: cluster.read(self._run_id))
        if notes is None:
            return False
        fresh = [
            note for note in notes if note.get("place") != self._node and time.time() - note["time"] < FRESH_SECONDS
        ]
        self._remote_findings = [finding for note in fresh for finding in note["findings"]]
        return not self._remote_findings and waited < CLUSTER_SECONDS

    def publish(self) -> None:
        """Publish the active incidents to other nodes, or that there are none any more."""
        now = time.monotonic()
        if not self._active and not self._published:
            return
        if self._active and now - self._published_at < NOTE_SECONDS:
            return
        self._published_at, self._published = now, bool(self._active)
        findings = list(self._active.values())[:8]
        note = {"place": self._node, "time": time.time(), "findings": findings} if findings else None
        cluster_backend.query(lambda cluster: cluster.publish(self._run_id, self._node, note))

    # -- reports -------------------------------------------------------------------------------------------------

    def report(
        self, snapshot: Snapshot, finding: Finding, status: ProcessStatus | None, stacks: dict[str, str]
    ) -> None:
        """Report a finding for the first time: event, log line, span and metric. What another rank has reported becomes an event only."""
        group = name_group(snapshot, finding)
        if self._is_reported(group):
            self._silent.add(finding.key)
        outputs = status.report.outputs if status is not None else ()
        cause = self._find_cause(finding, status, read_log_tail(outputs))
        culprit = describe_culprit(snapshot, finding, status)
        text = format_incident(snapshot, finding, status, cause)
        remote, self._remote_findings = self._remote_findings, []
        if remote and finding.reason == OVERDUE:
            text, culprit = f"{remote[0]['text']}", dict(remote[0]["culprit"])
            finding = finding._replace(waiting=(*filter(None, (finding.row,)), *finding.waiting))
        text = show(text + format_waiting(snapshot, finding), MAX_TEXT)
        trajectories = list_trajectories(snapshot, finding.process_name)
        detail: dict[str, Any] = {
            "key": finding.key,
            "place": self._node,
            "reason": finding.reason,
            "culprit": culprit,
            "waiting": [describe_span(snapshot, row) for row in finding.waiting],
            "held_trajectories": [describe_span(snapshot, row) for row in trajectories[:MAX_TRAJECTORIES]],
            "held_count": len(trajectories),
            "stacks": stacks,
            "state": status.kernel_state if status is not None else "",
            "silent": round(status.silent_seconds, 1) if status is not None else 0.0,
            "kernel_wait": procfs.read_wait_channel(status.report.process.pid)
            if status is not None and status.state != DIED
            else "",
            "log_tail": read_log_tail(outputs) if self._keeps_content else read_frames(outputs),
            "rss": [list(sample) for sample in status.memory] if status is not None else [],
            "cause": cause or finding.reason,
            "elsewhere": remote[:8],
            "group": group,
        }
        self._active[finding.key] = {"text": text, "culprit": culprit, "reason": finding.reason}
        self._published_at = float("-inf")
        self._append_event(finding.kind, text, detail)
        if finding.key in self._silent:
            return
        self._log(f"{text}. Details: {self._run_path / event_file.NAME}")
        self._notifier.send(finding.kind, text, culprit)
        with error_boundary.suppress_errors("stall span"):
            _record_span(finding, culprit, text)

    def report_child(self, report: ProcessReport, rows: Sequence[OpenSpanRow]) -> None:
        """Record that a forked child died at work. No line of the log: its parent may have killed it, as sandboxes do at a time-out."""
        self._dead_children += 1
        if self._dead_children > MAX_CHILDREN:
            return
        innermost = max(rows, key=lambda row: row.start_ns)
        age = (time.time_ns() - innermost.start_ns) / 1e9
        name = f"{report.instance} (pid {report.process.pid}, {report.host or '?'})"
        held = _describe_held([row for row in rows if row.name == TRAJECTORY])
        text = f"{name} died{held}{',' * bool(held)} in {innermost.name}, open for {seconds(age)}; its parent may have killed it"
        culprit = {"instance": report.instance, "pid": report.process.pid, "host": report.host, "span": innermost.name}
        self._append_event("child", text, {"place": self._node, "culprit": {**culprit, "age": round(age, 1)}})

    def report_worker(self, instance: str, pid: int, end: str) -> None:
        """Report that a worker of a pool died: the pool starts another one, and never returns what this one worked on.

        Args:
            instance: The process of the pool.
            pid: The worker.
            end: How it ended, in words.
        """
        self._dead_children += 1
        if self._dead_children > MAX_CHILDREN:
            return
        text = f"CRASH process {pid}, a worker of a pool of {instance}, {end}: its pool never returns what it worked on"
        culprit = {"instance": f"pool-worker-{pid}", "pid": pid, "host": socket.gethostname()}
        key = ("crash", culprit["instance"], "")
        self._append_event(
            "crash", text, {"key": key, "place": self._node, "reason": DIED, "culprit": culprit, "cause": end}
        )
        self._log(f"{text}. Details: {self._run_path / event_file.NAME}")
        self._notifier.send("crash", text, culprit)

    def _is_reported(self, group: str) -> bool:
        """Return whether another rank has reported the same a moment ago, and note that it was found now."""
        now = time.monotonic()
        self._groups = {name: then for name, then in self._groups.items() if now - then < GROUP_SECONDS}
        known = group in self._groups
        if group:
            self._groups[group] = now
        return known

    def repeat(self, snapshot: Snapshot, finding: Finding, status: ProcessStatus | None) -> None:
        """Log again that an incident lasts."""
        if finding.key in self._silent:
            return
        text = format_incident(snapshot, finding, status, "") + format_waiting(snapshot, finding)
        self._log(f"{text}, still. Details: {self._run_path / event_file.NAME}")

    def resolve(self, finding: Finding, seconds: float) -> None:
        """Report that an incident is over and the process continues."""
        incident = self._active.pop(finding.key, {"culprit": {"instance": finding.process_name}})
        what = f"{finding.row.name} in " if finding.row is not None else ""
        subject = show(f"{what}{incident['culprit']['instance']}", MAX_TEXT)
        text = f"resolved: {subject} goes on, {seconds:.0f} s after it was found"
        self._append_event("resolved", text, {"key": finding.key, "place": self._node, "seconds": round(seconds, 1)})
        if finding.key in self._silent:
            self._silent.discard(finding.key)
            return
        self._log(text)
        self._notifier.send("resolved", text, dict(incident["culprit"]))

    def drop(self, finding: Finding, seconds: float) -> None:
        """Record that an incident is over although the process does not continue: it has got worse, or it is a death."""
        self._active.pop(finding.key, None)
        self._silent.discard(finding.key)
        if finding.kind == "stall":
            detail = {"key": finding.key, "place": self._node, "seconds": round(seconds, 1)}
            self._append_event("resolved", "superseded", detail)

    def _log(self, text: str) -> None:
        """Write a line into the log of the training, unless there were too many lately. The file has all of them."""
        now = time.monotonic()
        if len(self._lines) == MAX_LINES and now - self._lines[0] < LINES_SECONDS:
            return
        self._lines.append(now)
        log_lines.warn(_logger, "verl-otel: %s", show(text, 2 * MAX_TEXT))

    def _append_event(self, kind: str, text: str, detail: dict[str, Any]) -> None:
        try:
            event_file.append_event(self._run_path, kind, text, detail)
        except OSError as error:
            error_boundary.warn_once(
                "events", "verl-otel: cannot write %s: %s", self._run_path / event_file.NAME, error.strerror
            )


def _record_span(finding: Finding, culprit: dict[str, Any], text: str) -> None:
    """Record a span of no duration with a link to the culprit, and count the incident."""
    if not RECORDER.on:
        return
    series.counter(metric_names.STALLS, ((attr.REASON, finding.reason),)).record(1)
    attributes = {
        attr.STALL_REASON: finding.reason,
        attr.STALL_TEXT: text,
        attr.STALL_INSTANCE: culprit.get("instance"),
        attr.STALL_SPAN: culprit.get("span"),
        attr.STALL_AGE: culprit.get("age"),
        attr.PHASE: culprit.get("phase"),
        attr.RANK: culprit.get("rank"),
        attr.SAMPLE_UID: culprit.get("uid"),
        attr.ROLLOUT_INDEX: culprit.get("index"),
    }
    span = Span(_SITES[finding.kind], {key: value for key, value in attributes.items() if value is not None})
    if culprit.get("trace_id"):
        link = {attr.LINK_TYPE: "culprit"}
        span.link_record(LinkRecord(int(culprit["trace_id"], 16), int(culprit["span_id"], 16), link, "", REMOTE))
    with span:
        span.detail.status = STATUS_ERROR
