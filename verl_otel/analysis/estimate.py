# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time as a trainer can know it while it runs: from its own phases and calls, and from what its samples say of themselves.

The live form of `ledger`, with the same causes and the same tables (`idleness`), and coarser: a call stands for the work of all its
ranks; a trajectory says when it began and ended and what share of that it spent in LLM calls, tools and reward, not when, nor on
which replica: both are taken as chance. Seconds, not nanoseconds: the
causes sum up to window x GPUs but for rounding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis import idleness

SLOWEST: Final = 0.05
"""Share of a step's trajectories whose wait is its tail."""

GRAINS: Final = 1000
"""Of more trajectories than this the window is looked at in as many parts only: a step of 8,192 then costs 30 ms and not 200."""

Spell = tuple[str, float, float]
"""What, from, to."""
_STATES: Final = {name: index for index, name in enumerate(idleness.STATES)}
_SAVING, _TURN, _CLOSES, _OPENS, _MARK = range(len(_STATES), len(_STATES) + 5)
"""Changes of other things than the trainer's state: a call saves a checkpoint, its GPUs change their role, a trajectory ends, begins."""
_Change = tuple[float, int, int, float, float, float]
"""When, what, by how much, and the shares of a trajectory."""


class Pool(NamedTuple):
    """The GPUs of a run, by what they are for."""

    trains: int
    """Those of the trainer."""
    generates: int = 0
    """Those that only generate."""
    hybrid: bool = True
    """The trainer's generate, too."""
    replica: int = 1
    """GPUs of one replica."""


class Rollout(NamedTuple):
    """One trajectory. Shares are of its duration; what they leave is its own code and its waiting."""

    start: float
    end: float
    llm: float
    tool: float = 0.0
    reward: float = 0.0
    validate: bool = False


class Window(NamedTuple):
    """What a trainer did between the ends of two steps. Times in seconds on the clock of `Rollout`."""

    begin: float
    end: float
    phases: Sequence[Spell]
    calls: Sequence[Spell] = ()
    """Of worker groups, by method."""
    taken: Sequence[float] = ()
    """When it had the samples that it waited for."""


def spend(
    window: Window, rollouts: Iterable[Rollout], pool: Pool, *, asleep: bool = False
) -> tuple[dict[str, float], bool]:
    """Return the GPU seconds of a window by cause.

    Args:
        window: What the trainer did.
        rollouts: Trajectories, whether they touch the window or not.
        pool: The GPUs.
        asleep: The trainer had its GPUs back from the rollouts when the window began.

    Returns:
        Seconds by cause, in all ``(end - begin) x GPUs``; and whether the trainer has its GPUs back at the end.
    """
    changes = _find_changes(window)
    sizes = [0, 0]
    for each in rollouts:
        start, end = max(each.start, window.begin), min(each.end, window.end)
        if end > start:
            which = int(each.validate)
            sizes[which] += 1
            changes.append((start, _OPENS, which, each.llm, each.tool, each.reward))
            changes.append((end, _CLOSES, which, each.llm, each.tool, each.reward))
    changes.sort()
    spent: dict[str, float] = defaultdict(float)
    counts = [0] * len(_STATES) + [0]
    crowds = _Crowd(sizes[0]), _Crowd(sizes[1])
    grain = (window.end - window.begin) / GRAINS if sum(sizes) > GRAINS else 0.0
    reached = window.begin
    for when, what, by, llm, tool, reward in [*changes, (window.end, _MARK, 0, 0.0, 0.0, 0.0)]:
        if when - reached > (grain if what in (_OPENS, _CLOSES) else 0.0):
            for cause, gpus in _find_uses(pool, counts, *crowds, asleep=asleep):
                spent[cause] += gpus * (when - reached)
            reached = when
        if what == _TURN:
            asleep = by > 0
        elif what in (_OPENS, _CLOSES):
            crowds[by].add(1 if what == _OPENS else -1, llm, tool, reward)
        elif what != _MARK:
            counts[what] += by
    return {cause: seconds for cause, seconds in spent.items() if seconds > 0}, asleep


def find_tail(window: Window, ends: Sequence[float]) -> float | None:
    """Return the share of a window that the trainer waited for the slowest of its trajectories, while all others had ended.

    Args:
        window: What the trainer did.
        ends: When each of the trajectories ended that it trained on.

    Returns:
        From 0 to 1; None for fewer than two trajectories, of which none is slower than the others.
    """
    slowest = math.ceil(SLOWEST * len(ends))
    if len(ends) <= slowest or window.end <= window.begin:
        return None
    ordered = sorted(ends)
    begin, end = ordered[-slowest - 1], ordered[-1]
    waits = [(start, stop) for key, start, stop in window.phases if idleness.find_state(key) == "samples"]
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in waits) / (window.end - window.begin)


class _Crowd:
    """The trajectories that are open at one time, of ``size`` in the window; ``certain`` of them do nothing but LLM calls.

    What each does just then is not known, so each is taken to be in an LLM call with the probability of its share.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = self.certain = 0
        self.llm = self.tool = self.reward = self.silence = 0.0

    def add(self, by: int, llm: float, tool: float, reward: float) -> None:
        self.count += by
        if not self.count:  # what rounding has left
            self.llm = self.tool = self.reward = self.silence = 0.0
            return
        self.llm += by * llm
        self.tool += by * tool
        self.reward += by * reward
        if llm < 1:
            self.silence += by * math.log1p(-llm)
        else:
            self.certain += by

    def called(self) -> float:
        """Return how likely it is that at least one of them is in an LLM call."""
        return 1.0 if self.certain else max(0.0, 1 - math.exp(self.silence))

    def busy(self, replicas: int) -> float:
        """Return the share of the replicas that generate, if all trajectories were spread evenly and any of them may be left."""
        if not self.count:
            return 0.0
        if replicas == 1:
            return self.called()
        each = self.size / replicas
        share = min(1.0, max(0.0, self.llm / self.size))
        return min(1.0, share * each if each <= 1 else 1 - (1 - share) ** each)

    def split(self, replicas: int) -> list[tuple[str, float]]:
        """Return what the GPUs of the replicas do, as shares: those that are idle wait for others' calls, tools, rewards."""
        busy = self.busy(replicas)
        called = max(busy, self.called())
        own = max(0.0, self.count - self.llm - self.tool - self.reward)
        waits = (("tool_wait", self.tool), ("reward_wait", self.reward), ("rollout_wait", own))
        most = sum(max(0.0, share) for _, share in waits)
        found = [("rollout", busy), ("tail_wait", called - busy)]
        if most <= 0:
            return [*found, ("rollout_wait", 1 - called)]
        return found + [(cause, (1 - called) * max(0.0, share) / most) for cause, share in waits]


def _find_changes(window: Window) -> list[_Change]:
    """Return when the trainer's state changes."""
    found: list[_Change] = []

    def add(what: int, start: float, end: float) -> None:
        begin, stop = max(start, window.begin), min(end, window.end)
        if stop > begin:
            found.extend(((begin, what, 1, 0.0, 0.0, 0.0), (stop, what, -1, 0.0, 0.0, 0.0)))

    for method, start, end in window.calls:
        work = idleness.find_work(method)
        if work in ("train", "rollout", "checkpoint"):
            add(_SAVING if work == "checkpoint" else _STATES["training"], start, end)
    for key, start, end in window.phases:
        state = idleness.find_state(key)
        if state == "train" and not any(begin < end and stop > start for _, begin, stop in window.calls):
            state = "training"  # its calls are not to be seen
        add(_STATES[state], start, end)
        took = max((when for when in window.taken if start <= when <= end), default=end)
        if state == "samples":
            add(_STATES["switch"], took, end)
        if state in ("switch", "validation"):
            takes = key == "switch_to_trainer"
            when = min(max(end if takes else start, window.begin), window.end)
            found.append((when, _TURN, int(takes), 0.0, 0.0, 0.0))
    return found


def _find_uses(
    pool: Pool, counts: list[int], training: _Crowd, validating: _Crowd, *, asleep: bool
) -> list[tuple[str, float]]:
    """Return how many GPUs are in use for what, or idle for which cause, between two changes."""
    state = next((name for name, index in _STATES.items() if counts[index]), "data")
    lane = "hybrid" if pool.hybrid else "train"
    generating = pool.generates + (pool.trains if pool.hybrid and not asleep else 0)
    replicas = max(1, generating // max(1, pool.replica))
    validation = [("validation", validating.busy(replicas)), ("validation_wait", 1 - validating.busy(replicas))]
    if counts[_STATES["training"]]:
        mine = [("train", 1.0)]
    elif counts[_SAVING]:
        mine = [("checkpoint", 1.0)]
    elif state == "weight_sync":
        mine = [("weight_sync", 1.0)]
    elif state == "validation" and pool.hybrid:
        mine = validation
    elif state == "samples" and pool.hybrid and not asleep and training.count:
        mine = training.split(replicas)
    else:
        mine = [(idleness.find_cause(lane, state, "", asleep=asleep, validating=False), 1.0)]
    if state == "weight_sync":
        others = [("weight_sync", 1.0)]
    elif training.count:
        others = training.split(replicas)
    elif validating.count:
        others = validation
    else:
        others = [(idleness.find_cause("rollout", state, "", asleep=asleep, validating=False), 1.0)]
    return [(cause, share * pool.trains) for cause, share in mine] + [
        (cause, share * pool.generates) for cause, share in others
    ]
