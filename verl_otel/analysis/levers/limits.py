# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the limits that trajectories shared: event loops that tools block, slots of LLM servers, threads of reward workers.

Spans do not name them. A tool blocks its event loop if no other trajectory of the process ever got any further while it was called. Slots
are the largest number of requests that an engine that reports its queue worked on at once; for others, the number that explains most of
the differences between the lengths of their calls.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Final, NamedTuple

SHORTEST_CALL_NS: Final = 20_000_000
"""Shorter tool calls do not tell whether they block."""
MARGIN_NS: Final = 2_000_000
"""What happens this close to the edges of a call may be a part of its beginning or end."""
FEWEST_CALLS: Final = 3
EXPECTED: Final = 10.0
"""Steps that other trajectories should have taken during the calls of a tool, at their usual rate, before their absence means anything."""
TOLERATED: Final = 0.05
"""Share of these steps, and of the time of the calls that overlap, that a blocking tool may have: code before its blocking part."""
MOST_SLOTS: Final = 64
"""Larger numbers of slots are not looked for in the lengths of calls."""
MOST_CALLS: Final = 1_000
"""Calls that are looked at, the newest; of a tool, as many evenly spread ones."""
EXPLAINED: Final = 0.5
"""Slots are found where they halve the relative spread of the lengths of calls."""
LEAST_WAIT: Final = 0.1
"""Share of the time of the calls that is waiting for a slot."""
CONTRADICTED: Final = 0.02
"""Share of calls that may end before they could have had a slot."""


class Piece(NamedTuple):
    """A recorded piece of a trajectory."""

    start_ns: int
    end_ns: int
    kind: str
    name: str
    instance: str
    lead_ns: int = 0
    """Time at its start in which it was in no queue yet, of a request to an engine that reports its queue."""
    queued_ns: int = 0
    """Time in the queue of such an engine."""


Interval = tuple[int, int]


class Recorded(NamedTuple):
    """A recorded trajectory."""

    trace_id: int
    instance: str
    pieces: tuple[Piece, ...]


def find_blocking_tools(trajectories: Sequence[Recorded]) -> dict[str, dict[str, list[Interval]]]:
    """Return the calls of tools that block the event loop of their process: process, tool, start and end of each call."""
    by_loop: defaultdict[str, list[Recorded]] = defaultdict(list)
    for trajectory in trajectories:
        by_loop[trajectory.instance].append(trajectory)
    found = {}
    for instance, members in by_loop.items():
        tools = _find_blocking(instance, members)
        if tools:
            found[instance] = tools
    return found


def _find_blocking(instance: str, members: Sequence[Recorded]) -> dict[str, list[Interval]]:
    calls: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    progress: list[tuple[int, int]] = []
    alive: list[tuple[int, int]] = []
    for number, member in enumerate(members):
        progress += [(time, number) for time in _find_progress(member, instance)]
        if member.pieces:
            alive.append((member.pieces[0].start_ns, member.pieces[-1].end_ns))
        for piece in member.pieces:
            if piece.kind == "tool" and piece.instance == instance:
                calls[piece.name].append((piece.start_ns, piece.end_ns, number))
    progress.sort()
    lived = sum(end - start for start, end in alive)
    rate = len(progress) / lived if lived else 0.0
    return {
        name: [(start, end) for start, end, _ in every]
        for name, every in calls.items()
        if _blocks([call for call in every if call[1] - call[0] >= SHORTEST_CALL_NS], progress, alive, rate)
    }


def _find_progress(member: Recorded, instance: str) -> Iterable[int]:
    """Yield the times at which the event loop of a process took a trajectory further."""
    before: Piece | None = None
    for piece in member.pieces:
        if piece.instance == instance and (before is None or before.instance == instance):
            yield piece.start_ns
        before = piece
    if before is not None and before.instance == instance:
        yield before.end_ns


def _blocks(
    calls: Sequence[tuple[int, int, int]],
    progress: Sequence[tuple[int, int]],
    alive: Sequence[Interval],
    rate: float,
) -> bool:
    """Return whether no other trajectory got any further during calls of a tool.

    Args:
        calls: Start, end and number of the trajectory of each call.
        progress: When each trajectory got further, with its number; sorted.
        alive: Start and end of all trajectories.
        rate: How often a trajectory gets further in a nanosecond, on average.
    """
    if len(calls) < FEWEST_CALLS:
        return False
    looked_at = calls[:: -(-len(calls) // MOST_CALLS)]
    starts, ends = sorted(start for start, _ in alive), sorted(end for _, end in alive)
    expected = 0.0
    for start, end, _ in looked_at:
        others = bisect_left(starts, end) - bisect_right(ends, start) - 1
        expected += max(0, others) * (end - start) * rate
    if expected < EXPECTED or _measure_overlap(calls) > TOLERATED:
        return False
    seen = 0
    for start, end, number in looked_at:
        first, last = (bisect_left(progress, (time, -1)) for time in (start + MARGIN_NS, end - MARGIN_NS))
        seen += sum(1 for _, other in progress[first:last] if other != number)
        if seen > TOLERATED * expected:
            return False
    return True


def _measure_overlap(calls: Iterable[tuple[int, int, int]]) -> float:
    """Return the share of the time of calls in which another one had begun and not ended."""
    total = overlap = reached = 0
    for start, end, _ in sorted(calls):
        total += end - start
        overlap += max(0, min(end, reached) - start)
        reached = max(reached, end)
    return overlap / total if total else 0.0


def find_slots(calls: Mapping[str, Sequence[Piece]]) -> dict[str, int]:
    """Return the number of slots of processes that answer calls, without those that have no limit or whose limit cannot be found.

    Args:
        calls: By process, the calls that it answered.
    """
    found = {}
    for instance, pieces in calls.items():
        total = sum(piece.end_ns - piece.start_ns for piece in pieces)
        queued = sum(piece.queued_ns for piece in pieces)
        if queued:
            worked = [(piece.start_ns + piece.lead_ns + piece.queued_ns, piece.end_ns) for piece in pieces]
            slots = _count_most(worked) if queued >= LEAST_WAIT * total else None
        else:
            slots = infer_slots([(piece.start_ns, piece.end_ns) for piece in pieces])
        if slots:
            found[instance] = slots
    return found


def _count_most(intervals: Iterable[Interval]) -> int:
    """Return the largest number of intervals that overlap at one time."""
    edges = sorted(edge for start, end in intervals if end > start for edge in ((start, 1), (end, -1)))
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def infer_slots(calls: Sequence[Interval]) -> int | None:
    """Return the number of slots that explains the lengths of calls; None if none does.

    With a limit of ``n`` slots a call begins to be worked on when it arrives or when the n-th one before it has ended. If that is what made
    the lengths differ, the remaining lengths are much more alike.
    """
    chosen = sorted(calls)[-MOST_CALLS:]
    most = _count_most(chosen)
    lengths = [end - start for start, end in chosen]
    spread = _measure_spread(lengths)
    best: tuple[float, int] | None = None
    for slots in range(min(most - 1, MOST_SLOTS), 0, -1):
        own = _serve(chosen, slots)
        if sum(1 for length in own if length < 0) > CONTRADICTED * len(own):
            break  # fewer slots contradict more calls
        waited = 1 - sum(max(0, length) for length in own) / max(1, sum(lengths))
        remaining = _measure_spread([length for length in own if length >= 0])
        if waited >= LEAST_WAIT and remaining <= EXPLAINED * spread and (best is None or remaining < best[0]):
            best = remaining, slots
    return best[1] if best else None


def _serve(calls: Iterable[Interval], slots: int) -> list[int]:
    """Return the lengths of calls from the time when they had one of some slots; negative: they ended before."""
    busy: list[int] = []
    own = []
    for start, end in calls:
        granted = start
        if len(busy) == slots:
            granted = max(start, heapq.heappop(busy))
        own.append(end - granted)
        heapq.heappush(busy, max(granted, end))
    return own


def _measure_spread(lengths: Sequence[int]) -> float:
    """Return the standard deviation of lengths relative to their mean; infinite without two of them."""
    mean = fmean(lengths) if len(lengths) > 1 else 0.0
    return pstdev(lengths) / mean if mean else float("inf")
