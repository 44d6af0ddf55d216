# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What-if analysis: how much shorter a step would have been without some of its trajectories. A wait ends with the last remaining one.

A step waits for all its trajectories at once. Without the slowest it would have waited for the second-slowest: only the time between
the two is saved, and nothing before the wait started. (The review of tinker-cookbook#822 shows the alternative: whole waits are
charged to stragglers, and the charges of two of them exceed the wait.)
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from verl_otel.analysis.model import Saving, Segment, Trajectory
from verl_otel.analysis.traces.span_names import CONSUME, PHASE_PREFIX
from verl_otel.analysis.traces.timeline import is_derived
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.baselines import MAX_GROUPS
from verl_otel.model import SpanRecord

# -- The trajectories that phases of a step waited for: of those that a phase consumed, the one that ended last in it --
#
# Only that one delays the phase. Its late start is not attributed to another trajectory that ended at that time:
# nothing proves a dependency (tinker-cookbook#822 charged whole waits to stragglers that way). The exception is an own
# loop that runs its trajectories one after the other in a process: there the phase waited for all of them.

TOLERANCE_NS: Final = 10_000_000
"""Tolerance for spans that seem to outlive what waited for them: clocks of two hosts are aligned to milliseconds, no better."""

_GENERATION: Final = f"{PHASE_PREFIX}gen"


class AwaitedTrajectory(NamedTuple):
    """The trajectory that a phase waited for."""

    trajectory: Trajectory
    end_ns: int
    taken_ns: int
    """When the trainer started to consume the samples; the end of the phase if that is unknown."""
    begin_ns: int = 0
    """From when on the phase waited for rollouts; 0: from its start."""


def clip(trajectory: Trajectory, begin: int, end: int, phase: str) -> Iterator[Segment]:
    """Yield a trajectory's path between two times without a gap; gaps are filled with the trajectory itself."""
    whole = Segment(begin, end, "trajectory", "", phase, trajectory.instance, trajectory.trace_id)
    reached = begin
    for segment in trajectory.path:
        start, stop = max(segment.start_ns, reached), min(segment.end_ns, end)
        if stop > start:
            if start > reached:
                yield whole._replace(start_ns=reached, end_ns=start)
            yield segment._replace(start_ns=start, end_ns=stop, phase=phase)
            reached = stop
    if end > reached:
        yield whole._replace(start_ns=reached)


def find_awaited_trajectories(
    root: Node, trajectories: Mapping[int, Trajectory], consumed: Sequence[int]
) -> dict[int, tuple[AwaitedTrajectory, ...]]:
    """Return the trajectories that each phase waited for, in the order of time, by the phase's span id."""
    left = {trace_id: trajectories[trace_id] for trace_id in consumed if trace_id in trajectories}
    awaited: dict[int, tuple[AwaitedTrajectory, ...]] = {}
    waiting: list[Node] = []
    for phase in (root, *find_phases(root)):
        derived = next(filter(is_derived, phase.children), None)
        if derived is not None:
            submitted = [left.pop(link.trace_id) for link in derived.span.links if link.trace_id in left]
            awaited[phase.span.span_id] = tuple(_follow_submitted(submitted))
            continue
        if phase is root:
            continue
        takers = [child.span for child in phase.children if child.span.name == CONSUME]
        taken = [left.pop(link.trace_id) for span in takers for link in span.links if link.trace_id in left]
        if taken:
            # Consumed trajectories had ended: an end that seems to lie after the phase is an offset of clocks.
            _add_awaited(awaited, phase, taken, takers, tolerance=max(trajectory.end_ns for trajectory in taken))
        elif phase.span.name == _GENERATION:
            waiting.append(phase)
    for phase in waiting:
        _add_awaited(awaited, phase, left.values(), [], tolerance=TOLERANCE_NS)
    return awaited


def find_phases(root: Node) -> Iterator[Node]:
    """Yield the phases of a step, at any depth below its trainer's spans."""
    nodes = list(root.children)
    while nodes:
        node = nodes.pop()
        if node.span.name.startswith(PHASE_PREFIX):
            yield node
        if node.process == root.process:
            nodes.extend(node.children)


def _follow_submitted(submitted: Sequence[Trajectory]) -> Iterator[AwaitedTrajectory]:
    """Yield the trajectories that a phase of an own loop waited for.

    That is the one that ended last and, if its process ran one trajectory at a time, those that this process ran before it.
    """
    if not submitted:
        return
    first = min(trajectory.start_ns for trajectory in submitted)
    last = max(submitted, key=lambda trajectory: (trajectory.end_ns, -trajectory.start_ns, trajectory.trace_id))
    chain = sorted(
        (trajectory for trajectory in submitted if trajectory.instance == last.instance),
        key=lambda trajectory: (trajectory.start_ns, trajectory.end_ns),
    )
    if any(following.start_ns < trajectory.end_ns for trajectory, following in itertools.pairwise(chain)):
        chain = [last]
    for trajectory in chain:
        begin = first if trajectory is chain[0] else trajectory.start_ns
        yield AwaitedTrajectory(trajectory, trajectory.end_ns, trajectory.end_ns, begin)


def _add_awaited(
    awaited: dict[int, tuple[AwaitedTrajectory, ...]],
    phase: Node,
    taken: Iterable[Trajectory],
    takers: Sequence[SpanRecord],
    *,
    tolerance: int,
) -> None:
    begin, end = phase.span.start_ns, phase.span.end_ns
    inside = [trajectory for trajectory in taken if begin < trajectory.end_ns <= end + tolerance]
    if inside:
        last = max(inside, key=lambda trajectory: (trajectory.end_ns, -trajectory.start_ns, trajectory.trace_id))
        seen = [span.start_ns for span in takers if span.start_ns >= last.end_ns]
        awaited[phase.span.span_id] = (AwaitedTrajectory(last, last.end_ns, min(seen, default=end)),)


GONE: Final = -(1 << 63)
"""The end of a trajectory that is removed."""
REPLICA: Final = "replica "
_SHARES: Final = (("1%", 1), ("5%", 5))


class Wait(NamedTuple):
    """A part of a step in which it waited for a trajectory."""

    begin_ns: int
    """Earliest end: before this the phase had not started, or something else was still running."""
    end_ns: int
    """The end of the trajectory."""
    trace_id: int
    phase: str


def find_savings(path: Sequence[Segment], members: Sequence[Trajectory], root: Node) -> tuple[Saving, ...]:
    """Return the savings of a step without its slowest trajectories, a replica, a tool or its rewards.

    Args:
        path: Its critical path.
        members: The trajectories that it waited for.
        root: Its tree: other work that a phase waited for is not charged to the trajectories.

    Returns:
        ``slowest``, ``1%`` and ``5%`` wherever the step waited for a trajectory, then groups that would save anything. "Slowest"
        is what ended last, because that is what a step waits for; of 1% and 5%, at least one. A replica is named if it saves more.
    """
    waits = find_waits(path, root)
    if not waits or not members:
        return ()
    awaited = [_find_awaited(wait, members) for wait in waits]
    lasts = [_find_lasts(wait, 1) for wait in awaited]
    best = max((_shorten(awaited, dict.fromkeys(last, GONE)) for last in lasts), default=0)
    savings = [Saving("slowest", 1, best / 1e9)]
    for what, share in _SHARES:
        gone = _find_slowest(awaited, math.ceil(len(members) * share / 100), root)
        savings.append(Saving(what, len(gone), _shorten(awaited, dict.fromkeys(gone, GONE)) / 1e9))
    groups = []
    for what, ends in _find_groups(members):
        saved = _shorten(awaited, ends)
        # A replica that saves no more than its slowest trajectory does alone is not the reason.
        if saved > (best if what.startswith(REPLICA) else 0):
            groups.append(Saving(what, len(ends), saved / 1e9))
    groups.sort(key=lambda saving: (-saving.seconds, saving.what))
    return (*savings, *groups[:MAX_GROUPS])


def find_waits(path: Iterable[Segment], root: Node | None = None) -> tuple[Wait, ...]:
    """Return the parts of a step's critical path that lead through trajectories."""
    waits: list[Wait] = []
    started = 0
    phase = ""
    for segment in path:
        if segment.trace_id:
            last = waits[-1] if waits else None
            if last and last.trace_id == segment.trace_id and last.end_ns == segment.start_ns:
                waits[-1] = last._replace(end_ns=segment.end_ns)
                continue
            begin = started if started and phase == segment.phase else segment.start_ns
            waits.append(Wait(begin, segment.end_ns, segment.trace_id, segment.phase))
        if segment.kind != "start":
            started = 0
        elif not started:
            started, phase = segment.start_ns, segment.phase
    return tuple(waits) if root is None else tuple(_hold(wait, root) for wait in waits)


def _hold(wait: Wait, root: Node) -> Wait:
    """Return a wait that starts after all other work of its phase had ended."""
    begin = wait.begin_ns
    for phase in find_phases(root):
        if phase.span.start_ns <= wait.begin_ns and wait.end_ns <= phase.span.end_ns:
            ends = (child.span.end_ns for child in phase.children if child.span.name != CONSUME)
            begin = max(begin, *(end for end in ends if end <= wait.end_ns), begin)
    return wait._replace(begin_ns=begin)


def _find_slowest(awaited: Sequence[_Awaited], count: int, root: Node) -> set[int]:
    """Return the trajectories that the waits ended with, for each phase the ``count`` without which it would be shortest."""
    by_phase: dict[int, set[int]] = defaultdict(set)
    for wait in awaited:
        by_phase[_find_phase(wait.wait, root)].update(_find_lasts(wait, count))
    gone: set[int] = set()
    for lasts in by_phase.values():
        gone.update(sorted(lasts, key=lambda last: (-_shorten(awaited, {last: GONE}), last))[:count])
    return gone


def _find_phase(wait: Wait, root: Node) -> int:
    """Return the span id of the phase that contains a wait; that of the step if there is none."""
    phases = [
        phase.span
        for phase in find_phases(root)
        if phase.span.start_ns <= wait.begin_ns and wait.end_ns <= phase.span.end_ns
    ]
    return min(phases, key=lambda span: span.end_ns - span.start_ns, default=root.span).span_id


class _Awaited(NamedTuple):
    """A wait and the trajectories that had ended by its end, the last one first."""

    wait: Wait
    ends: list[tuple[int, bool, int]]
    """End, whether it is the awaited trajectory, trace id."""


def _find_awaited(wait: Wait, members: Iterable[Trajectory]) -> _Awaited:
    end_ns, trace_id = wait.end_ns, wait.trace_id
    ends = [
        (end, trace == trace_id, trace)
        for trace, end in ((member.trace_id, member.end_ns) for member in members)
        if end <= end_ns or trace == trace_id
    ]
    ends.sort(reverse=True)
    return _Awaited(wait, ends)


def _shorten(awaited: Iterable[_Awaited], ends: Mapping[int, int]) -> int:
    """Return by how many nanoseconds waits would have been shorter with other ends of some trajectories.

    Args:
        awaited: The waits of one step.
        ends: The earlier ends, by trace id.
    """
    saved = 0
    for wait, ended in awaited:
        latest = wait.begin_ns
        for end, _, trace_id in ended:
            if end <= latest:
                break  # ends never move to a later time
            latest = max(latest, ends.get(trace_id, end))
        saved += max(0, wait.end_ns - latest)
    return saved


def _find_lasts(awaited: _Awaited, count: int) -> list[int]:
    """Return the trajectories that a wait ended with, the last ``count`` of them."""
    wait, ends = awaited
    inside = (end for end in ends if wait.begin_ns < end[0] <= wait.end_ns or end[1])
    return [trace_id for _, _, trace_id in itertools.islice(inside, count)]


def _find_groups(members: Sequence[Trajectory]) -> list[tuple[str, dict[int, int]]]:
    """Return groups: their names, and the ends of their trajectories without what they share."""
    groups = []
    replicas: dict[str, dict[int, int]] = defaultdict(dict)
    rewards = {}
    calls: dict[str, list[tuple[Trajectory, int]]] = defaultdict(list)
    for member in members:
        replica = find_replica(member)
        if replica:
            replicas[replica][member.trace_id] = GONE
        rewarded = 0
        called: dict[tuple[str, int], int] = {}
        for start, end, kind, name, _, _, _, _, span_id in member.path:
            if kind == "reward":
                rewarded += end - start
            elif kind == "tool":
                called[name, span_id] = called.get((name, span_id), 0) + end - start
        for (name, _), length in called.items():
            calls[name].append((member, length))
        if rewarded:
            rewards[member.trace_id] = member.end_ns - rewarded
    if len(replicas) > 1:
        groups += [(f"{REPLICA}{name}", ends) for name, ends in replicas.items()]
    groups += [(f"tool {name}", ends) for name, ends in _find_tools(calls).items()]
    groups.append(("reward", rewards))
    return groups


def find_replica(trajectory: Trajectory) -> str:
    """Return the replica that served a trajectory longest; empty if unknown."""
    served: dict[str, int] = {}
    for kind, _, instance, start, end, _, _ in trajectory.activities:
        if kind == "server":
            served[instance] = served.get(instance, 0) + end - start
    return max(sorted(served), key=served.__getitem__, default="")


def _find_tools(calls: Mapping[str, Sequence[tuple[Trajectory, int]]]) -> dict[str, dict[int, int]]:
    """Return for each tool the ends of trajectories if none of its calls had taken longer than the median.

    Args:
        calls: By tool, the trajectories that called it and the nanoseconds of their paths in it.
    """
    ends_by_tool: dict[str, dict[int, int]] = {}
    for name, lengths in calls.items():
        typical_ns = round(median([length for _, length in lengths]))
        ends = ends_by_tool[name] = dict[int, int]()
        for trajectory, length in lengths:
            if length > typical_ns:
                ends[trajectory.trace_id] = ends.get(trajectory.trace_id, trajectory.end_ns) - (length - typical_ns)
    return ends_by_tool
