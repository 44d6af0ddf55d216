# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whom everybody waits for: from a span that has been open for too long down to the deepest one that is open below it.

Down means: into the process that serves the call, into the trajectories that a trainer waits for, and where nobody has anything
open, to the process that should have. Up again from there is who waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from verl_otel.semconv import attributes as attr
from verl_otel.session.black_box.scene import ALIVE, DIED, FROZEN, STOPPED, TRAJECTORY, Row, Scene

OVERDUE, MISSING = "overdue", "never arrived"
"""Why somebody is a culprit, besides the states of a process."""
MAX_WAITING: Final = 16
_WORST: Final = (DIED, STOPPED, FROZEN, ALIVE)
_SERVERS: Final = ("llm_server",)
_ROLLOUT: Final = ("agent_loop", "reward", "llm_server", "transfer_queue")
"""Roles whose processes a trainer waits for while it polls."""


class Finding(NamedTuple):
    """One thing that is stuck."""

    reason: str
    """A state of its process, `OVERDUE` or `MISSING`."""
    who: str
    """Its process."""
    row: Row | None
    """What it has open; None: nothing that it has told."""
    waiting: tuple[Row, ...]
    """What is open around it, from the inside to the outside, over processes."""
    rank: int | None = None
    others: int = 0
    """How many more spans of this name hang in the same process."""

    @property
    def kind(self) -> str:
        """``crash`` or ``stall``."""
        return "crash" if self.reason == DIED else "stall"

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same as one that was found before."""
        return self.kind, self.who, self.row.name if self.row is not None and self.reason == OVERDUE else ""

    @property
    def waiting_span(self) -> str:
        """Id of the innermost span of another process that waits for it; empty: there is none."""
        return next((row.span for row in self.waiting if row.who != self.who), "")


def find(scene: Scene) -> list[Finding]:
    """Return everything that is stuck, each once, the worst first."""
    found: dict[tuple[str, str, str], Finding] = {}
    for row in _starts(scene):
        finding = _follow(scene, row)
        if finding is None:
            continue
        known = found.get(finding.key)
        if known is None:
            found[finding.key] = finding
        elif known.row is not None and finding.row is not None and known.row.span != finding.row.span:
            found[finding.key] = known._replace(others=known.others + 1)
    return sorted(found.values(), key=lambda each: (_rank_of(each), each.row.start_ns if each.row else 0))


def _rank_of(finding: Finding) -> int:
    return _WORST.index(finding.reason) if finding.reason in _WORST else len(_WORST)


def _starts(scene: Scene) -> Iterator[Row]:
    """Yield the open spans that are overdue by themselves, the oldest of the worst processes first."""
    rows = [row for row in scene.rows.values() if not scene.children.get(row.span) or _is_quiet(scene, row)]
    rows.sort(key=lambda row: (_WORST.index(scene.state(row.who)), row.start_ns))
    for row in rows:
        if scene.is_overdue(row):
            yield _caller(scene, row)


def _caller(scene: Scene, row: Row) -> Row:
    """Return the call of a worker group that a span of a live rank belongs to: all ranks of it are looked at together."""
    if scene.state(row.who) != ALIVE:
        return row
    around = (row, *scene.ancestors(row))
    return next((each for each in around if each.name.startswith("verl.call ")), row)


def _is_quiet(scene: Scene, row: Row) -> bool:
    """Return whether its process has nothing open below it: what is, is another's."""
    return all(child.who != row.who for child in scene.children[row.span])


def _follow(scene: Scene, row: Row) -> Finding | None:
    """Return what a span that is open for too long waits for; None if something moves there."""
    seen = {row.span}
    while True:
        finding = _look_at_process(scene, row)
        if finding is not None:
            return finding
        below = [child for child in _below(scene, row) if child.span not in seen]
        if not below:
            break
        row = min(below, key=lambda each: _badness(scene, each))
        seen.add(row.span)
    if row.awaits_rollouts and any(who != row.who for who in scene.moving):
        return None  # trajectories too short to be seen come and go
    return Finding(OVERDUE, row.who, row, _waiting(scene, row)) if scene.is_overdue(row) else None


def _badness(scene: Scene, row: Row) -> tuple[int, bool, int]:
    return _WORST.index(scene.state(row.who)), not scene.is_overdue(row), row.start_ns


def _below(scene: Scene, row: Row) -> list[Row]:
    """Return what a span waits for: what is open below it, or the trajectories that a trainer waits for."""
    children = scene.children.get(row.span, [])
    if children or not row.awaits_rollouts:
        return children
    trajectories = [each for each in scene.rows.values() if each.name == TRAJECTORY]
    return [each for each in trajectories if row.trace in each.links] or trajectories


def _look_at_process(scene: Scene, row: Row) -> Finding | None:
    """Return a finding if the process of a span, or the one that should serve it, does not work any more."""
    state = scene.state(row.who)
    if state != ALIVE:
        row = _deepest(scene, row)
        return Finding(state, row.who, row, _waiting(scene, row)) if scene.is_overdue(row) else None
    around = (row, *_waiting(scene, row))
    if row.name.startswith("verl.call "):
        return _find_missing_rank(scene, row, around)
    if scene.children.get(row.span):
        return None
    if row.attributes.get(attr.GEN_AI_OPERATION) in ("chat", "text_completion"):
        return _find_broken(scene, _SERVERS, around)
    if row.awaits_rollouts and not _below(scene, row):
        return _find_broken(scene, _ROLLOUT, around)
    return None


def _deepest(scene: Scene, row: Row) -> Row:
    seen = {row.span}
    while True:
        below = [child for child in scene.children.get(row.span, ()) if child.who == row.who and child.span not in seen]
        if not below:
            return row
        row = min(below, key=lambda each: each.start_ns)
        seen.add(row.span)


def _find_broken(scene: Scene, roles: Iterable[str], around: tuple[Row, ...]) -> Finding | None:
    """Return the process of some role that has died or is frozen, if there is one."""
    broken = [member for member in scene.members.values() if member.role in roles and scene.state(member.who) != ALIVE]
    broken.sort(key=lambda member: _WORST.index(scene.state(member.who)))
    return Finding(scene.state(broken[0].who), broken[0].who, None, around) if broken else None


def _find_missing_rank(scene: Scene, call: Row, around: tuple[Row, ...]) -> Finding | None:
    """Return the rank of a worker group that a call waits for although it has begun nothing."""
    size = call.attributes.get(attr.WORLD_SIZE)
    children = scene.children.get(call.span, [])
    here = {row.attributes.get(attr.RANK) for row in children}
    roles = {scene.members[row.who].role for row in children if row.who in scene.members}
    roles = roles or {str(call.attributes.get(attr.WORKER_GROUP, ""))}
    if not isinstance(size, int) or any(scene.state(row.who) != ALIVE for row in children):
        return None
    for member in sorted(scene.members.values(), key=lambda each: _WORST.index(scene.state(each.who))):
        if member.role not in roles or member.rank is None or member.rank >= size or member.rank in here:
            continue
        if call.span in member.served:
            continue
        state = scene.state(member.who)
        row = next((each for each in scene.rows.values() if each.who == member.who), None)
        return Finding(MISSING if state == ALIVE else state, member.who, row, around, member.rank)
    return None


def _waiting(scene: Scene, row: Row) -> tuple[Row, ...]:
    """Return what is open around a span: its parents, and the trainer that waits for its trajectory."""
    found: list[Row] = []
    seen = {row.span}
    walked = row
    while len(found) < MAX_WAITING:
        above = scene.rows.get(walked.parent)
        if above is None and walked.name == TRAJECTORY:
            above = _find_trainer(scene, walked)
        if above is None or above.span in seen:
            break
        seen.add(above.span)
        found.append(above)
        walked = above
    return tuple(found)


def _find_trainer(scene: Scene, trajectory: Row) -> Row | None:
    """Return the innermost span of the trainer that waits for a trajectory, of the step that submitted it if that is open."""
    rows = [row for row in scene.rows.values() if row.is_trainer and not scene.children.get(row.span)]
    submitters = [row for row in rows if row.trace in trajectory.links]
    return min(submitters or rows, key=lambda row: row.start_ns, default=None)


def find_trainers(scene: Scene) -> tuple[Row, ...]:
    """Return what the trainer is at, the innermost first; nothing if no trainer has anything open here."""
    rows = [row for row in scene.rows.values() if row.is_trainer and not scene.children.get(row.span)]
    first = min(rows, key=lambda row: row.start_ns, default=None)
    return () if first is None else (first, *_waiting(scene, first))


def concerned(scene: Scene, finding: Finding) -> list[str]:
    """Return the processes whose stacks tell more: the culprit, who waits for it, and the ranks that are called together."""
    found = [finding.who]
    for row in (finding.row, *finding.waiting):
        if row is None:
            continue
        found.append(row.who)
        if row.name.startswith("verl.call "):
            found += [child.who for child in scene.children.get(row.span, ())]
    return list(dict.fromkeys(found))
