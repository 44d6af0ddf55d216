# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories that a step waited for, what they took so long for, and who else took long for the same."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Segment, Trajectory
from verl_otel.analysis.savings import Wait, find_waits
from verl_otel.analysis.thresholds import FEW_PEERS, SAMPLE
from verl_otel.analysis.traces import Node
from verl_otel.analysis.typical import Typical, Yardstick, measure

SERVED: Final = frozenset(("server", "queue", "prefill", "decode"))
"""What a replica does."""
_UNKNOWN: Final = ("unknown", "")
"""What a trajectory did of which only the root was kept."""


class _Span(NamedTuple):
    """What one span adds to the critical path of its trajectory; or several, summed up."""

    instance: str
    turn: int | None
    start_ns: int
    end_ns: int
    length_ns: int
    """Less than from start to end where a child of it was waited for."""

    def cut(self, begin: int) -> int:
        """Return how much of its length lies after a time, at most."""
        return max(0, min(self.length_ns, self.end_ns - begin))


class Late(NamedTuple):
    """A trajectory that took long over the same kind of thing."""

    end_ns: int
    instance: str
    lengths: tuple[float, ...]
    """Seconds of each time."""


class Lag(NamedTuple):
    """Something that the trajectory that a step waited for took noticeable time for."""

    wait: Wait
    label: str
    kind: str
    name: str
    instance: str
    turn: int | None
    key: Hashable
    seconds: float
    inside: float
    """Seconds of it since the wait began."""
    summed: bool
    """Several spans together."""
    cold: bool
    """It began before the first one of its kind in its process was through."""
    here: Yardstick | None
    """The same kind of thing elsewhere in this step."""
    elsewhere: Yardstick | None
    """The same on other replicas."""
    again: tuple[float, ...]
    """Seconds of the same kind of thing at other times in this trajectory."""
    late: tuple[Late, ...] = ()
    """The other trajectories that took at least as long as is worth a verdict."""
    rest_ns: int = 0
    """When the last of the rest had ended."""


def measure_spans(members: Sequence[Trajectory]) -> dict[Hashable, list[float]]:
    """Return the seconds of everything that trajectories did, by what it is: each span, and all of a trajectory together.

    Of many trajectories some are looked at, by lot: that is enough for a median.
    """
    if len(members) > SAMPLE:
        members = random.Random(members[0].trace_id).sample(members, SAMPLE)  # noqa: S311 - no secret
    found: dict[Hashable, list[float]] = defaultdict(list)
    for each in members:
        found[_key(*_UNKNOWN, summed=False)].append(each.seconds)
        lengths: dict[tuple[str, str, int], int] = defaultdict(int)
        for segment in each.path if each.whole else ():
            lengths[segment.kind, segment.name, segment.span_id] += segment.end_ns - segment.start_ns
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for (kind, name, _), length in lengths.items():
            found[_key(kind, name, summed=False)].append(length / 1e9)
            sums[kind, name] += length
        for (kind, name), length in sums.items():
            found[_key(kind, name, summed=True)].append(length / 1e9)
    return found


def _key(kind: str, name: str, *, summed: bool) -> Hashable:
    return "sum" if summed else "span", kind, name


def find_lags(
    path: Iterable[Segment], root: Node, members: Sequence[Trajectory], typical: Typical, floor: float
) -> tuple[Lag, ...]:
    """Return what the trajectories that a step waited for took time for, and may have taken too long for.

    Args:
        path: Critical path of the step.
        root: Its tree.
        members: The trajectories that it trained on.
        typical: How long things took in the steps before.
        floor: Seconds that are worth a verdict.
    """
    known = {each.trace_id: each for each in members}
    found: list[Lag] = []
    for wait in find_waits(path, root):
        gating = known.get(wait.trace_id)
        if gating is not None and wait.end_ns - wait.begin_ns >= floor * 1e9:
            others = [each for each in members if each.end_ns <= wait.end_ns and each is not gating]
            found += _find_lags(wait, gating, others, typical, floor)
    return tuple(found)


def _find_lags(
    wait: Wait, gating: Trajectory, others: Sequence[Trajectory], typical: Typical, floor: float
) -> Iterator[Lag]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for segment in gating.path:
        sums[segment.kind, segment.name] += max(0, segment.end_ns - max(segment.start_ns, wait.begin_ns))
    for what in [what for what, length in sums.items() if length >= floor * 1e9] if gating.whole else [_UNKNOWN]:
        mine, theirs = _find_spans(gating, *what), [(each, _find_spans(each, *what)) for each in others]
        for span in mine:
            again = [other for other in mine if other is not span]
            lag = _make_lag(wait, gating.label, what, span, again, theirs, summed=False)
            if lag.inside >= floor and _may_be_long(lag, typical, floor):
                yield _with_late(lag, theirs, floor)
        if len(mine) > 1:
            together = [(each, [_sum_up(spans)] if spans else []) for each, spans in theirs]
            lag = _make_lag(wait, gating.label, what, _sum_up(mine), [], together, summed=True)
            if _may_be_long(lag, typical, floor):
                yield _with_late(lag, together, floor)


def _may_be_long(lag: Lag, typical: Typical, floor: float) -> bool:
    """Return whether a lag is worth to be remembered: not where all peers say no and many steps are known."""
    run = typical.of_others(lag.key, 0)
    known = [each for each in (lag.here, lag.elsewhere, run) if each is not None]
    return run is None or run.peers < FEW_PEERS or not all(each.allows(lag.seconds, floor) for each in known)


def _find_spans(trajectory: Trajectory, kind: str, name: str) -> list[_Span]:
    """Return what a trajectory did of one kind and name."""
    if kind == _UNKNOWN[0]:
        begin, end = trajectory.start_ns, trajectory.end_ns
        return [_Span(trajectory.instance, None, begin, end, end - begin)]
    found: dict[int, _Span] = {}
    for segment in trajectory.path if trajectory.whole else ():
        if segment.kind == kind and segment.name == name:
            length, before = segment.end_ns - segment.start_ns, found.get(segment.span_id)
            if before is not None:
                length += before.length_ns
            start = segment.start_ns if before is None else before.start_ns
            found[segment.span_id] = _Span(segment.instance, segment.turn, start, segment.end_ns, length)
    return list(found.values())


def _sum_up(spans: Sequence[_Span]) -> _Span:
    longest = max(spans, key=lambda span: span.length_ns)
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    return longest._replace(start_ns=begin, end_ns=end, length_ns=sum(span.length_ns for span in spans))


def _make_lag(
    wait: Wait,
    label: str,
    what: tuple[str, str],
    span: _Span,
    again: Sequence[_Span],
    theirs: Sequence[tuple[Trajectory, list[_Span]]],
    *,
    summed: bool,
) -> Lag:
    peers = [*again, *(other for _, spans in theirs for other in spans)]
    elsewhere = [other for other in peers if other.instance != span.instance] if what[0] in SERVED else []
    return Lag(
        wait,
        label,
        *what,
        span.instance,
        span.turn,
        _key(*what, summed=summed),
        span.length_ns / 1e9,
        span.cut(wait.begin_ns) / 1e9,
        summed,
        _is_cold(span, peers),
        measure(other.length_ns / 1e9 for other in peers),
        measure(other.length_ns / 1e9 for other in elsewhere),
        tuple(other.cut(wait.begin_ns) / 1e9 for other in again),
    )


def _with_late(lag: Lag, theirs: Sequence[tuple[Trajectory, list[_Span]]], floor: float) -> Lag:
    late = [_find_late(owner, spans, floor) for owner, spans in theirs]
    rest = max((each.end_ns for each in late if not each.lengths), default=lag.wait.begin_ns)
    return lag._replace(late=tuple(each for each in late if each.lengths), rest_ns=rest)


def _find_late(owner: Trajectory, spans: Iterable[_Span], floor: float) -> Late:
    long = [span for span in spans if span.length_ns >= floor * 1e9]
    instance = max(long, key=lambda span: span.length_ns).instance if long else ""
    return Late(owner.end_ns, instance, tuple(span.length_ns / 1e9 for span in long))


def _is_cold(span: _Span, peers: Iterable[_Span]) -> bool:
    first = min(
        (each for each in (span, *peers) if each.instance == span.instance),
        key=lambda each: (each.start_ns, each.end_ns),
    )
    return span.start_ns <= first.end_ns
