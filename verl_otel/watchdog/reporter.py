# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reports findings: in ``events.jsonl``, as a span, as a metric, to the monitors of other nodes, in the log, and as a notification."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.printable import show
from verl_otel.config import Config
from verl_otel.model import REMOTE, LinkRecord
from verl_otel.recording import series_registry
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.spans import STATUS_ERROR
from verl_otel.system import procfs
from verl_otel.watchdog import cluster_backend, messages
from verl_otel.watchdog.cluster_backend import DeathInfo, Note
from verl_otel.watchdog.diagnosis import OVERDUE, Finding
from verl_otel.watchdog.notification import Notifier
from verl_otel.watchdog.process_table import ProcessStatus
from verl_otel.watchdog.snapshot import DIED, Snapshot

CLUSTER_SECONDS: Final = 6.0
"""Seconds that the report of a trainer that waits for another node is delayed for a finding from there."""
NOTE_SECONDS: Final = 10.0
"""Seconds between two publications of the same incidents to other nodes."""
FRESH_SECONDS: Final = 60.0
MAX_EXPLAIN: Final = 5
"""Number of times that a cluster is asked for the cause of one death."""
MAX_LINES, LINES_SECONDS = 6, 60.0
"""Lines of the log within a number of seconds: with a node all its processes die."""
_SITES: Final = {kind: CallSite(kind, hook=True) for kind in ("stall", "crash")}
MAX_TEXT: Final = 2000
"""Characters of a finding: names of spans and hosts may be of any length."""
_logger = logging.getLogger("verl_otel")


class Reporter:
    """Reports the incidents of one node, and remembers the active ones.

    Args:
        config: The settings.
        node: This node.
    """

    def __init__(self, config: Config, node: str) -> None:
        self._run_path = config.run_path
        self._run_id = config.run_id
        self._node = node
        self._oom_kills_seen = procfs.count_oom_kills()
        self._deaths: dict[str, DeathInfo | None] = {}
        self._explain_attempts: dict[str, int] = {}
        self._active: dict[tuple[str, str, str], Note] = {}
        self._published_at = float("-inf")
        self._published = False
        self._remote_findings: list[Note] = []
        self._notifier = Notifier(config.on_stall, config.run_id, config.run_path)
        self._lines: deque[float] = deque(maxlen=MAX_LINES)
        """Monotonic times of the last lines of the log."""

    def read_reported(self) -> list[tuple[str, str, str]]:
        """Return the keys of the unresolved incidents that were reported, also by a former monitor."""
        return messages.read_reported(self._run_path, self._node)

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
        if (
            self._deaths.get(report.process_name) is None
            and self._explain_attempts.get(report.process_name, 0) < MAX_EXPLAIN
        ):
            self._explain_attempts[report.process_name] = self._explain_attempts.get(report.process_name, 0) + 1
            self._deaths[report.process_name] = cluster_backend.query(lambda cluster: cluster.explain(report.actor))
        return self._deaths.get(report.process_name)

    def _find_cause(self, finding: Finding, status: ProcessStatus | None, log: list[str]) -> str:
        if finding.reason != DIED or status is None:
            return ""
        kills = procfs.count_oom_kills()
        by_kernel, self._oom_kills_seen = kills > self._oom_kills_seen, kills
        death = self.explain(status)
        cause = messages.find_cause(log) or ("killed by the kernel, out of memory" if by_kernel else "")
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
        """Report a finding for the first time: event, log line, span and metric."""
        log_tail = messages.read_log_tail(status.report.outputs) if status is not None else []
        cause = self._find_cause(finding, status, log_tail)
        culprit = messages.describe_culprit(snapshot, finding)
        text = messages.format_incident(snapshot, finding, status, cause)
        remote, self._remote_findings = self._remote_findings, []
        if remote and finding.reason == OVERDUE:
            text, culprit = f"{remote[0]['text']}", dict(remote[0]["culprit"])
            finding = finding._replace(waiting=(*filter(None, (finding.row,)), *finding.waiting))
        text = show(text + messages.format_waiting(snapshot, finding), MAX_TEXT)
        trajectories = messages.list_trajectories(snapshot, finding.process_name)
        detail: dict[str, Any] = {
            "key": finding.key,
            "place": self._node,
            "reason": finding.reason,
            "culprit": culprit,
            "waiting": [messages.describe_span(snapshot, row) for row in finding.waiting],
            "held_trajectories": [
                messages.describe_span(snapshot, row) for row in trajectories[: messages.MAX_TRAJECTORIES]
            ],
            "held_count": len(trajectories),
            "stacks": stacks,
            "state": status.kernel_state if status is not None else "",
            "silent": round(status.silent_seconds, 1) if status is not None else 0.0,
            "kernel_wait": procfs.read_wait_channel(status.report.process.pid)
            if status is not None and status.state != DIED
            else "",
            "log_tail": log_tail,
            "rss": [list(sample) for sample in status.memory] if status is not None else [],
            "cause": cause or finding.reason,
            "elsewhere": remote[:8],
        }
        self._active[finding.key] = {"text": text, "culprit": culprit, "reason": finding.reason}
        self._published_at = float("-inf")
        self._append_event(finding.kind, text, detail)
        self._log(f"{text}. Details: {self._run_path / messages.EVENTS}")
        self._notifier.send(finding.kind, text, culprit)
        with error_boundary.suppress_errors("stall span"):
            _record_span(finding, culprit, text)

    def repeat(self, snapshot: Snapshot, finding: Finding, status: ProcessStatus | None) -> None:
        """Log again that an incident lasts."""
        text = messages.format_incident(snapshot, finding, status, "") + messages.format_waiting(snapshot, finding)
        self._log(f"{text}, still. Details: {self._run_path / messages.EVENTS}")

    def resolve(self, finding: Finding, seconds: float) -> None:
        """Report that an incident is over and the process continues."""
        incident = self._active.pop(finding.key, {"culprit": {"instance": finding.process_name}})
        what = f"{finding.row.name} in " if finding.row is not None else ""
        subject = show(f"{what}{incident['culprit']['instance']}", MAX_TEXT)
        text = f"resolved: {subject} goes on, {seconds:.0f} s after it was found"
        self._append_event("resolved", text, {"key": finding.key, "place": self._node, "seconds": round(seconds, 1)})
        self._log(text)
        self._notifier.send("resolved", text, dict(incident["culprit"]))

    def drop(self, finding: Finding, seconds: float) -> None:
        """Record that an incident is over although the process does not continue: it has got worse, or it is a death."""
        self._active.pop(finding.key, None)
        if finding.kind == "stall":
            detail = {"key": finding.key, "place": self._node, "seconds": round(seconds, 1)}
            self._append_event("resolved", "superseded", detail)

    def _log(self, text: str) -> None:
        """Write a line into the log of the training, unless there were too many lately. The file has all of them."""
        now = time.monotonic()
        if len(self._lines) == MAX_LINES and now - self._lines[0] < LINES_SECONDS:
            return
        self._lines.append(now)
        _logger.warning("verl-otel: %s", show(text, 2 * MAX_TEXT))

    def _append_event(self, kind: str, text: str, detail: dict[str, Any]) -> None:
        try:
            messages.append_event(self._run_path, kind, text, detail)
        except OSError as error:
            error_boundary.warn_once(
                "events", "verl-otel: cannot write %s: %s", self._run_path / messages.EVENTS, error.strerror
            )


def _record_span(finding: Finding, culprit: dict[str, Any], text: str) -> None:
    """Record a span of no duration with a link to the culprit, and count the incident."""
    if not RECORDER.on:
        return
    series_registry.counter(metric_names.STALLS, ((attr.REASON, finding.reason),)).record(1)
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
