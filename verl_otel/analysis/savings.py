# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What would have made a step shorter, counted as what it would really save: a wait ends with the last of those that are left.

A step waits for all its trajectories at once. Without the slowest it would have waited for the second-slowest: only the time between
the two is saved, and nothing before the wait began. (The review of tinker-cookbook#822 shows what goes wrong otherwise: whole waits are
charged to stragglers, and the charges of two of them exceed the wait.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Saving, Segment, Step, Trajectory
from verl_otel.analysis.gates import CONSUME, find_phases
from verl_otel.analysis.thresholds import MAX_GROUPS
from verl_otel.analysis.traces import Node

GONE: Final = -(1 << 63)
"""The end of a trajectory that is left out."""
_SHARES: Final = (("1%", 1), ("5%", 5))


class Wait(NamedTuple):
    """A part of a step in which it waited for a trajectory."""

    begin_ns: int
    """It cannot end before this: the phase had not begun, or something else went on."""
    end_ns: int
    """When the trajectory had ended."""
    trace_id: int
    phase: str


def find_savings(step: Step, members: Sequence[Trajectory], root: Node | None = None) -> tuple[Saving, ...]:
    """Return by how much a step would have been shorter without its slowest trajectories, a replica, a tool or its rewards.

    Args:
        step: With its critical path.
        members: The trajectories that it trained on.
        root: Its tree; with it, what else a phase waited for beside the trajectories is taken into account.

    Returns:
        ``slowest``, ``1%`` and ``5%`` wherever the step waited for a trajectory, then groups that would save anything. "Slowest"
        is what ended last, because that is what a step waits for; of 1 % and 5 %, at least one.
    """
    waits = find_waits(step.path, root)
    if not waits or not members:
        return ()
    lasts = [_find_lasts(wait, members, 1) for wait in waits]
    best = max((shorten(waits, members, dict.fromkeys(last, GONE)) for last in lasts), default=0)
    found = [Saving("slowest", 1, best / 1e9)]
    for what, share in _SHARES:
        gone = {each for wait in waits for each in _find_lasts(wait, members, math.ceil(len(members) * share / 100))}
        found.append(Saving(what, len(gone), shorten(waits, members, dict.fromkeys(gone, GONE)) / 1e9))
    groups = []
    for what, ends in _find_groups(members):
        saved = shorten(waits, members, ends)
        if saved > 0:
            groups.append(Saving(what, len(ends), saved / 1e9))
    groups.sort(key=lambda saving: (-saving.seconds, saving.what))
    return (*found, *groups[:MAX_GROUPS])


def find_waits(path: Iterable[Segment], root: Node | None = None) -> tuple[Wait, ...]:
    """Return where a step's critical path leads through trajectories."""
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
    """Return a wait that begins when everything else had ended that its phase did meanwhile."""
    begin = wait.begin_ns
    for phase in find_phases(root):
        if phase.span.start_ns <= wait.begin_ns and wait.end_ns <= phase.span.end_ns:
            ends = (child.span.end_ns for child in phase.children if child.span.name != CONSUME)
            begin = max(begin, *(end for end in ends if end <= wait.end_ns), begin)
    return wait._replace(begin_ns=begin)


def shorten(waits: Iterable[Wait], members: Iterable[Trajectory], ends: Mapping[int, int]) -> int:
    """Return by how many nanoseconds waits would have been shorter if some trajectories had ended at other times.

    Args:
        waits: Of one step.
        members: The trajectories of the step.
        ends: When those would have ended that end earlier, by trace id.
    """
    trajectories = list(members)
    saved = 0
    for wait in waits:
        latest = wait.begin_ns
        for each in trajectories:
            if each.end_ns <= wait.end_ns or each.trace_id == wait.trace_id:
                latest = max(latest, ends.get(each.trace_id, each.end_ns))
        saved += max(0, wait.end_ns - latest)
    return saved


def _find_lasts(wait: Wait, members: Iterable[Trajectory], count: int) -> list[int]:
    """Return the trajectories that a wait ended with, the last ``count`` of them."""
    awaited = [each for each in members if wait.begin_ns < each.end_ns <= wait.end_ns or each.trace_id == wait.trace_id]
    awaited.sort(key=lambda each: (each.end_ns, each.trace_id == wait.trace_id, each.trace_id))
    return [each.trace_id for each in awaited[-count:]]


def _find_groups(members: Sequence[Trajectory]) -> list[tuple[str, dict[int, int]]]:
    """Return groups: what they are, and when their trajectories would have ended without what they share."""
    found = []
    replicas: dict[str, dict[int, int]] = defaultdict(dict)
    for each in members:
        replica = find_replica(each)
        if replica:
            replicas[replica][each.trace_id] = GONE
    if len(replicas) > 1:
        found += [(f"replica {name}", ends) for name, ends in replicas.items()]
    found += [(f"tool {name}", ends) for name, ends in _find_tools(members).items()]
    rewards = {}
    for each in members:
        rewarded = sum(_length(segment) for segment in each.path if segment.kind == "reward")
        if rewarded:
            rewards[each.trace_id] = each.end_ns - rewarded
    found.append(("reward", rewards))
    return found


def find_replica(trajectory: Trajectory) -> str:
    """Return the replica that served a trajectory longest; empty if nothing is known of it."""
    served: dict[str, int] = defaultdict(int)
    for activity in trajectory.activities:
        if activity.kind == "server":
            served[activity.instance] += activity.end_ns - activity.start_ns
    return max(sorted(served), key=served.__getitem__, default="")


def _find_tools(members: Sequence[Trajectory]) -> dict[str, dict[int, int]]:
    """Return for each tool when trajectories would have ended if none of its calls had taken longer than the median."""
    calls: dict[str, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for each in members:
        for segment in each.path:
            if segment.kind == "tool":
                calls[segment.name][each.trace_id, segment.span_id] += _length(segment)
    ends = {each.trace_id: each.end_ns for each in members}
    found: dict[str, dict[int, int]] = {}
    for name, lengths in calls.items():
        typical = round(median(lengths.values()))
        excess: dict[int, int] = defaultdict(int)
        for (trace_id, _), length in lengths.items():
            if length > typical:
                excess[trace_id] += length - typical
        found[name] = {trace_id: ends[trace_id] - beyond for trace_id, beyond in excess.items()}
    return found


def _length(segment: Segment) -> int:
    return segment.end_ns - segment.start_ns
