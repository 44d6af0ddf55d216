# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories that a step waited for, what they took so long for, and who else took long for the same."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Segment
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.savings import Wait, find_waits
from verl_otel.analysis.spans import Span, Spans, find_spans
from verl_otel.analysis.thresholds import FEW_PEERS, SAMPLE
from verl_otel.analysis.traces import Node
from verl_otel.analysis.typical import Typical, Yardstick, measure

SERVED: Final = frozenset(("server", "queue", "prefill", "decode"))
"""What a replica does."""
_length: Final = attrgetter("length_ns")
_UNKNOWN: Final = ("unknown", "")
"""What a trajectory did of which only the root was kept."""


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


def measure_spans(members: Sequence[Packed]) -> dict[Hashable, list[float]]:
    """Return the seconds of everything that trajectories did, by what it is: each span, and all of a trajectory together.

    Of many trajectories some are looked at, by lot: that is enough for a median.
    """
    if len(members) > SAMPLE:
        members = random.Random(members[0].trace_id).sample(members, SAMPLE)  # noqa: S311 - no secret
    found: dict[Hashable, list[float]] = defaultdict(list)
    for each in members:
        found[_key(*_UNKNOWN, summed=False)].append(each.seconds)
        spans = find_spans(each) if each.whole else {}
        for (kind, name), same in spans.items():
            found[_key(kind, name, summed=False)] += [span.length_ns / 1e9 for span in same]
        for (kind, name), same in spans.items():
            found[_key(kind, name, summed=True)].append(sum([span.length_ns for span in same]) / 1e9)
    return found


def _key(kind: str, name: str, *, summed: bool) -> Hashable:
    return "sum" if summed else "span", kind, name


def find_lags(path: Iterable[Segment], root: Node, members: Sequence[Packed], floor: float) -> tuple[Lag, ...]:
    """Return what the trajectories that a step waited for took time for.

    Args:
        path: Critical path of the step.
        root: Its tree.
        members: The trajectories that it trained on.
        floor: Seconds that are worth a verdict.
    """
    known = {each.trace_id: each for each in members}
    found: list[Lag] = []
    for wait in find_waits(path, root):
        gating = known.get(wait.trace_id)
        if gating is not None and wait.end_ns - wait.begin_ns >= floor * 1e9:
            others = [each for each in members if each.end_ns <= wait.end_ns and each is not gating]
            found += _find_lags(wait, gating, others, floor)
    return tuple(found)


def _find_lags(wait: Wait, gating: Packed, others: Sequence[Packed], floor: float) -> Iterator[Lag]:
    long = _find_long(wait, gating, floor)
    kinds = {kind for kind, _ in long}
    own, known = find_spans(gating, kinds), [(each, find_spans(each, kinds)) for each in others]
    for what in long:
        mine, theirs = _choose(gating, own, what), [(each.end_ns, _choose(each, spans, what)) for each, spans in known]
        for span in mine:
            if span.cut(wait.begin_ns) / 1e9 >= floor:
                again = [other for other in mine if other is not span]
                yield _make_lag(wait, gating.label, what, span, again, theirs, floor, summed=False)
        if len(mine) > 1:
            together = [(end, [_sum_up(spans)] if spans else []) for end, spans in theirs]
            yield _make_lag(wait, gating.label, what, _sum_up(mine), [], together, floor, summed=True)


def _find_long(wait: Wait, gating: Packed, floor: float) -> list[tuple[str, str]]:
    """Return what a trajectory spent noticeable time on since the wait for it began, as kind and name."""
    if not gating.whole:
        return [_UNKNOWN]
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for segment in gating.path:
        sums[segment.kind, segment.name] += max(0, segment.end_ns - max(segment.start_ns, wait.begin_ns))
    return [what for what, length in sums.items() if length >= floor * 1e9]


def may_be_long(lag: Lag, typical: Typical, floor: float) -> bool:
    """Return whether a lag is worth to be remembered: not where all peers say no and many steps are known."""
    run = typical.of_others(lag.key, 0)
    known = [each for each in (lag.here, lag.elsewhere, run) if each is not None]
    return run is None or run.peers < FEW_PEERS or not all(each.allows(lag.seconds, floor) for each in known)


def _choose(trajectory: Packed, spans: Spans, what: tuple[str, str]) -> Sequence[Span]:
    """Return what a trajectory did of one kind and name."""
    if what[0] == _UNKNOWN[0]:
        begin, end = trajectory.start_ns, trajectory.end_ns
        return [Span(trajectory.instance, None, begin, end, end - begin)]
    return spans.get(what, ()) if trajectory.whole else ()


def _sum_up(spans: Sequence[Span]) -> Span:
    if len(spans) == 1:
        return spans[0]
    longest = max(spans, key=_length)
    begin, end = min([span.start_ns for span in spans]), max([span.end_ns for span in spans])
    return Span(longest.instance, longest.turn, begin, end, sum([span.length_ns for span in spans]))


def _make_lag(
    wait: Wait,
    label: str,
    what: tuple[str, str],
    span: Span,
    again: Sequence[Span],
    theirs: Sequence[tuple[int, Sequence[Span]]],
    floor: float,
    *,
    summed: bool,
) -> Lag:
    peers = [*again, *(other for _, spans in theirs for other in spans)]
    elsewhere = [other for other in peers if other.instance != span.instance] if what[0] in SERVED else []
    late, rest_ns = _find_late(wait, theirs, floor)
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
        measure([other.length_ns / 1e9 for other in peers]),
        measure([other.length_ns / 1e9 for other in elsewhere]),
        tuple(other.cut(wait.begin_ns) / 1e9 for other in again),
        late,
        rest_ns,
    )


def _find_late(wait: Wait, theirs: Iterable[tuple[int, Sequence[Span]]], floor: float) -> tuple[tuple[Late, ...], int]:
    """Return those who took long, too, and when the last of the others had ended."""
    found: list[Late] = []
    least, rest = floor * 1e9, None
    for end, spans in theirs:
        long = [span for span in spans if span.length_ns >= least]
        if long:
            instance = max(long, key=_length).instance
            found.append(Late(end, instance, tuple([span.length_ns / 1e9 for span in long])))
        elif rest is None or end > rest:
            rest = end
    return tuple(found), wait.begin_ns if rest is None else rest


def _is_cold(span: Span, peers: Iterable[Span]) -> bool:
    """Return whether a span began before the first one of its kind in its process was through."""
    instance, _, begin, end, _ = span
    times = [(start, stop) for where, _, start, stop, _ in peers if where == instance]
    return begin <= min([(begin, end), *times])[1]
