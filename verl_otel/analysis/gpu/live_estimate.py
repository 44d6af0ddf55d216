# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Estimates GPU time in the running trainer, from its own phases and calls and from the timings of its samples.

The live form of `accounting`, with the same causes and decision tables (`idle_causes`). The sweeps differ because the inputs do: here a
call stands for the work of all its ranks, and a trajectory reports its start, its end and the shares that it spent in LLM calls, tools
and reward, but not when, nor on which replica: both are modelled as random, per GPU count instead of per device. Seconds instead of
nanoseconds: the causes sum up to window x GPUs except for rounding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.gpu import idle_causes
from verl_otel.semconv.kinds import GPU_CAUSES

SLOWEST: Final = 0.05
"""Share of a step's trajectories whose wait is its tail."""

GRAINS: Final = 1000
"""With more trajectories than this the window is evaluated at this many points only: a step of 8,192 then costs 30 ms and not 200."""

NamedInterval = tuple[str, float, float]
"""Name, start, end."""
_STATES: Final = {name: index for index, name in enumerate(idle_causes.STATES)}
_SAVING, _TURN, _CLOSES, _OPENS, _MARK = range(len(_STATES), len(_STATES) + 5)
"""Changes besides the trainer's state: a call saves a checkpoint, the GPUs change their role, a trajectory ends, starts."""
_Shares = list[tuple[str, float]]
"""Causes, and the share of the GPUs of one side that each has."""
_Change = tuple[float, int, int, float, float, float]
"""Time, index, delta, and the shares of a trajectory."""


class GpuPool(NamedTuple):
    """The number of GPUs of a run by use."""

    trains: int
    """GPUs of the trainer."""
    generates: int = 0
    """GPUs that only generate."""
    hybrid: bool = True
    """True: the trainer's GPUs also generate."""
    replica: int = 1
    """Number of GPUs of one replica."""


class Rollout(NamedTuple):
    """One trajectory. Shares are fractions of its duration; the rest is its own code and waiting time."""

    start: float
    end: float
    llm: float
    tool: float = 0.0
    reward: float = 0.0
    validate: bool = False


class Spent(NamedTuple):
    """GPU seconds of a window."""

    trainer: dict[str, float]
    """By cause, of the GPUs of the trainer."""
    rollouts: dict[str, float]
    """By cause, of those that only generate."""
    asleep: bool
    """Whether the trainer has its GPUs back at the end."""

    def by_cause(self) -> dict[str, float]:
        """Return the seconds of all GPUs: ``(end - begin) x GPUs`` in total."""
        total = dict(self.trainer)
        for cause, seconds in self.rollouts.items():
            total[cause] = total.get(cause, 0.0) + seconds
        return total


class Call(NamedTuple):
    """A call of a worker group."""

    method: str
    start: float
    end: float
    blocking: bool = True
    """False: it returned a future; its workers compute until the trainer reads it."""


class StepWindow(NamedTuple):
    """Activity of a trainer from ``begin`` to ``end``: what lies outside does not count. Times in seconds on the clock of `Rollout`."""

    begin: float
    end: float
    phases: Sequence[NamedInterval]
    calls: Sequence[Call] = ()
    taken: Sequence[float] = ()
    """When it received the samples that it waited for."""


def account_gpu_time(
    window: StepWindow,
    rollouts: Collection[Rollout],
    pool: GpuPool,
    *,
    asleep: bool = False,
    recorded: bool = False,
    began: float = -math.inf,
) -> Spent:
    """Return the GPU seconds of a window.

    Args:
        window: What the trainer did.
        rollouts: Trajectories, whether they touch the window or not.
        pool: The GPUs.
        asleep: True: the trainer had taken its GPUs back when the window started.
        recorded: True: trajectories were known before this window; see `idle_causes.find_cause`.
        began: Start of the first trajectory of the run; all idle time before it is start-up.
    """
    recorded = recorded or bool(rollouts)
    changes = [*_find_changes(window), (min(max(began, window.begin), window.end), _MARK, 0, 0.0, 0.0, 0.0)]
    sizes = [0, 0]
    for rollout in rollouts:
        start, end = max(rollout.start, window.begin), min(rollout.end, window.end)
        if end > start:
            which = int(rollout.validate)
            sizes[which] += 1
            changes.append((start, _OPENS, which, rollout.llm, rollout.tool, rollout.reward))
            changes.append((end, _CLOSES, which, rollout.llm, rollout.tool, rollout.reward))
    changes.sort()
    spent: tuple[dict[str, float], dict[str, float]] = defaultdict(float), defaultdict(float)
    counts = [0] * len(_STATES) + [0]
    open_trajectories = _OpenTrajectories(sizes[0]), _OpenTrajectories(sizes[1])
    grain = (window.end - window.begin) / GRAINS if sum(sizes) > GRAINS else 0.0
    reached = window.begin
    for when, what, by, llm, tool, reward in [*changes, (window.end, _MARK, 0, 0.0, 0.0, 0.0)]:
        if when - reached > (grain if what in (_OPENS, _CLOSES) else 0.0):
            uses = _find_uses(pool, counts, *open_trajectories, asleep=asleep, recorded=recorded)
            for side, gpus, shares in zip(spent, (pool.trains, pool.generates), uses, strict=True):
                for cause, share in shares:
                    side[_name_cause(cause, is_starting=reached < began)] += share * gpus * (when - reached)
            reached = when
        if what == _TURN:
            asleep = by > 0
        elif what in (_OPENS, _CLOSES):
            open_trajectories[by].add(1 if what == _OPENS else -1, llm, tool, reward)
        elif what != _MARK:
            counts[what] += by
    trainer, generators = ({cause: seconds for cause, seconds in side.items() if seconds > 0} for side in spent)
    return Spent(trainer, generators, asleep)


def _name_cause(cause: str, *, is_starting: bool) -> str:
    return "start_up" if is_starting and GPU_CAUSES[cause].state == "idle" else cause


def find_tail_share(window: StepWindow, ends: Sequence[float]) -> float | None:
    """Return the fraction of a window that the trainer waited for the slowest of its trajectories, while all others had ended.

    Args:
        window: What the trainer did.
        ends: The ends of the trajectories that it trained on.

    Returns:
        From 0 to 1; None for fewer than two trajectories, of which none is slower than the others.
    """
    slowest = math.ceil(SLOWEST * len(ends))
    if len(ends) <= slowest or window.end <= window.begin:
        return None
    ordered = sorted(ends)
    begin, end = max(ordered[-slowest - 1], window.begin), min(ordered[-1], window.end)
    waits = [(start, stop) for key, start, stop in window.phases if idle_causes.find_state(key) == "samples"]
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in waits) / (window.end - window.begin)


class _OpenTrajectories:
    """The trajectories open at one time, of ``size`` in the window; ``certain`` of them only make LLM calls.

    What each does at that moment is unknown, so each is in an LLM call with the probability of its share.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = self.certain = 0
        self.llm = self.tool = self.reward = self.silence = 0.0

    def add(self, by: int, llm: float, tool: float, reward: float) -> None:
        self.count += by
        if not self.count:  # removes rounding errors
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
        """Return the probability that at least one of them is in an LLM call."""
        return 1.0 if self.certain else max(0.0, 1 - math.exp(self.silence))

    def busy(self, replicas: int) -> float:
        """Return the expected share of busy replicas, assuming that trajectories are spread evenly and any of them may be open."""
        if not self.count:
            return 0.0
        if replicas == 1:
            return self.called()
        trajectories_per_replica = self.size / replicas
        share = min(1.0, max(0.0, self.llm / self.size))
        return min(
            1.0,
            share * trajectories_per_replica
            if trajectories_per_replica <= 1
            else 1 - (1 - share) ** trajectories_per_replica,
        )

    def split(self, replicas: int) -> _Shares:
        """Return the activity of the replicas' GPUs as shares: idle ones wait for other calls, tools or rewards."""
        busy = self.busy(replicas)
        called = max(busy, self.called())
        own = max(0.0, self.count - self.llm - self.tool - self.reward)
        waits = (("tool_wait", self.tool), ("reward_wait", self.reward), ("rollout_wait", own))
        most = sum(max(0.0, share) for _, share in waits)
        shares = [("rollout", busy), ("tail_wait", called - busy)]
        if most <= 0:
            return [*shares, ("rollout_wait", 1 - called)]
        return shares + [(cause, (1 - called) * max(0.0, share) / most) for cause, share in waits]


def _find_changes(window: StepWindow) -> list[_Change]:
    """Return the changes of the trainer's state."""
    changes: list[_Change] = []

    def add(what: int, start: float, end: float) -> None:
        begin, stop = max(start, window.begin), min(end, window.end)
        if stop > begin:
            changes.extend(((begin, what, 1, 0.0, 0.0, 0.0), (stop, what, -1, 0.0, 0.0, 0.0)))

    calls = [call if call.blocking else _extend(call, window.phases) for call in window.calls]
    for method, start, end, _ in calls:
        work = idle_causes.find_work(method)
        if work in ("train", "rollout", "checkpoint"):
            add(_SAVING if work == "checkpoint" else _STATES["training"], start, end)
    for key, start, end in window.phases:
        state = idle_causes.find_state(key)
        if state == "train" and not any(call.start < end and call.end > start for call in calls):
            state = "training"  # its calls are not recorded
        add(_STATES[state], start, end)
        took = max((when for when in window.taken if start <= when <= end), default=end)
        if state == "samples":
            add(_STATES["switch"], took, end)
        if state in ("switch", "validation"):
            takes = key == "switch_to_trainer"
            when = end if takes else start
            if window.begin <= when <= window.end:
                changes.append((when, _TURN, int(takes), 0.0, 0.0, 0.0))
    return changes


def _extend(call: Call, phases: Sequence[NamedInterval]) -> Call:
    """Return a call with the end of its work: verl reads the future in the innermost phase around the call, and only converts the result after it."""
    ends = [(stop - begin, stop) for _, begin, stop in phases if begin <= call.start <= stop]
    return call._replace(end=max(call.end, min(ends)[1])) if ends else call


def _find_uses(
    pool: GpuPool,
    counts: list[int],
    training: _OpenTrajectories,
    validating: _OpenTrajectories,
    *,
    asleep: bool,
    recorded: bool,
) -> tuple[_Shares, _Shares]:
    """Return the causes between two changes, for the GPUs of the trainer and for those that only generate."""
    state = next((name for name, index in _STATES.items() if counts[index]), "data")
    lane = "hybrid" if pool.hybrid else "train"
    generating = pool.generates + (pool.trains if pool.hybrid and not asleep else 0)
    replicas = max(1, generating // max(1, pool.replica))
    validation = [("validation", validating.busy(replicas)), ("validation_wait", 1 - validating.busy(replicas))]
    known = {"asleep": asleep, "validating": validating.count > 0, "recorded": recorded}
    if counts[_STATES["training"]]:
        trainer = [("train", 1.0)]
    elif counts[_SAVING]:
        trainer = [("checkpoint", 1.0)]
    elif state == "weight_sync":
        trainer = [("weight_sync", 1.0)]
    elif state == "validation" and pool.hybrid:
        trainer = validation
    elif state == "samples" and pool.hybrid and not asleep and training.count:
        trainer = training.split(replicas)
    else:
        awaited = "own" if training.count else ""  # whatever it is: these GPUs do not generate now
        trainer = [(idle_causes.find_cause(lane, state, awaited, **known), 1.0)]
    if state == "weight_sync":
        generators = [("weight_sync", 1.0)]
    elif training.count:
        generators = training.split(replicas)
    elif validating.count:
        generators = validation
    else:
        generators = [(idle_causes.find_cause("rollout", state, "", **known), 1.0)]
    return trainer, generators
