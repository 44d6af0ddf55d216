# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a node: the open spans of all processes, linked as trees, the state of each process, and the age at which work is overdue."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel._internal.safe_files import parse_int64
from verl_otel.recording.duration_stats import DurationStats, merge
from verl_otel.semconv import attributes as attr
from verl_otel.watchdog.process_reports import ProcessReport, SuspectSpan
from verl_otel.watchdog.stillness import STILL_SECONDS

ALIVE, FROZEN, STOPPED, DIED = "alive", "frozen", "stopped", "died"
"""States of a process. ``frozen``: it exists and writes no heartbeats."""
TRAINER: Final = (
    "verl.step",
    "verl.validation",
    "verl.warmup",
    "verl.phase.",
    "verl.call ",
    "verl.weight_sync",
    "verl.checkpoint",
)
"""Prefixes of the names of a trainer's spans."""
_ROLLOUTS: Final = re.compile(
    r"verl\.(?:step|validation|warmup|phase\.(?:[a-z0-9_]*gen(?:_|$)|generate|submit|rollout|reward|wait|testing).*)$"
)
"""Spans in which a trainer waits for trajectories. In its other spans it computes or calls its workers."""
CALL: Final = "verl.call "
TRAJECTORY: Final = "verl.trajectory"
_AROUND: Final = (TRAJECTORY, "verl.turn", CALL, "chat", "text_completion")
"""Prefixes of the names of spans whose peers are used for a descendant that has no peers."""
MAX_BYTES: Final = 8 << 20
"""Largest file of open spans that is read."""

# -- The age at which open work is overdue. Every constant is given with its reason --

FACTOR: Final = 1.5
"""Multiple of the longest peer that is still normal, if the longest peers are similar: a straggler is a few tens of per cent slower."""
WIDE_FACTOR: Final = 8.0
"""Upper bound of the factor for heavy tails: longer work is always reported."""
FEW_FACTOR: Final = 4.0
"""The factor with few peers."""
FEW: Final = 8
"""Number of peers below which their tail is unknown."""
RARE: Final = 0.001
"""Accepted probability that healthy work that exceeds the longest peer exceeds it by the factor. The longest peer is exceeded about
ln(n) times in n steps, six times in 300."""
SLACK: Final = 10.0
"""Seconds that are added: garbage collection, a cold cache or a busy machine is not a stall."""
QUIET: Final = 10.0
"""Seconds without an ended descendant after which a span may be stuck. With descendants that end it is slow, not stuck."""
HEARTBEAT_TIMEOUT: Final = 8.0
"""Seconds without a heartbeat after which a process is frozen, if its work is overdue as well. The interval is one second."""
HEARTBEAT_SLACK: Final = 5.0
"""Seconds that are added to the longest peer in a frozen process, which cannot make progress."""
FEW_HEARTBEAT_TIMEOUT: Final = 2.0
"""The factor for a frozen process with few peers."""
STILL_FACTOR: Final = 2.0
"""The factor for a call of workers on a node where nothing computes, reads or writes for `STILL_SECONDS`."""
MAX_HUNG: Final = 8
"""Durations of one name that may be left out as those of work that hung: what more work takes is usual."""
MAX_REPORTS: Final = 2
"""Reports of one name after which its durations count whatever they are: it was slow, and did not hang."""


def span_timeout(peers: DurationStats | None, default_timeout: float) -> float:
    """Return the age in seconds at which open work of a live process is overdue.

    Args:
        peers: Ended spans of the same name; None: there are none.
        default_timeout: The result without peers, in seconds.
    """
    if peers is None or not peers.ended:
        return default_timeout
    return _factor(peers) * peers.longest + SLACK


def _factor(peers: DurationStats) -> float:
    """Return the accepted multiple of the longest peer, estimated from the tail of the durations.

    Beyond its largest values a heavy tail falls off like ``x ** (-1 / index)``, and Hill's estimator of the index is the mean of the
    logarithms of the largest values over the smallest of them (Annals of Statistics 3 (1975) 1163).
    """
    if peers.ended < FEW:
        return FEW_FACTOR
    smallest = max(peers.top[-1], 1e-4)
    index = sum(math.log(max(seconds, 1e-4) / smallest) for seconds in peers.top[:-1]) / (len(peers.top) - 1)
    return min(max(math.exp(min(-math.log(RARE) * index, 10.0)), FACTOR), WIDE_FACTOR)


def shortest_timeout(peers: DurationStats | None) -> float:
    """Return the age in seconds below which work is not overdue, whatever the peers in other processes are, and whichever of these hung."""
    return QUIET if peers is None or peers.ended < FEW else FACTOR * peers.top[-1] + SLACK


def heartbeat_timeout(peers: DurationStats | None, default_timeout: float) -> float:
    """Return the age in seconds at which work of a frozen process is overdue; arguments as of `span_timeout`."""
    if peers is None or not peers.ended:
        return default_timeout
    return (FEW_HEARTBEAT_TIMEOUT if peers.ended < FEW else 1.0) * peers.longest + HEARTBEAT_SLACK


def still_timeout(peers: DurationStats | None) -> float:
    """Return the age in seconds from which on a call of workers is overdue on a node that does nothing at all; argument as of `span_timeout`."""
    return STILL_SECONDS if peers is None or not peers.ended else max(STILL_SECONDS, STILL_FACTOR * peers.longest)


def merge_all(tables: Iterable[dict[str, DurationStats]]) -> dict[str, DurationStats]:
    """Return the merged peers of all processes, by span name."""
    merged: dict[str, DurationStats] = {}
    for table in tables:
        for name, peers in table.items():
            existing = merged.get(name)
            merged[name] = peers if existing is None else merge(existing, peers)
    return merged


class HungWork:
    """Work that was reported as hung. How long it took in the end is no measure of what is usual."""

    def __init__(self) -> None:
        self._reported: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add a span that hangs, or waits for one that does.

        Args:
            name: Its name.
            seconds: The longest that is usual: its age, or the duration of a longer peer.
        """
        self._reported.setdefault(name, []).append(seconds)

    def restore(self, seconds: Mapping[str, float]) -> None:
        """Add spans that a former monitor has reported, by name, unless some of that name are known."""
        for name, usual in seconds.items():
            self._reported.setdefault(name, [usual])

    def leave_out(self, peers: dict[str, DurationStats]) -> dict[str, DurationStats]:
        """Return durations by span name without those of such work."""
        usual = dict(peers)
        for name, reported in self._reported.items():
            if name in peers and len(reported) <= MAX_REPORTS:
                ended, top = peers[name]
                kept = tuple(seconds for seconds in top if seconds <= reported[0])
                hung = len(top) - len(kept)
                if hung > MAX_HUNG:
                    continue
                if kept:
                    usual[name] = DurationStats(ended - hung, kept)
                else:
                    del usual[name]
        return usual


# -- open spans, and the node --


class OpenSpanRow(NamedTuple):
    """An open span."""

    process_name: str
    """Name of the process that has it open."""
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    last_child: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Trace ids of the spans that it links to."""

    @property
    def is_trainer(self) -> bool:
        """Whether a trainer has opened it."""
        return self.name.startswith(TRAINER)

    @property
    def awaits_rollouts(self) -> bool:
        """Whether a trainer waits for trajectories in it."""
        return _ROLLOUTS.match(self.name) is not None


class Snapshot:
    """The open spans of a node and the state of its processes.

    Args:
        now_ns: Unix time in nanoseconds.
        reports: The reports of the processes, by name.
        states: The state of each process.
        rows: The open spans.
        peers: Durations of ended spans by span name, merged over all processes.
        default_timeout: Seconds that work without any peer may take.
        moving: Names of live processes in which spans have ended in the last `QUIET` seconds.
        busy: Names of processes in which spans have ended in the last ``default_timeout`` seconds.
        is_still: Returns whether no process of the node has computed or written anything lately.
    """

    def __init__(
        self,
        now_ns: int,
        reports: Mapping[str, ProcessReport],
        states: Mapping[str, str],
        rows: Iterable[OpenSpanRow],
        peers: Mapping[str, DurationStats],
        default_timeout: float,
        moving: Collection[str] = (),
        busy: Collection[str] = (),
        is_still: Callable[[], bool] = lambda: False,
    ) -> None:
        self.now_ns, self.reports, self.states = now_ns, reports, states
        self.peers, self.default_timeout, self.moving, self.busy = peers, default_timeout, moving, busy
        self._is_still = is_still
        self.rows = {row.span_id: row for row in rows}
        self.suspects: dict[str, SuspectSpan] = {
            suspect.span_id: suspect
            for report in reports.values()
            for suspect in report.suspects
            if self.state(report.process_name) == ALIVE
        }

    @cached_property
    def children(self) -> dict[str, list[OpenSpanRow]]:
        """The open children of each span id."""
        children: dict[str, list[OpenSpanRow]] = {}
        for row in self.rows.values():
            children.setdefault(row.parent_id, []).append(row)
        return children

    def state(self, process_name: str) -> str:
        """Return the state of a process; `DIED` for an unknown one, which has left a file of open spans."""
        return self.states.get(process_name, DIED)

    def age(self, row: OpenSpanRow) -> float:
        """Return the seconds for which a span has been open."""
        return (self.now_ns - row.start_ns) / 1e9

    def is_overdue(self, row: OpenSpanRow) -> bool:
        """Return whether a span without open children is far beyond its peers and its process makes no progress, or does not run."""
        state = self.state(row.process_name)
        if state in (DIED, STOPPED):
            return True
        if state == FROZEN:
            overdue = self.age(row) > heartbeat_timeout(self._peers_of(row), self.default_timeout)
            return overdue and not self._is_in_progress(row)
        if row.span_id not in self.suspects or self.age(row) <= self.limit(row):
            return False
        return not self._is_in_progress(row)

    def _is_in_progress(self, row: OpenSpanRow) -> bool:
        """Return whether its process makes progress, if that matters: a user's span around a training is as old as the training."""
        enclosing = (row, *self.ancestors(row))
        return row.process_name in self.busy and all(is_users_own(span.name, self.peers) for span in enclosing)

    def limit(self, row: OpenSpanRow) -> float:
        """Return the age in seconds at which a span of a live process is overdue."""
        peers = self._peers_of(row)
        timeout, soonest = span_timeout(peers, self.default_timeout), still_timeout(peers)
        if soonest < self.age(row) <= timeout and self._is_call(row) and self.is_still:
            return soonest
        return timeout

    @cached_property
    def is_still(self) -> bool:
        """Whether no process of the node has computed or written anything lately."""
        return self._is_still()

    def _is_call(self, row: OpenSpanRow) -> bool:
        """Return whether a span is a call of workers, or part of one, and all of its ranks are on this node: others may compute."""
        call = next((span for span in (row, *self.ancestors(row)) if span.name.startswith(CALL)), None)
        size = call.attributes.get(attr.WORLD_SIZE) if call is not None else None
        ranks = {report.rank for report in self.reports.values() if self.state(report.process_name) == ALIVE}
        return isinstance(size, int) and ranks.issuperset(range(size))

    def longest(self, row: OpenSpanRow) -> float | None:
        """Return the duration of its longest peer in seconds; None: there is none."""
        peers = self.peers.get(row.name)
        return peers.longest if peers is not None else None

    def _peers_of(self, row: OpenSpanRow) -> DurationStats | None:
        """Return the peers of a span; without any, those of its caller in another process or of its trajectory.

        A tool that is used for the first time should not take longer than whole trajectories did. The first checkpoint may well
        take longer than steps did.
        """
        inner = row
        for outer in (row, *self.ancestors(row)):
            if outer is not row and not (
                outer.process_name != inner.process_name or outer.name in (TRAJECTORY, "verl.turn")
            ):
                return None
            peers = self.peers.get(outer.name)
            if peers is not None:
                return peers
            inner = outer
        return None

    def ancestors(self, row: OpenSpanRow) -> Iterator[OpenSpanRow]:
        """Yield the open ancestors of a span, innermost first. Damaged files may contain cycles."""
        seen = {row.span_id}
        above = self.rows.get(row.parent_id)
        while above is not None and above.span_id not in seen:
            yield above
            seen.add(above.span_id)
            above = self.rows.get(above.parent_id)


def could_be_overdue(name: str, age: float, peers: Mapping[str, DurationStats], default_timeout: float) -> bool:
    """Return whether an open span may be overdue by its name and age alone. Cheap: it is called every second."""
    own_peers = peers.get(name)
    if own_peers is not None or name.startswith(TRAINER):
        timeout = span_timeout(own_peers, default_timeout)
        return age > (min(timeout, still_timeout(own_peers)) if name.startswith(CALL) else timeout)
    enclosing_peers = (stats for other, stats in peers.items() if other.startswith(_AROUND))
    return age > min((span_timeout(stats, default_timeout) for stats in enclosing_peers), default=default_timeout)


def is_users_own(name: str, peers: Mapping[str, DurationStats]) -> bool:
    """Return whether a span name is unknown to the library and has no peers."""
    return name not in peers and not name.startswith(TRAINER) and name != TRAJECTORY


def read_rows(path: Path, process_name: str) -> list[OpenSpanRow]:
    """Return the spans that a process had open when it wrote its file last; none if there is no such file."""
    rows: dict[str, OpenSpanRow] = {}
    try:
        lines = safe_files.read_bytes(path, MAX_BYTES, follow=False).splitlines()
    except safe_files.READ_ERRORS:
        return []
    for line in lines:
        with contextlib.suppress(*safe_files.READ_ERRORS):  # the last one may be half written
            document = safe_files.parse_json(line)
            groups = [scope for group in document["resourceSpans"] for scope in group["scopeSpans"]]
            begun = [_read(process_name, span) for scope in groups for span in scope["spans"]]
            rows |= {row.span_id: row for row in begun}
            for span_id in document.get("ended", ()):
                rows.pop(span_id, None)
    return list(rows.values())


def _read(process_name: str, span: dict[str, Any]) -> OpenSpanRow:
    attributes = {str(pair["key"]): _value(pair["value"]) for pair in span.get("attributes", ())}
    links = tuple(str(link["traceId"]) for link in span.get("links", ()))
    return OpenSpanRow(
        process_name,
        str(span["traceId"]),
        str(span["spanId"]),
        str(span.get("parentSpanId", "")),
        str(span["name"]),
        parse_int64(span["startTimeUnixNano"]),
        str(attributes.get(attr.OPEN_LAST_CHILD, "")),
        attributes,
        links,
    )


def _value(value: dict[str, Any]) -> Any:
    """Return a string, number or Boolean; None for other kinds such as arrays."""
    for kind, held in value.items():
        if kind == "intValue":
            return parse_int64(held)
        return held if isinstance(held, (str, bool, float)) else None
    return None
