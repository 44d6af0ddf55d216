# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is open on a node at one moment: the spans of all processes as one forest, and how each process is."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel.recording.progress import Peers
from verl_otel.semconv import attributes as attr
from verl_otel.session.black_box import limits
from verl_otel.session.black_box.members import Member, Suspect

ALIVE, FROZEN, STOPPED, DIED = "alive", "frozen", "stopped", "died"
"""How a process is. ``frozen``: it is there and gives no sign of life."""
TRAINER: Final = (
    "verl.step",
    "verl.validation",
    "verl.warmup",
    "verl.phase.",
    "verl.call ",
    "verl.weight_sync",
    "verl.checkpoint",
)
"""What the names of a trainer's spans begin with."""
_ROLLOUTS: Final = re.compile(
    r"verl\.(?:step|validation|warmup|phase\.(?:[a-z0-9_]*gen(?:_|$)|generate|submit|rollout|reward|wait|testing).*)$"
)
"""Spans in which a trainer waits for trajectories; in others it works by itself or calls its workers."""
TRAJECTORY: Final = "verl.trajectory"
_AROUND: Final = (TRAJECTORY, "verl.turn", "verl.call ", "chat", "text_completion")
"""What the names of spans begin with whose peers count for a span below them that has none of its own."""
MAX_BYTES: Final = 8 << 20
"""Of a file with open spans that is read."""
_UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)


class Row(NamedTuple):
    """An open span."""

    who: str
    """The process that has it open."""
    trace: str
    span: str
    parent: str
    name: str
    start_ns: int
    last_child: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Traces of the spans that it links to."""

    @property
    def is_trainer(self) -> bool:
        """Whether a trainer has opened it."""
        return self.name.startswith(TRAINER)

    @property
    def awaits_rollouts(self) -> bool:
        """Whether a trainer waits for trajectories in it."""
        return _ROLLOUTS.match(self.name) is not None


class Scene:
    """Everything that is open on a node.

    Args:
        now_ns: Unix time in nanoseconds.
        members: The processes.
        states: How each of them is.
        rows: Their open spans.
        peers: How long what has ended took, by span name, over all of them.
        alone: Seconds that work without any peer may take.
        moving: Processes in which spans have ended in the last seconds.
        busy: The same in the last ``alone`` seconds, before they froze if they are frozen.
    """

    def __init__(
        self,
        now_ns: int,
        members: Mapping[str, Member],
        states: Mapping[str, str],
        rows: Iterable[Row],
        peers: Mapping[str, Peers],
        alone: float,
        moving: Collection[str] = (),
        busy: Collection[str] = (),
    ) -> None:
        self.now_ns, self.members, self.states, self.peers, self.alone = now_ns, members, states, peers, alone
        self.moving, self.busy = moving, busy
        self.rows = {row.span: row for row in rows}
        self.suspects: dict[str, Suspect] = {
            each.span: each
            for member in members.values()
            for each in member.suspects
            if self.state(member.who) == ALIVE
        }

    @cached_property
    def children(self) -> dict[str, list[Row]]:
        """The open spans directly below each one."""
        found: dict[str, list[Row]] = {}
        for row in self.rows.values():
            found.setdefault(row.parent, []).append(row)
        return found

    def state(self, who: str) -> str:
        """Return how a process is; a process that is not known is `DIED`: it has left a file."""
        return self.states.get(who, DIED)

    def age(self, row: Row) -> float:
        """Return for how many seconds a span has been open."""
        return (self.now_ns - row.start_ns) / 1e9

    def is_overdue(self, row: Row) -> bool:
        """Return whether a span with nothing open below it is far beyond its peers, and nothing moves there."""
        state = self.state(row.who)
        if state == DIED:
            return True
        if state != ALIVE:
            alone = min(self.alone, limits.STOPPED_ALONE) if state == STOPPED else self.alone
            overdue = self.age(row) > limits.silent_limit(self._peers_of(row), alone)
            return overdue and (state != FROZEN or self._is_still(row))
        if row.span not in self.suspects or self.age(row) <= self.limit(row):
            return False
        return self._is_still(row)

    def _is_still(self, row: Row) -> bool:
        """Return whether nothing of its process moves, if that matters: a user's span around a training is as old as that."""
        around = (row, *self.ancestors(row))
        return row.who not in self.busy or not all(is_users_own(each.name, self.peers) for each in around)

    def limit(self, row: Row) -> float:
        """Return the seconds after which a span of a live process is overdue."""
        return limits.limit(self._peers_of(row), self.alone)

    def longest(self, row: Row) -> float | None:
        """Return how long its longest peer took; None: there is none."""
        peers = self.peers.get(row.name)
        return peers.longest if peers is not None else None

    def _peers_of(self, row: Row) -> Peers | None:
        """Return the peers of a span; where there are none, those of its caller in another process or of its trajectory.

        A tool that is used for the first time should not take longer than whole trajectories did. The first checkpoint may well
        take longer than steps did.
        """
        inner = row
        for each in (row, *self.ancestors(row)):
            if each is not row and not (each.who != inner.who or each.name in (TRAJECTORY, "verl.turn")):
                return None
            peers = self.peers.get(each.name)
            if peers is not None:
                return peers
            inner = each
        return None

    def ancestors(self, row: Row) -> Iterator[Row]:
        """Yield what is open around a span, from the inside to the outside; damaged files may hold circles."""
        seen = {row.span}
        above = self.rows.get(row.parent)
        while above is not None and above.span not in seen:
            yield above
            seen.add(above.span)
            above = self.rows.get(above.parent)


def could_be_overdue(name: str, age: float, peers: Mapping[str, Peers], alone: float) -> bool:
    """Return whether an open span may be overdue, whatever is around it: cheap, and asked every second."""
    known = peers.get(name)
    if known is not None or name.startswith(TRAINER):
        return age > limits.limit(known, alone)
    around = (each for other, each in peers.items() if other.startswith(_AROUND))
    return age > min((limits.limit(each, alone) for each in around), default=alone)


def is_users_own(name: str, peers: Mapping[str, Peers]) -> bool:
    """Return whether work of a name is of no known kind, and has no peers."""
    return name not in peers and not name.startswith(TRAINER) and name != TRAJECTORY


def read_rows(path: Path, who: str) -> list[Row]:
    """Return what a process had open when it wrote its file last; nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            thing = json.loads(file.read(MAX_BYTES))
        groups = [scope for group in thing["resourceSpans"] for scope in group["scopeSpans"]]
        return [_read(who, span) for scope in groups for span in scope["spans"]]
    except _UNREADABLE:
        return []


def _read(who: str, span: dict[str, Any]) -> Row:
    attributes = {pair["key"]: _value(pair["value"]) for pair in span.get("attributes", ())}
    links = tuple(link["traceId"] for link in span.get("links", ()))
    return Row(
        who,
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        span["name"],
        int(span["startTimeUnixNano"]),
        str(attributes.get(attr.OPEN_LAST_CHILD, "")),
        attributes,
        links,
    )


def _value(value: dict[str, Any]) -> Any:
    for kind, held in value.items():
        return int(held) if kind == "intValue" else held
    return None
