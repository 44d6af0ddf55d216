# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what awaited trajectories did, and which others were slow for the same reason; `judge` decides."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from verl_otel.analysis.model import Segment, Trajectory
from verl_otel.analysis.traces.timeline import NOT_KEPT
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.baselines import FEW_PEERS, SAMPLE, Baseline, Baselines, Key, measure
from verl_otel.analysis.verdicts.what_if import Wait, find_waits

# -- What each span adds to the critical path of its trajectory, by what it is: what trajectories are compared by --


class Span(NamedTuple):
    """The contribution of one span, or the sum of several, to the critical path of its trajectory."""

    instance: str
    turn: int | None
    start_ns: int
    end_ns: int
    length_ns: int
    """Less than from start to end where the span waited for a child."""

    def cut(self, begin: int) -> int:
        """Return the maximum part of its length that lies after a time."""
        return max(0, min(self.length_ns, self.end_ns - begin))


_new: Final = tuple.__new__
Spans = Mapping[tuple[str, str], Sequence[Span]]
"""Spans by kind and name."""


def find_spans(trajectory: Trajectory, kinds: Container[str] | None = None) -> Spans:
    """Return the contributions of the spans of a trajectory to its path.

    Args:
        trajectory: With its path.
        kinds: Kinds to return; None: all.
    """
    spans: dict[tuple[str, str], list[Span]] = {}
    places: dict[tuple[tuple[str, str], int], int] = {}
    for start, end, kind, name, _, instance, _, turn, span_id in trajectory.path:
        if kinds is not None and kind not in kinds:
            continue
        what = kind, name
        key = what, span_id
        if key not in places:
            alike = spans.setdefault(what, [])
            places[key] = len(alike)
            alike.append(_new(Span, (instance, turn, start, end, end - start)))
        else:
            alike, place = spans[what], places[key]
            _, _, begin, _, length = alike[place]
            alike[place] = _new(Span, (instance, turn, begin, end, length + end - start))
    return spans


# -- What awaited trajectories spent their time on, and which other trajectories were slow for the same reason --

SERVED: Final = frozenset(("server", "queue", "prefill", "decode"))
"""Kinds of work of a replica."""
_length: Final = attrgetter("length_ns")
_UNKNOWN: Final = ("unknown", NOT_KEPT)
"""Kind and name for trajectories of which only the root was kept."""


class SlowTrajectory(NamedTuple):
    """Another trajectory that spent long on the same kind of work."""

    end_ns: int
    instance: str
    lengths: tuple[float, ...]
    """Seconds of each occurrence."""


class AwaitedWork(NamedTuple):
    """A kind of work on which an awaited trajectory spent noticeable time."""

    wait: Wait
    label: str
    kind: str
    name: str
    instance: str
    turn: int | None
    key: Key
    seconds: float
    inside: float
    """Seconds of it since the wait started."""
    summed: bool
    """True: the sum of several spans."""
    cold: bool
    """True: it started before the first work of its kind in its process had finished."""
    here: Baseline | None
    """The same kind of work elsewhere in this step."""
    elsewhere: Baseline | None
    """The same on other replicas."""
    again: tuple[float, ...]
    """Seconds of other occurrences in this trajectory."""
    late: tuple[SlowTrajectory, ...] = ()
    """The other trajectories that took at least the floor."""
    rest_ns: int = 0
    """End of the last of the remaining trajectories."""
    failed: bool = False
    """Whether the awaited trajectory failed or was cancelled."""
    lost: tuple[float, ...] = ()
    """Seconds of each of its calls of this kind that failed meanwhile."""
    cancelled: bool = False
    """Whether it was cancelled."""


def measure_spans(members: Sequence[Trajectory]) -> dict[Key, list[float]]:
    """Return the durations in seconds of the work of trajectories, by kind: each span, and the sum per trajectory.

    Of many trajectories a random sample is measured: that is enough for a median.
    """
    if len(members) > SAMPLE:
        members = random.Random(members[0].trace_id).sample(members, SAMPLE)  # noqa: S311 - no secret
    lengths: dict[Key, list[float]] = defaultdict(list)
    for member in members:
        lengths[_key(*_UNKNOWN, summed=False)].append(member.seconds)
        spans = find_spans(member) if member.whole else {}
        for (kind, name), same in spans.items():
            lengths[_key(kind, name, summed=False)] += [span.length_ns / 1e9 for span in same]
        for (kind, name), same in spans.items():
            lengths[_key(kind, name, summed=True)].append(sum([span.length_ns for span in same]) / 1e9)
    return lengths


def _key(kind: str, name: str, *, summed: bool) -> Key:
    return "sum" if summed else "span", kind, name


def find_awaited_work(
    path: Iterable[Segment], root: Node, members: Sequence[Trajectory], floor: float
) -> tuple[AwaitedWork, ...]:
    """Return the work of the trajectories that a step waited for.

    Args:
        path: Critical path of the step.
        root: Its tree.
        members: The trajectories that it waited for.
        floor: Minimum seconds of work to be returned.
    """
    members_by_id = {member.trace_id: member for member in members}
    slow: list[AwaitedWork] = []
    for wait in find_waits(path, root):
        awaited = members_by_id.get(wait.trace_id)
        if awaited is not None and wait.end_ns - wait.begin_ns >= floor * 1e9:
            others = [member for member in members if member.end_ns <= wait.end_ns and member is not awaited]
            slow += _find_awaited_work(wait, awaited, others, floor)
    return tuple(slow)


def _find_awaited_work(
    wait: Wait, awaited: Trajectory, others: Sequence[Trajectory], floor: float
) -> Iterator[AwaitedWork]:
    long = _find_long(wait, awaited, floor)
    kinds = {kind for kind, _ in long}
    own, spans_of_others = find_spans(awaited, kinds), [(other, find_spans(other, kinds)) for other in others]
    for what in long:
        own_spans = _choose(awaited, own, what)
        chosen = [(other.end_ns, _choose(other, spans, what)) for other, spans in spans_of_others]
        peers = _measure_peers(wait, chosen, floor)
        for span in own_spans:
            if span.cut(wait.begin_ns) / 1e9 >= floor:
                again = [other for other in own_spans if other is not span]
                yield _make_awaited_work(wait, awaited, what, span, again, peers, summed=False)
        if len(own_spans) > 1:
            together = _measure_peers(wait, [(end, [_sum_up(spans)] if spans else []) for end, spans in chosen], floor)
            yield _make_awaited_work(wait, awaited, what, _sum_up(own_spans), [], together, summed=True)


class _Peers(NamedTuple):
    """The same kind of work in the other trajectories."""

    spans: list[Span]
    late: tuple[SlowTrajectory, ...]
    rest_ns: int


def _measure_peers(wait: Wait, chosen: Iterable[tuple[int, Sequence[Span]]], floor: float) -> _Peers:
    """Return the work of other trajectories, each given with its end, and which of them took at least the floor."""
    floor_ns = floor * 1e9
    every: list[Span] = []
    late: list[SlowTrajectory] = []
    rest_ns = None
    for end, spans in chosen:
        every += spans
        long = [span for span in spans if span.length_ns >= floor_ns]
        if long:
            longest = long[0] if len(long) == 1 else max(long, key=_length)
            lengths = tuple([span.length_ns / 1e9 for span in long])
            late.append(_new(SlowTrajectory, (end, longest.instance, lengths)))
        elif rest_ns is None or end > rest_ns:
            rest_ns = end
    return _Peers(every, tuple(late), wait.begin_ns if rest_ns is None else rest_ns)


def _find_long(wait: Wait, awaited: Trajectory, floor: float) -> list[tuple[str, str]]:
    """Return kinds and names of the work that took noticeable time since the wait for the trajectory started."""
    if not awaited.whole:
        return [_UNKNOWN]
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for segment in awaited.path:
        sums[segment.kind, segment.name] += max(0, segment.end_ns - max(segment.start_ns, wait.begin_ns))
    return [what for what, length in sums.items() if length >= floor * 1e9]


def may_be_long(work: AwaitedWork, baselines: Baselines, floor: float) -> bool:
    """Return whether awaited work has to be kept: not where many steps are known and all peers took as long."""
    run = baselines.of_others(work.key, 0)
    peers = [baseline for baseline in (work.here, work.elsewhere, run) if baseline is not None]
    return run is None or run.peers < FEW_PEERS or not all(baseline.allows(work.seconds, floor) for baseline in peers)


def _choose(trajectory: Trajectory, spans: Spans, what: tuple[str, str]) -> Sequence[Span]:
    """Return the spans of a trajectory with one kind and name."""
    if what[0] == _UNKNOWN[0]:
        begin, end = trajectory.start_ns, trajectory.end_ns
        return [Span(trajectory.instance, None, begin, end, end - begin)]
    return spans.get(what, ()) if trajectory.whole else ()


def _sum_up(spans: Sequence[Span]) -> Span:
    if len(spans) == 1:
        return spans[0]
    instance, turn, *_ = max(spans, key=_length)
    _, _, starts, ends, lengths = zip(*spans, strict=True)
    return Span(instance, turn, min(starts), max(ends), sum(lengths))


def _make_awaited_work(
    wait: Wait,
    awaited: Trajectory,
    what: tuple[str, str],
    span: Span,
    again: Sequence[Span],
    others: _Peers,
    *,
    summed: bool,
) -> AwaitedWork:
    peers = [*again, *others.spans]
    elsewhere = [other for other in peers if other.instance != span.instance] if what[0] in SERVED else []
    return AwaitedWork(
        wait,
        awaited.label,
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
        others.late,
        others.rest_ns,
        awaited.stopped,
        tuple(
            (one.end_ns - one.start_ns) / 1e9
            for one in awaited.activities
            if one.failed
            and one.kind == what[0]
            and any(own.start_ns <= one.start_ns < own.end_ns for own in (span, *again))
        ),
        awaited.cancelled,
    )


def _is_cold(span: Span, peers: Iterable[Span]) -> bool:
    """Return whether a span started before the first one of its kind in its process had finished."""
    instance, _, begin, end, _ = span
    times = [(start, stop) for where, _, start, stop, _ in peers if where == instance]
    return begin <= min([(begin, end), *times])[1]
