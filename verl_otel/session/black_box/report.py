# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Says what a watcher has found: in ``events.jsonl``, as a span, as a count, to the watchers of other nodes, and in the log."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Final

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.model import REMOTE, LinkRecord
from verl_otel.recording import registry
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span
from verl_otel.recording.store import Store
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import STATUS_ERROR
from verl_otel.session.black_box import neighbours, processes, records
from verl_otel.session.black_box.culprits import OVERDUE, Finding
from verl_otel.session.black_box.neighbours import Death, Note
from verl_otel.session.black_box.roll import Sight
from verl_otel.session.black_box.scene import DIED, Scene

NEIGHBOURS_SECONDS: Final = 6.0
"""Seconds that a report of a trainer that waits for another node is held back for what the watcher there finds."""
NOTE_SECONDS: Final = 10.0
"""Seconds between two notes to other nodes that say the same."""
FRESH_SECONDS: Final = 60.0
MAX_EXPLAIN: Final = 5
"""How often a cluster is asked for the cause of one death."""
MAX_LINES, LINES_SECONDS = 6, 60.0
"""Lines of the log in so many seconds: a node that dies takes all its processes with it."""
_SITES: Final = {kind: Site(kind, hook=True) for kind in ("stall", "crash")}
_logger = logging.getLogger("verl_otel")


class Reporter:
    """What was said so far, and to whom.

    Args:
        config: The settings.
        place: This node.
    """

    def __init__(self, config: Config, place: str) -> None:
        self._run_path = config.run_path
        self._run_id = config.run_id
        self._place = place
        self._kills = processes.count_kills()
        self._deaths: dict[str, Death | None] = {}
        self._asked: dict[str, int] = {}
        self._active: dict[tuple[str, str, str], Note] = {}
        self._published_at = float("-inf")
        self._published = False
        self._elsewhere: list[Note] = []
        self._lines: deque[float] = deque(maxlen=MAX_LINES)
        """When the last lines of the log were written."""

    def read_reported(self) -> list[tuple[str, str, str]]:
        """Return what was reported already, by this watcher or the one before."""
        return records.read_reported(self._run_path, self._place)

    # -- why somebody died --------------------------------------------------------------------------------------------

    def explain(self, sight: Sight) -> Death | None:
        """Return why a process died, if the cluster knows it and nobody wanted it."""
        death = self._find_death(sight)
        return death if death is not None and not death.expected else None

    def is_expected(self, sight: Sight) -> bool:
        """Return whether the cluster says that somebody wanted it to end."""
        death = self._find_death(sight)
        return death is not None and death.expected

    def _find_death(self, sight: Sight) -> Death | None:
        member = sight.member
        if not member.actor:
            return None
        if self._deaths.get(member.who) is None and self._asked.get(member.who, 0) < MAX_EXPLAIN:
            self._asked[member.who] = self._asked.get(member.who, 0) + 1
            self._deaths[member.who] = neighbours.ask(lambda cluster: cluster.explain(member.actor))
        return self._deaths.get(member.who)

    def _find_cause(self, finding: Finding, sight: Sight | None, log: list[str]) -> str:
        if finding.reason != DIED or sight is None:
            return ""
        kills = processes.count_kills()
        by_kernel, self._kills = kills > self._kills, kills
        death = self.explain(sight)
        known = records.find_cause(log) or ("killed by the kernel, out of memory" if by_kernel else "")
        return known or (death.text if death is not None else "killed, or ended without a word")

    # -- neighbours ---------------------------------------------------------------------------------------------------

    def awaits_neighbours(self, finding: Finding, scene: Scene, waited: float) -> bool:
        """Return whether to wait with a report: the culprit may be on another node, whose watcher has not spoken yet."""
        row = finding.row
        if finding.reason != OVERDUE or row is None or not row.is_trainer or scene.children.get(row.span):
            return False
        notes = neighbours.ask(lambda cluster: cluster.read(self._run_id))
        if notes is None:
            return False
        fresh = [
            note for note in notes if note.get("place") != self._place and time.time() - note["time"] < FRESH_SECONDS
        ]
        self._elsewhere = [found for note in fresh for found in note["findings"]]
        return not self._elsewhere and waited < NEIGHBOURS_SECONDS

    def publish(self) -> None:
        """Tell other nodes what hangs here, or that nothing does any more."""
        now = time.monotonic()
        if not self._active and not self._published:
            return
        if self._active and now - self._published_at < NOTE_SECONDS:
            return
        self._published_at, self._published = now, bool(self._active)
        findings = list(self._active.values())[:8]
        note = {"place": self._place, "time": time.time(), "findings": findings} if findings else None
        neighbours.ask(lambda cluster: cluster.publish(self._run_id, self._place, note))

    # -- what is said -------------------------------------------------------------------------------------------------

    def report(self, scene: Scene, finding: Finding, sight: Sight | None, stacks: dict[str, str]) -> None:
        """Say it for the first time, everywhere."""
        log = records.read_log(sight.member.outputs) if sight is not None else []
        cause = self._find_cause(finding, sight, log)
        culprit = records.describe_culprit(scene, finding)
        text = records.tell(scene, finding, sight, cause)
        elsewhere, self._elsewhere = self._elsewhere, []
        if elsewhere and finding.reason == OVERDUE:
            text, culprit = f"{elsewhere[0]['text']}", dict(elsewhere[0]["culprit"])
            finding = finding._replace(waiting=(*filter(None, (finding.row,)), *finding.waiting))
        text += records.tell_waiting(scene, finding)
        held = records.find_trajectories(scene, finding.who)
        detail: dict[str, Any] = {
            "key": finding.key,
            "place": self._place,
            "reason": finding.reason,
            "culprit": culprit,
            "waiting": [records.describe_row(scene, row) for row in finding.waiting],
            "held_trajectories": [records.describe_row(scene, row) for row in held[: records.MAX_TRAJECTORIES]],
            "held_count": len(held),
            "stacks": stacks,
            "state": sight.doing if sight is not None else "",
            "silent": round(sight.silent, 1) if sight is not None else 0.0,
            "kernel_wait": processes.read_wait(sight.member.process.pid)
            if sight is not None and sight.state != DIED
            else "",
            "log_tail": log,
            "rss": [list(each) for each in sight.memory] if sight is not None else [],
            "cause": cause or finding.reason,
            "elsewhere": elsewhere[:8],
        }
        self._active[finding.key] = {"text": text, "culprit": culprit, "reason": finding.reason}
        self._published_at = float("-inf")
        self._keep(finding.kind, text, detail)
        self._log(f"{text}. Details: {self._run_path / records.EVENTS}")
        with _guard.swallowed("stall span"):
            _record(finding, culprit, text)

    def repeat(self, scene: Scene, finding: Finding, sight: Sight | None) -> None:
        """Say again what still hangs."""
        text = records.tell(scene, finding, sight, "") + records.tell_waiting(scene, finding)
        self._log(f"{text}, still. Details: {self._run_path / records.EVENTS}")

    def resolve(self, finding: Finding, seconds: float) -> None:
        """Say that it goes on."""
        known = self._active.pop(finding.key, {"culprit": {"instance": finding.who}})
        what = f"{finding.row.name} in " if finding.row is not None else ""
        text = f"resolved: {what}{known['culprit']['instance']} goes on, {seconds:.0f} s after it was found"
        self._keep("resolved", text, {"key": finding.key, "place": self._place, "seconds": round(seconds, 1)})
        self._log(text)

    def drop(self, finding: Finding, seconds: float) -> None:
        """Note that a finding is no more, although nobody goes on: something worse has come of it, or it is a death."""
        self._active.pop(finding.key, None)
        if finding.kind == "stall":
            detail = {"key": finding.key, "place": self._place, "seconds": round(seconds, 1)}
            self._keep("resolved", "superseded", detail)

    def _log(self, text: str) -> None:
        """Write a line into the training's log, unless there were many just now: the file has them all."""
        now = time.monotonic()
        if len(self._lines) == MAX_LINES and now - self._lines[0] < LINES_SECONDS:
            return
        self._lines.append(now)
        _logger.warning("verl-otel: %s", text)

    def _keep(self, kind: str, text: str, detail: dict[str, Any]) -> None:
        try:
            records.append(self._run_path, kind, text, detail)
        except OSError as error:
            _guard.say("events", "verl-otel: cannot write %s: %s", self._run_path / records.EVENTS, error.strerror)


def _record(finding: Finding, culprit: dict[str, Any], text: str) -> None:
    """Record a span of no length that leads to the culprit, and count it."""
    if not Store.on:
        return
    registry.counter("verl.stalls", ((attr.REASON, finding.reason),)).record(1)
    known = {
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
    span = Span(_SITES[finding.kind], {key: value for key, value in known.items() if value is not None})
    if culprit.get("trace_id"):
        link = {attr.LINK_TYPE: "culprit"}
        span.link_record(LinkRecord(int(culprit["trace_id"], 16), int(culprit["span_id"], 16), link, "", REMOTE))
    with span:
        span.detail.status = STATUS_ERROR
