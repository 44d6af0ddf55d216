# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the schedule of recorded steps: the work of the trainer, its waits, and the trajectories with the limits that they share."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Final, NamedTuple

from verl_otel.analysis.bounded_steps import RecentStep
from verl_otel.analysis.levers.replay import (
    GIVE_UP,
    NO_POOL,
    OTHER,
    UNANCHORED,
    Item,
    Part,
    Pool,
    Rollout,
    Rollouts,
    Schedule,
)
from verl_otel.analysis.model import Segment, Trajectory

# -- Finds the limits that trajectories shared: event loops that tools block, slots of LLM servers, threads of reward workers --
#
# Spans do not name them. A tool blocks its event loop if no other trajectory of the process ever got any further while
# it was called. Slots are the largest number of requests that an engine that reports its queue worked on at once; for
# others, the number that explains most of the differences between the lengths of their calls.

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


# -- Takes the waiting for slots out of recorded trajectories, such that a replay with the same limits puts exactly the same waiting back --
# A recorded piece of work contains its waiting for a slot. The limits are replayed with the recorded ends; what remains of a piece after
# its slot was granted is its own time. A piece that ended before it could have had a slot did not need one: it is exempt from the limit.


class Demand(NamedTuple):
    """A recorded piece of a trajectory, waiting included."""

    kind: str
    name: str
    instance: str
    length_ns: int
    pool: int = NO_POOL
    lead_ns: int = 0
    """Time at its start in which it needs no slot."""
    holds: bool = False
    """Whether it keeps the slot to its end; otherwise it only has to get one, as code that an event loop resumes."""


class _Calibration(Rollouts):
    """A replay in which each item ends when it was recorded to end."""

    def __init__(self, demands: Sequence[Sequence[Demand]], starts_ns: Sequence[int], pools: tuple[Pool, ...]) -> None:
        super().__init__([tuple(_ask(demand) for demand in row) for row in demands], pools)
        self.measured = [
            [Item(demand.kind, demand.name, demand.instance, demand.length_ns) for demand in row] for row in demands
        ]
        self._holds = [[demand.holds for demand in row] for row in demands]
        self._recorded = [[demand.length_ns for demand in row] for row in demands]
        self._begun = [0] * len(demands)
        self._waiting: set[tuple[int, int]] = set()
        for rollout, start in enumerate(starts_ns):
            self.begin(rollout, start)

    def _advance(self, time_ns: int, rollout: int, index: int) -> None:
        self._begun[rollout] = time_ns
        super()._advance(time_ns, rollout, index)

    def _handle(self, time_ns: int, rollout: int, index: int, what: int) -> None:
        if what == GIVE_UP:
            self._give_up(time_ns, rollout, index)
        else:
            super()._handle(time_ns, rollout, index, what)

    def _request(self, time_ns: int, rollout: int, index: int) -> None:
        self._waiting.add((rollout, index))
        super()._request(time_ns, rollout, index)
        if (rollout, index) in self._waiting:
            end = self._begun[rollout] + self._recorded[rollout][index]
            self._push(end, OTHER, rollout, index, GIVE_UP)

    def _grant(self, time_ns: int, rollout: int, index: int) -> None:
        self._waiting.discard((rollout, index))
        left = self._begun[rollout] + self._recorded[rollout][index] - time_ns
        held = left if self._holds[rollout][index] else 0
        item = self._items[rollout][index]._replace(hold_ns=held, rest_ns=left - held)
        self.measured[rollout][index] = item
        self._items[rollout] = (*self._items[rollout][:index], item, *self._items[rollout][index + 1 :])
        super()._grant(time_ns, rollout, index)

    def _give_up(self, time_ns: int, rollout: int, index: int) -> None:
        if (rollout, index) not in self._waiting:
            return
        self._waiting.discard((rollout, index))
        self._slots[self._items[rollout][index].pool].queue.remove((rollout, index))
        self._advance(time_ns, rollout, index + 1)


def _ask(demand: Demand) -> Item:
    lead = demand.length_ns if demand.pool == NO_POOL else min(demand.lead_ns, demand.length_ns)
    return Item(demand.kind, demand.name, demand.instance, lead, demand.pool)


def calibrate(
    demands: Sequence[Sequence[Demand]], starts_ns: Sequence[int], pools: tuple[Pool, ...]
) -> tuple[tuple[Item, ...], ...]:
    """Return the items of trajectories that replay to their recorded ends.

    Args:
        demands: The recorded pieces of each trajectory, one after the other.
        starts_ns: When each of them began.
        pools: The limits that they share.
    """
    run = _Calibration(demands, starts_ns, pools)
    run.run()
    return tuple(map(tuple, run.measured))


# -- the schedule --

BETWEEN: Final = "between"
"""Phase of what follows a step."""
SUBMIT: Final = "submit"
"""Phase in which verl's trainers submit trajectories."""
_ON_SERVER: Final = frozenset(("server", "queue", "prefill", "decode"))


def build(steps: Sequence[RecentStep]) -> Schedule:
    """Return the schedule of consecutive steps.

    Args:
        steps: In the order of time, at least one.
    """
    parts, starts_ns = _build_parts(steps)
    members = _order_members(steps)
    recorded = [Recorded(member.instance, _read_pieces(member)) for _, member in members]
    pools, demands = _find_demands(recorded)
    items = calibrate(demands, [member.start_ns for _, member in members], pools)
    index_by_trace = {step.trace_id: index for index, step in enumerate(steps)}
    rollouts = []
    for (step, member), row in zip(members, items, strict=True):
        anchor = _find_anchor(member, index_by_trace.get(member.submitter), parts, starts_ns)
        offset = member.start_ns - (starts_ns[anchor] if anchor != UNANCHORED else 0)
        rollouts.append(Rollout(member.trace_id, step, anchor, offset, row, member.instance))
    final = _await_members(parts, starts_ns, members, [rollout.anchor for rollout in rollouts])
    numbers = tuple(step.number for step in steps)
    return Schedule(steps[0].start_ns, numbers, final, tuple(rollouts), pools)


# -- the trainer --


def _build_parts(steps: Sequence[RecentStep]) -> tuple[list[Part], list[int]]:
    """Return the parts of the trainer, waits as parts of kind ``wait``, and when each of them was recorded to start."""
    parts, starts = list[Part](), list[int]()
    for index, step in enumerate(steps):
        end_ns = step.end_ns if step.is_last else max(step.start_ns, step.next_ns)
        for start, end, kind, name, phase in _cut(step, end_ns):
            parts.append(Part(kind, name, phase, end - start, index))
            starts.append(start)
    return parts, starts


def _cut(step: RecentStep, end_ns: int) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield start, end, kind, name and phase of the parts of one step without a gap, up to a time."""
    reached = step.start_ns
    waits = list(step.waits)
    for start, end, kind, name, phase in _list_segments(step):
        begin = max(start, reached)
        stop = min(end, end_ns)
        while waits and waits[0].begin_ns < stop:
            wait = waits.pop(0)
            if wait.begin_ns > begin:
                yield begin, wait.begin_ns, kind, name, phase
            begin = max(begin, wait.begin_ns)
            until = max(begin, min(wait.end_ns, end_ns))
            yield begin, until, "wait", str(wait.trace_id), wait.phase
            begin = until
        if stop > begin:
            yield begin, stop, kind, name, phase
        reached = max(reached, begin, stop)
    if reached < end_ns:
        yield reached, end_ns, BETWEEN, "", BETWEEN


def _list_segments(step: RecentStep) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield the segments of a step and of the time after it; neighbours that are alike as one."""
    last: tuple[int, int, str, str, str] | None = None
    after = [(segment, BETWEEN) for segment in step.between_path]
    for segment, phase in [*((segment, segment.phase) for segment in step.path), *after]:
        what = (segment.kind, _name(segment), phase)
        if last is not None and last[2:] == what and last[1] == segment.start_ns:
            last = (last[0], segment.end_ns, *what)
            continue
        if last is not None:
            yield last
        last = (segment.start_ns, segment.end_ns, *what)
    if last is not None:
        yield last


def _name(segment: Segment) -> str:
    return segment.name if segment.kind != "llm" else ""


def _await_members(
    parts: Sequence[Part],
    starts_ns: Sequence[int],
    members: Sequence[tuple[int, Trajectory]],
    anchors: Sequence[int],
) -> tuple[Part, ...]:
    """Return the parts with their waits: each for the members of its step that had ended by its end, and the time until it was noticed.

    A member that is tied to a later part, because it began and ended at the end of the wait, is not waited for.
    """
    by_step: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, (step, member) in enumerate(members):
        by_step[step].append((member.end_ns, index))
    final: list[Part] = []
    for place, (part, start) in enumerate(zip(parts, starts_ns, strict=True)):
        if part.kind != "wait":
            final.append(part)
            continue
        end = start + part.length_ns
        ended = [(time, index) for time, index in by_step[part.step] if time <= end and anchors[index] <= place]
        latest = max((time for time, _ in ended), default=start)
        if latest <= start:
            ended = []
        awaited = tuple(sorted(index for _, index in ended))
        noticed = end - max(start, latest)
        final.append(part._replace(length_ns=noticed, awaited=awaited or None))
    return tuple(final)


# -- trajectories --


def _order_members(steps: Sequence[RecentStep]) -> list[tuple[int, Trajectory]]:
    """Return each trajectory once with the index of the step that trained on it, in an order that does not depend on that of the input."""
    found: dict[int, tuple[int, Trajectory]] = {}
    for index, step in enumerate(steps):
        for member in step.members:
            found.setdefault(member.trace_id, (index, member))
    return sorted(found.values(), key=lambda pair: (pair[1].start_ns, pair[1].trace_id))


def _find_anchor(member: Trajectory, submitter: int | None, parts: Sequence[Part], starts_ns: Sequence[int]) -> int:
    """Return the index of the part of the trainer that a trajectory is tied to.

    It is the end of the phase in which its step submits, where there is one before it, else what the trainer did when it began.
    """
    if submitter is None or not starts_ns or member.start_ns < starts_ns[0]:
        return UNANCHORED
    here = bisect_right(starts_ns, member.start_ns) - 1
    while here > 0 and not parts[here].length_ns and starts_ns[here - 1] == starts_ns[here]:
        here -= 1
    latest = here
    while latest > 0 and parts[latest].step >= submitter:
        if parts[latest].step == submitter and parts[latest].phase == SUBMIT:
            return min(latest + 1, here)
        latest -= 1
    return here


def _read_pieces(member: Trajectory) -> tuple[Piece, ...]:
    """Return the pieces of a trajectory; neighbours that are alike, and all states of one request in an engine, as one."""
    pieces: list[Piece] = []
    for start, end, kind, name, _, instance, *_ in member.path:
        is_server = kind in _ON_SERVER
        label = "" if is_server or kind in ("llm", "trajectory") else name
        what = "server" if is_server else kind
        queued = end - start if kind == "queue" else 0
        last = pieces[-1] if pieces else None
        if last is not None and (last.kind, last.name, last.instance) == (what, label, instance) and what != "tool":
            lead = start - last.start_ns if queued and not last.queued_ns else last.lead_ns
            pieces[-1] = last._replace(end_ns=end, lead_ns=lead, queued_ns=last.queued_ns + queued)
        else:
            pieces.append(Piece(start, end, what, label, instance, 0, queued))
    return tuple(pieces)


def _find_demands(recorded: Sequence[Recorded]) -> tuple[tuple[Pool, ...], list[list[Demand]]]:
    """Return the limits of trajectories, and what they asked of these."""
    blocking = find_blocking_tools(recorded)
    calls: dict[str, defaultdict[str, list[Piece]]] = {"server": defaultdict(list), "reward": defaultdict(list)}
    for trajectory in recorded:
        for piece in trajectory.pieces:
            if piece.kind in calls:
                calls[piece.kind][piece.instance].append(piece)
    pools = [Pool("loop", instance, 1) for instance in sorted(blocking)]
    for kind, by_instance in calls.items():
        pools += [Pool(kind, instance, slots) for instance, slots in sorted(find_slots(by_instance).items())]
    numbers = {(pool.kind, pool.instance): number for number, pool in enumerate(pools)}
    taken = {
        instance: sorted(call for calls in tools.values() for call in calls) for instance, tools in blocking.items()
    }
    demands = [
        [
            _demand(piece, trajectory.instance, numbers, blocking.get(trajectory.instance, {}), taken)
            for piece in trajectory.pieces
        ]
        for trajectory in recorded
    ]
    return tuple(pools), demands


def _demand(
    piece: Piece,
    loop: str,
    numbers: Mapping[tuple[str, str], int],
    blocking: Mapping[str, Sequence[Interval]],
    taken: Mapping[str, Sequence[Interval]],
) -> Demand:
    """Return what a piece of a trajectory asked of the limits."""
    start, end, kind, name, instance, lead, _ = piece
    own = Demand(kind, name, instance, end - start)
    if kind in ("server", "reward"):
        pool = numbers.get((kind, instance), NO_POOL)
        return own._replace(pool=pool, lead_ns=lead, holds=True) if pool != NO_POOL else own
    if instance != loop or not blocking:
        return own
    pool = numbers["loop", loop]
    if kind == "tool" and name in blocking:
        return own._replace(pool=pool, holds=True)
    return own._replace(pool=pool, lead_ns=end - start - _measure_covered(taken[loop], start, end))


def _measure_covered(taken: Sequence[Interval], start: int, end: int) -> int:
    """Return how much of an interval is covered by others, which are sorted and hardly overlap."""
    covered, reached = 0, start
    for begin, stop in taken[max(0, bisect_left(taken, (start, start)) - 1) :]:
        if begin >= end:
            break
        covered += max(0, min(stop, end) - max(begin, reached))
        reached = max(reached, min(stop, end))
    return covered


def count_unlinked(steps: Iterable[RecentStep]) -> tuple[int, int]:
    """Return how many trajectories of some steps are missing or have no known submitter, and how many there are."""
    missing = total = 0
    for step in steps:
        total += max(step.consumed, len(step.members))
        missing += max(0, step.consumed - len(step.members))
        missing += sum(1 for member in step.members if not member.submitter)
    return missing, total
