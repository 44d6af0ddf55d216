# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Estimates the clock offset of each host relative to the trainer's from causal relations between spans.

A cause on one host comes before its effect on another: a call begins before the method that it calls, and ends after it
when it waits for it. Each such pair bounds the offset of the two clocks from one side; many pairs make an interval.
That is Cristian's algorithm (1989), also used by NTP with its four timestamps (RFC 5905), applied to existing spans as
in Google's Dapper (2010, section 2.1). Over several hosts the bounds are a system of difference constraints, solved as
shortest paths (Bellman and Ford; Cormen et al., section 22.4).

An offset of zero is kept where the bounds allow it, else the smallest one that they allow. Drifting clocks are followed
in windows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from verl_otel._internal.printable import counted
from verl_otel.analysis.model import Segment
from verl_otel.analysis.traces.span_names import STEP, TRAJECTORY
from verl_otel.analysis.traces.tree import LATE_NS, Ahead, Written
from verl_otel.analysis.typed import Keyed, Unbounded
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import CLIENT, SERVER, STATUS_ERROR

WINDOW_NS: Final = 300_000_000_000
"""Bounds of five minutes and of the neighbouring windows are combined: clocks that drift by 10 ppm diverge by 9 ms in
that time."""

_FINE_NS: Final = 10_000_000_000
"""Of all bounds of two hosts in ten seconds only the tightest is kept."""
MAX_KEPT: Final = 20_000
"""Bounds that are kept: the newest."""
SAMPLED: Final = 8
"""Each one of so many trajectories is searched for bounds, and each step."""
NEW_SHARE: Final = 0.125
"""Share of the bounds that has to be new for another estimate, which takes as long as there are bounds."""
MAX_ROOTS: Final = 32
"""Sampled trajectories that are kept of each host, for the steps that train on them."""


class Bound(NamedTuple):
    """At a time the clock of ``other`` is at most ``most_ns`` ahead of that of ``host``."""

    time_ns: int
    """On the clock of ``host``."""
    host: str
    other: str
    most_ns: int


class Clock(NamedTuple):
    """The offset of one host's clock from the trainer's at some times."""

    times_ns: tuple[int, ...]
    ahead_ns: tuple[int, ...]
    uncertain_ns: tuple[Unbounded, ...]
    """Uncertainty of each offset; infinite where it has no bound."""

    def ahead(self, time_ns: int) -> int:
        """Return the offset at a time, interpolated linearly between two known times."""
        times, values = self.times_ns, self.ahead_ns
        if not any(values):
            return 0
        right = bisect_left(times, time_ns)
        if right in (0, len(times)):
            return values[min(right, len(times) - 1)]
        begin, end = times[right - 1], times[right]
        rise = values[right] - values[right - 1]
        return values[right - 1] + round(rise * ((time_ns - begin) / (end - begin)))

    @property
    def largest(self) -> float:
        """The offset with the largest magnitude, in seconds; negative: the clock was behind."""
        return max(self.ahead_ns, key=abs) / 1e9

    @property
    def uncertainty(self) -> float:
        """The largest uncertainty, in seconds."""
        return max(self.uncertain_ns) / 1e9


def find_bounds(spans: Iterable[tuple[SpanRecord, str]]) -> Iterator[Bound]:
    """Return the bounds on clock offsets that follow from pairs of related spans on different hosts.

    Args:
        spans: Spans with their hosts, with unshifted times. Pairs of which one span is missing give no bound.
    """
    spans_by_id = {(span.trace_id, span.span_id): (span, host) for span, host in spans}
    for span, host in spans_by_id.values():
        cause = spans_by_id.get((span.trace_id, span.parent_id))
        if cause is not None and cause[1] != host:
            yield from _of_call(*cause, span, host)
        for link in span.links:
            other = spans_by_id.get((link.trace_id, link.span_id))
            if other is not None and other[1] != host:
                yield from _of_link(link.attributes.get(attr.LINK_TYPE), span, host, *other)


def _of_call(cause: SpanRecord, host: str, effect: SpanRecord, other: str) -> Iterator[Bound]:
    yield Bound(cause.start_ns, host, other, effect.start_ns - cause.start_ns)
    waits = cause.kind == CLIENT and effect.kind == SERVER and cause.attributes.get(attr.CALL_BLOCKING, True)
    if waits and cause.status != STATUS_ERROR:  # after a timeout the caller does not wait for the end
        yield Bound(effect.start_ns, other, host, cause.end_ns - effect.end_ns)


def _of_link(kind: object, span: SpanRecord, host: str, linked: SpanRecord, other: str) -> Iterator[Bound]:
    if kind == "submitted_by":
        yield Bound(linked.start_ns, other, host, span.start_ns - linked.start_ns)
    elif kind == "consumed":
        # verl consumes finished trajectories: in all its modes the end came first, by 4 ms or more.
        yield Bound(linked.end_ns, other, host, span.end_ns - linked.end_ns)


class Bounds(msgspec.Struct):
    """The bounds of a run that is read piece by piece."""

    _kept: Keyed[tuple[str, str, int], Bound] = msgspec.field(default_factory=Keyed)
    _roots: dict[str, list[SpanRecord]] = {}
    """The last sampled trajectories of each host."""
    _trajectories: int = 0
    _added: int = 0
    """Bounds that were added since the last estimate."""

    @property
    def are_new(self) -> bool:
        """Whether enough bounds were added since the last estimate for another one."""
        return self._added > NEW_SHARE * len(self._kept)

    def add(self, spans: Iterable[tuple[SpanRecord, str]]) -> None:
        """Add the bounds that follow from spans; as of `find_bounds`."""
        for bound in find_bounds(spans):
            key = bound.host, bound.other, bound.time_ns // _FINE_NS
            known = self._kept.get(key)
            if known is None or bound.most_ns < known.most_ns:
                self._kept[key] = bound
                self._added += 1
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def add_trace(self, written: Iterable[Written], hosts: Sequence[str]) -> None:
        """Add the bounds of a whole trace if it is of a step, or one of the trajectories that are sampled.

        Args:
            written: Its spans, with the times of their hosts.
            hosts: The host of each process.
        """
        root, process = next(((span, process) for span, process in written if not span.parent_id), (None, 0))
        if root is None:
            return
        if root.name == STEP:
            kept = ((span, host) for host, spans in self._roots.items() for span in spans)
            self.add([*((span, hosts[process]) for span, process in written), *kept])
        elif root.name == TRAJECTORY:
            self._trajectories += 1
            if self._trajectories % SAMPLED == 1:
                known = self._roots.setdefault(hosts[process], [])
                known.append(root)
                del known[:-MAX_ROOTS]
                self.add((span, hosts[process]) for span, process in written)

    def estimate(self, reference: str, hosts: Iterable[str]) -> dict[str, Clock]:
        """Return the clock of each host; as of the function of that name."""
        self._added = 0
        return estimate(self._kept.values(), reference, hosts)


def estimate(bounds: Iterable[Bound], reference: str, hosts: Iterable[str]) -> dict[str, Clock]:
    """Return the clock of each host.

    Args:
        bounds: Bounds in any order; of contradicting bounds the mean is taken.
        reference: The host whose clock all times are converted to.
        hosts: All hosts. One without any bound gets no offset and an infinite uncertainty.
    """
    fine: dict[tuple[str, str, int], int] = {}
    for bound in bounds:
        key = (bound.host, bound.other, bound.time_ns // _FINE_NS)
        fine[key] = min(bound.most_ns, fine.get(key, bound.most_ns))
    roughly = _solve(_tightest([{key[:2]: most} for key, most in fine.items()]), reference)
    windows: dict[int, dict[tuple[str, str], int]] = defaultdict(dict)
    # What happened at one time belongs together, whatever the clocks were.
    for (host, other, number), most in fine.items():
        window = windows[(number * _FINE_NS - roughly.get(host, (0, 0.0))[0]) // WINDOW_NS]
        window[host, other] = min(most, window.get((host, other), most))
    points_by_host: dict[str, list[tuple[int, int, float]]] = {host: [] for host in hosts}
    for number in sorted(windows):
        near = [windows[neighbour] for neighbour in (number - 1, number, number + 1) if neighbour in windows]
        for host, (ahead, uncertain) in _solve(_tightest(near), reference).items():
            points_by_host.setdefault(host, []).append((number * WINDOW_NS + WINDOW_NS // 2, ahead, uncertain))
    return {host: _clock(points, is_reference=host == reference) for host, points in points_by_host.items()}


def _clock(points: Sequence[tuple[int, int, float]], *, is_reference: bool) -> Clock:
    if is_reference or not points:
        return Clock((0,), (0,), (0.0 if is_reference else math.inf,))
    bounded = [point for point in points if math.isfinite(point[2])]
    times, ahead, uncertain = zip(*(bounded or points), strict=True)
    return Clock(times, ahead, uncertain)


def _tightest(windows: Iterable[Mapping[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    tightest: dict[tuple[str, str], int] = {}
    for window in windows:
        for pair, most in window.items():
            tightest[pair] = min(most, tightest.get(pair, most))
    return tightest


def _solve(most: Mapping[tuple[str, str], int], reference: str) -> dict[str, tuple[int, float]]:
    """Return the offset of each host from the reference, and its uncertainty."""
    above = _shortest(most, reference)
    below = _shortest({(other, host): value for (host, other), value in most.items()}, reference)
    hosts = (above.keys() | below.keys()) - {reference}
    return {host: _choose(-below.get(host, math.inf), above.get(host, math.inf)) for host in hosts}


def _shortest(weights: Mapping[tuple[str, str], int], begin: str) -> dict[str, float]:
    """Return the length of the shortest path to each host. A cycle of negative length, a contradiction, is cut."""
    length: dict[str, float] = {begin: 0}
    for _ in range(len({host for pair in weights for host in pair})):
        changed = False
        for (host, other), weight in weights.items():
            if host in length and other != begin and length[host] + weight < length.get(other, math.inf):
                length[other] = length[host] + weight
                changed = True
        if not changed:
            break
    return length


def _choose(least: float, most: float) -> tuple[int, float]:
    """Return the smallest offset between two bounds and its distance to the farther bound."""
    if least > most:
        return round((least + most) / 2), (least - most) / 2
    shift = least if least > 0 else min(most, 0)
    return round(shift), max(most - shift, shift - least)


MAX_NAMED: Final = 3
"""Hosts without a bound that are named."""


def describe_unknown(clocks: Mapping[str, Clock]) -> list[str]:
    """Return a message about the hosts whose clocks have no bound; none if all have one."""
    unknown = sorted(host for host, clock in clocks.items() if not math.isfinite(clock.uncertainty))
    if not unknown:
        return []
    names = ", ".join([*unknown[:MAX_NAMED], *(["..."] if len(unknown) > MAX_NAMED else [])])
    hosts = f"{counted(len(unknown), 'host')} ({names})"
    return [f"clocks: the offset of {hosts} from the trainer's is not known: a step that waited for one has no verdict"]


class Context(NamedTuple):
    """The clocks of a run, as far as they are known."""

    clocks: Mapping[str, Clock] = {}
    """By host; empty where there is only one."""
    hosts: Mapping[str, str] = {}
    """Host of each process, by its instance."""

    @property
    def slack_ns(self) -> int:
        """Nanoseconds between a trace and the edge of its piece from which on the piece has all its spans."""
        shifts = [shift for clock in self.clocks.values() for shift in clock.ahead_ns]
        return LATE_NS + max(shifts, default=0) - min(shifts, default=0)

    def find_uncertainty(self, path: Iterable[Segment]) -> float:
        """Return by how many seconds the clocks on a path may differ: infinite where one of them has no bound."""
        if not self.clocks:
            return 0.0
        passed = {self.hosts.get(segment.instance, "") for segment in path}
        return max((self.clocks[host].uncertainty for host in passed if host in self.clocks), default=0.0)


def ahead_of(resources: Iterable[Mapping[str, AttributeValue]], clocks: Mapping[str, Clock]) -> Ahead | None:
    """Return a function that gives the offset of a process's clock at a time; None where no clock has an offset."""
    if not any(any(clock.ahead_ns) for clock in clocks.values()):
        return None
    clock_of_process = [clocks.get(str(resource.get(attr.HOST_NAME))) for resource in resources]

    def ahead(process: int, time_ns: int) -> int:
        clock = clock_of_process[process]
        return 0 if clock is None else clock.ahead(time_ns)

    return ahead
