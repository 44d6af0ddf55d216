# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the culprit of a stall: from an overdue span down to the innermost open span that it waits for.

The search follows a call into the process that serves it, and a trainer into the trajectories that it waits for. Where nothing is
open, the culprit is the process that should have begun the work. The spans around the culprit are those that wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from verl_otel.semconv import attributes as attr
from verl_otel.watchdog.overdue import ALIVE, DIED, FROZEN, STOPPED, TRAJECTORY, OpenSpanRow, Snapshot
from verl_otel.watchdog.process_reports import ProcessReport

OVERDUE, MISSING = "overdue", "never arrived"
"""Reasons of a finding, besides the states of a process."""
MAX_WAITING: Final = 16
_WORST: Final = (DIED, STOPPED, FROZEN, ALIVE)
_SERVERS: Final = ("llm_server",)
_ROLLOUT: Final = ("agent_loop", "reward", "llm_server", "transfer_queue")
"""Roles whose processes a trainer waits for while it polls."""


class Finding(NamedTuple):
    """One stall or crash."""

    reason: str
    """The state of the process, `OVERDUE` or `MISSING`."""
    process_name: str
    """Name of the culprit process."""
    row: OpenSpanRow | None
    """The culprit span; None: the process has no known open span."""
    waiting: tuple[OpenSpanRow, ...]
    """The spans that wait, innermost first, across processes."""
    rank: int | None = None
    others: int = 0
    """How many more spans of this name are stuck in the same process."""

    @property
    def kind(self) -> str:
        """``crash`` or ``stall``."""
        return "crash" if self.reason == DIED else "stall"

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the same incident in later findings."""
        return self.kind, self.process_name, self.row.name if self.row is not None and self.reason == OVERDUE else ""

    @property
    def waiting_span_id(self) -> str:
        """Id of the innermost waiting span of another process; empty: there is none."""
        return next((row.span_id for row in self.waiting if row.process_name != self.process_name), "")


def find(snapshot: Snapshot) -> list[Finding]:
    """Return one finding for each incident, the worst first."""
    findings: dict[tuple[str, str, str], Finding] = {}
    for row in _find_overdue(snapshot):
        finding = _follow_to_culprit(snapshot, row)
        if finding is None:
            continue
        earlier = findings.get(finding.key)
        if earlier is None:
            findings[finding.key] = finding
        elif earlier.row is not None and finding.row is not None and earlier.row.span_id != finding.row.span_id:
            findings[finding.key] = earlier._replace(others=earlier.others + 1)
    return sorted(
        findings.values(), key=lambda finding: (_rank_finding(finding), finding.row.start_ns if finding.row else 0)
    )


def _rank_finding(finding: Finding) -> int:
    return _WORST.index(finding.reason) if finding.reason in _WORST else len(_WORST)


def _find_overdue(snapshot: Snapshot) -> Iterator[OpenSpanRow]:
    """Yield the overdue spans without open children in their own process, worst process state and oldest first."""
    rows = [
        row
        for row in snapshot.rows.values()
        if all(child.process_name != row.process_name for child in snapshot.children.get(row.span_id, ()))
    ]
    rows.sort(key=lambda row: (_WORST.index(snapshot.state(row.process_name)), row.start_ns))
    for row in rows:
        if snapshot.is_overdue(row):
            yield _find_group_call(snapshot, row)


def _find_group_call(snapshot: Snapshot, row: OpenSpanRow) -> OpenSpanRow:
    """Return the worker-group call that a span of a live rank belongs to, so that all ranks of the call are examined together."""
    if snapshot.state(row.process_name) != ALIVE:
        return row
    enclosing = (row, *snapshot.ancestors(row))
    return next((span for span in enclosing if span.name.startswith("verl.call ")), row)


def _follow_to_culprit(snapshot: Snapshot, row: OpenSpanRow) -> Finding | None:
    """Return the finding for an overdue span; None if what it waits for makes progress."""
    seen = {row.span_id}
    while True:
        finding = _check_process(snapshot, row)
        if finding is not None:
            return finding
        awaited = [child for child in _find_awaited(snapshot, row) if child.span_id not in seen]
        if not awaited:
            break
        row = min(awaited, key=lambda child: _rank_by_state(snapshot, child))
        seen.add(row.span_id)
    if row.awaits_rollouts and any(process_name != row.process_name for process_name in snapshot.moving):
        return None  # trajectories that are too short to be listed as open begin and end
    if not snapshot.is_overdue(row):
        return None
    waiting = _find_waiting(snapshot, row)
    return _find_broken(snapshot, (), (row, *waiting)) or Finding(OVERDUE, row.process_name, row, waiting)


def _rank_by_state(snapshot: Snapshot, row: OpenSpanRow) -> tuple[int, bool, int]:
    return _WORST.index(snapshot.state(row.process_name)), not snapshot.is_overdue(row), row.start_ns


def _find_awaited(snapshot: Snapshot, row: OpenSpanRow) -> list[OpenSpanRow]:
    """Return what a span waits for: its open children, or the trajectories that a trainer waits for."""
    children = snapshot.children.get(row.span_id, [])
    if children or not row.awaits_rollouts:
        return children
    trajectories = [trajectory for trajectory in snapshot.rows.values() if trajectory.name == TRAJECTORY]
    return [trajectory for trajectory in trajectories if row.trace_id in trajectory.links] or trajectories


def _check_process(snapshot: Snapshot, row: OpenSpanRow) -> Finding | None:
    """Return a finding if the process of a span, or the process that should serve it, does not run."""
    state = snapshot.state(row.process_name)
    if state != ALIVE:
        row = _find_deepest(snapshot, row)
        waiting = _find_waiting(snapshot, row)
        if not waiting and not row.is_trainer:
            # The process stopped before it could write that the span has ended. The trainer waits for its next work.
            waiting = find_trainers(snapshot)
        return Finding(state, row.process_name, row, waiting) if snapshot.is_overdue(row) else None
    enclosing = (row, *_find_waiting(snapshot, row))
    if row.name.startswith("verl.call "):
        missing = _find_missing_rank(snapshot, row, enclosing)
        is_alive = missing is not None and missing.reason == MISSING
        return (_find_broken(snapshot, (), enclosing) if is_alive else None) or missing
    if snapshot.children.get(row.span_id):
        return None
    if row.attributes.get(attr.GEN_AI_OPERATION) in ("chat", "text_completion"):
        return _find_broken(snapshot, _SERVERS, enclosing)
    if row.awaits_rollouts and not _find_awaited(snapshot, row):
        return _find_broken(snapshot, _ROLLOUT, enclosing)
    return None


def _find_deepest(snapshot: Snapshot, row: OpenSpanRow) -> OpenSpanRow:
    seen = {row.span_id}
    while True:
        children = [
            child
            for child in snapshot.children.get(row.span_id, ())
            if child.process_name == row.process_name and child.span_id not in seen
        ]
        if not children:
            return row
        row = min(children, key=lambda child: child.start_ns)
        seen.add(row.span_id)


def _find_broken(snapshot: Snapshot, roles: Iterable[str], enclosing: tuple[OpenSpanRow, ...]) -> Finding | None:
    """Return a finding for the worst process with one of the roles, or without telemetry, that does not run, if there is one.

    Which span waits for a process without telemetry is not known: any may (TransferQueue, Ray's raylet).
    """
    broken = [
        report
        for report in snapshot.reports.values()
        if (report.role in roles or report.is_helper) and snapshot.state(report.process_name) != ALIVE
    ]
    broken.sort(key=lambda report: _WORST.index(snapshot.state(report.process_name)))
    return Finding(snapshot.state(broken[0].process_name), broken[0].process_name, None, enclosing) if broken else None


def _find_missing_rank(snapshot: Snapshot, call: OpenSpanRow, enclosing: tuple[OpenSpanRow, ...]) -> Finding | None:
    """Return a finding for the rank that has not begun a worker-group call, if there is one."""
    size = call.attributes.get(attr.WORLD_SIZE)
    children = snapshot.children.get(call.span_id, [])
    present_ranks = {row.attributes.get(attr.RANK) for row in children}
    roles = {snapshot.reports[row.process_name].role for row in children if row.process_name in snapshot.reports}
    roles = roles or {str(call.attributes.get(attr.WORKER_GROUP, ""))}
    if not isinstance(size, int) or any(snapshot.state(row.process_name) != ALIVE for row in children):
        return None
    for report in sorted(snapshot.reports.values(), key=lambda row: _WORST.index(snapshot.state(row.process_name))):
        if report.role not in roles or report.rank is None or report.rank >= size or report.rank in present_ranks:
            continue
        if call.span_id in report.served:
            continue
        state = snapshot.state(report.process_name)
        row = next((row for row in snapshot.rows.values() if row.process_name == report.process_name), None)
        return Finding(MISSING if state == ALIVE else state, report.process_name, row, enclosing, report.rank)
    return None


def _find_waiting(snapshot: Snapshot, row: OpenSpanRow) -> tuple[OpenSpanRow, ...]:
    """Return the spans that wait for a span: its ancestors, and the trainer that waits for its trajectory."""
    waiting: list[OpenSpanRow] = []
    seen = {row.span_id}
    inner = row
    while len(waiting) < MAX_WAITING:
        outer = snapshot.rows.get(inner.parent_id)
        if outer is None and inner.name == TRAJECTORY:
            outer = _find_trainer(snapshot, inner)
        if outer is None or outer.span_id in seen:
            break
        seen.add(outer.span_id)
        waiting.append(outer)
        inner = outer
    return tuple(waiting)


def _find_trainer(snapshot: Snapshot, trajectory: OpenSpanRow) -> OpenSpanRow | None:
    """Return the trainer's innermost span that waits for a trajectory, if possible of the step that submitted it."""
    rows = [row for row in snapshot.rows.values() if row.is_trainer and not snapshot.children.get(row.span_id)]
    submitters = [row for row in rows if row.trace_id in trajectory.links]
    return min(submitters or rows, key=lambda row: row.start_ns, default=None)


def find_trainers(snapshot: Snapshot) -> tuple[OpenSpanRow, ...]:
    """Return the open spans of the trainer, innermost first; none if no trainer has an open span on this node."""
    rows = [row for row in snapshot.rows.values() if row.is_trainer and not snapshot.children.get(row.span_id)]
    first = min(rows, key=lambda row: row.start_ns, default=None)
    return () if first is None else (first, *_find_waiting(snapshot, first))


def may_be_awaited(snapshot: Snapshot, report: ProcessReport) -> bool:
    """Return whether a process that does not run may hold the training up although it had no span open at its last heartbeat.

    What waits for a process without telemetry is not known: all does, if nothing has ended lately. So it is with one that makes rollouts while a
    trainer waits for these: what it stopped in may have begun since that heartbeat.
    """
    if snapshot.moving:
        return False
    return report.is_helper or (
        report.role in _ROLLOUT and any(row.is_trainer and row.awaits_rollouts for row in snapshot.rows.values())
    )


def find_concerned_processes(snapshot: Snapshot, finding: Finding) -> list[str]:
    """Return the names of the processes whose stacks are useful: the culprit, the waiting processes, and the ranks of the call."""
    names = [finding.process_name]
    for row in (finding.row, *finding.waiting):
        if row is None:
            continue
        names.append(row.process_name)
        if row.name.startswith("verl.call "):
            names += [child.process_name for child in snapshot.children.get(row.span_id, ())]
    return list(dict.fromkeys(names))
