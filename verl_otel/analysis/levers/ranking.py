# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks the levers of a run by how much shorter its steps would be, with the uncertainty of that."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from verl_otel._internal.printable import counted
from verl_otel.analysis.bounded_steps import RecentStep
from verl_otel.analysis.levers import schedules
from verl_otel.analysis.levers.replay import UNANCHORED, Item, Part, Pool, Rollout, Schedule, Timeline, replay
from verl_otel.analysis.levers.schedules import BETWEEN
from verl_otel.analysis.step_lengths import LONG_FACTOR

# -- The changes of a schedule that are tried: each returns the schedule as it would be with one lever pulled --

FASTER: Final = 0.5
"""What is made faster takes this share of its time."""
TAILS: Final = (1, 5)
"""Percentages of the slowest trajectories that are cut."""
WEIGHT_SYNC: Final = "update_weights"
"""Phase in which verl's trainers send weights."""
MAX_NAMES: Final = 12
"""Tools, rewards and trackers that are tried, those with the most time."""
_WORKERS: Final = {"loop": "agent_loop_workers", "server": "replicas", "reward": "reward_workers"}
"""Kinds of levers that double the pools of a kind."""


class Candidate(NamedTuple):
    """A lever and the schedule with it."""

    kind: str
    subject: str
    schedule: Schedule


def find_candidates(schedule: Schedule, timeline: Timeline) -> Iterator[Candidate]:
    """Yield the levers of a schedule.

    Args:
        schedule: As it was recorded.
        timeline: Its replay.
    """
    yield from _speed_up_pieces(schedule)
    yield from _unblock(schedule)
    for percent in TAILS:
        if schedule.rollouts:
            yield Candidate("tail", f"{percent}%", _cut_tail(schedule, timeline, percent))
    if schedule.rollouts:
        for pool_kind, kind in _WORKERS.items():
            yield Candidate(kind, "", _double(schedule, pool_kind))
    yield from _speed_up_parts(schedule)
    if any(_is_sync(part) for part in schedule.parts):
        parts = tuple(part._replace(overlapped=True) if _is_sync(part) else part for part in schedule.parts)
        yield Candidate("weight_sync", "", schedule._replace(parts=parts))
    if any(rollout.anchor != UNANCHORED for rollout in schedule.rollouts) and len(schedule.numbers) > 1:
        yield Candidate("asynchrony", "", _submit_earlier(schedule))


def _is_sync(part: Part) -> bool:
    return part.awaited is None and (part.phase == WEIGHT_SYNC or part.kind == "weight_sync")


# -- faster --


def _speed_up_pieces(schedule: Schedule) -> Iterator[Candidate]:
    """Yield each tool and each reward with half of its time."""
    times: Counter[tuple[str, str]] = Counter()
    for rollout in schedule.rollouts:
        for item in rollout.items:
            if item.kind in ("tool", "reward"):
                times[item.kind, item.name] += item.length_ns
    for kind, name in _choose(times):
        shorter = _shorten_blocked(schedule, _find_shares(schedule, kind, name), 1 - FASTER)
        yield Candidate(kind, name, _change_items(shorter, _halve((kind, name))))


def _choose(times: Counter[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return [key for key, _ in sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_NAMES]]


def _halve(what: tuple[str, str]) -> Callable[[Item], Item]:
    def change(item: Item) -> Item:
        if (item.kind, item.name) != what:
            return item
        return item._replace(
            lead_ns=_part_of(item.lead_ns), hold_ns=_part_of(item.hold_ns), rest_ns=_part_of(item.rest_ns)
        )

    return change


def _part_of(length_ns: int) -> int:
    return int(length_ns * FASTER)


def _change_items(schedule: Schedule, change: Callable[[Item], Item]) -> Schedule:
    rollouts = tuple(rollout._replace(items=tuple(map(change, rollout.items))) for rollout in schedule.rollouts)
    return schedule._replace(rollouts=rollouts)


def _speed_up_parts(schedule: Schedule) -> Iterator[Candidate]:
    """Yield the time between steps, each tracker and the loading of data with half of their time."""
    kinds = {(part.kind, part.name) for part in schedule.parts if part.kind in ("logging", "data_loading")}
    times = Counter({key: sum(p.length_ns for p in schedule.parts if (p.kind, p.name) == key) for key in kinds})
    for kind, name in _choose(times):
        is_meant = lambda part, key=(kind, name): (part.kind, part.name) == key  # noqa: E731 - bound at once
        yield Candidate(kind, name, _shorten(schedule, is_meant))
    if any(part.phase == BETWEEN for part in schedule.parts):
        yield Candidate("between", "", _shorten(schedule, lambda part: part.phase == BETWEEN))


def _shorten(schedule: Schedule, is_meant: Callable[[Part], bool]) -> Schedule:
    parts = tuple(
        part._replace(length_ns=_part_of(part.length_ns)) if is_meant(part) and part.awaited is None else part
        for part in schedule.parts
    )
    return schedule._replace(parts=parts)


# -- not blocking --


def _unblock(schedule: Schedule) -> Iterator[Candidate]:
    """Yield each tool and each reward that blocks event loops, called in a thread instead."""
    blocked = {
        number
        for number, pool in enumerate(schedule.pools)
        if pool.kind == "loop" or (pool.kind == "reward" and pool.slots == 1)
    }
    found = {
        (item.kind, item.name)
        for rollout in schedule.rollouts
        for item in rollout.items
        if item.kind in ("tool", "reward") and item.pool in blocked and item.hold_ns
    }
    for kind, name in sorted(found)[:MAX_NAMES]:
        shorter = _shorten_blocked(schedule, _find_shares(schedule, kind, name), 1.0)
        yield Candidate(f"unblocked_{kind}", name, _change_items(shorter, _free(kind, name, blocked)))


def _free(kind: str, name: str, blocked: set[int]) -> Callable[[Item], Item]:
    def change(item: Item) -> Item:
        if (item.kind, item.name) != (kind, name) or item.pool not in blocked:
            return item
        return item._replace(hold_ns=0, rest_ns=item.hold_ns + item.rest_ns)

    return change


def _find_shares(schedule: Schedule, kind: str, name: str) -> dict[int, float]:
    """Return by pool the share of a tool or a reward in the time for which its slots are held."""
    held: Counter[int] = Counter()
    own: Counter[int] = Counter()
    for rollout in schedule.rollouts:
        for item in rollout.items:
            held[item.pool] += item.hold_ns
            if (item.kind, item.name) == (kind, name):
                own[item.pool] += item.hold_ns
    return {pool: length_ns / held[pool] for pool, length_ns in own.items() if length_ns}


def _shorten_blocked(schedule: Schedule, shares: Mapping[int, float], saved: float) -> Schedule:
    """Return a schedule in which the rest of what only has to get a slot is shorter: in it the event loop was blocked again.

    Args:
        schedule: As it was recorded.
        shares: By pool, the share of the calls that are changed.
        saved: Share of the time of these calls that they no longer block.
    """

    def change(item: Item) -> Item:
        if item.hold_ns or not item.rest_ns or item.pool not in shares:
            return item
        return item._replace(rest_ns=int(item.rest_ns * (1 - saved * shares[item.pool])))

    return _change_items(schedule, change)


# -- fewer slow ones --


def _cut_tail(schedule: Schedule, timeline: Timeline, percent: int) -> Schedule:
    """Return a schedule in which the slowest trajectories of each step take no longer than the slowest of the others."""
    by_step: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, rollout in enumerate(schedule.rollouts):
        by_step[rollout.step].append((timeline.ends_ns[index] - timeline.begins_ns[index], index))
    excess: dict[int, int] = {}
    for members in by_step.values():
        members.sort(key=lambda member: (-member[0], member[1]))
        count = math.ceil(len(members) * percent / 100)
        if count < len(members):
            longest = members[count][0]
            excess.update((index, length - longest) for length, index in members[:count])
    rollouts = tuple(
        rollout._replace(items=_take_out(rollout.items, excess.get(index, 0)))
        for index, rollout in enumerate(schedule.rollouts)
    )
    return schedule._replace(rollouts=rollouts)


def _take_out(items: tuple[Item, ...], excess_ns: int) -> tuple[Item, ...]:
    """Return items that take less time, from the longest of them first."""
    changed = list(items)
    for index in sorted(range(len(items)), key=lambda number: -items[number].length_ns):
        if excess_ns <= 0:
            break
        item = changed[index]
        lead = min(item.lead_ns, excess_ns)
        hold = min(item.hold_ns, excess_ns - lead)
        rest = min(item.rest_ns, excess_ns - lead - hold)
        changed[index] = item._replace(
            lead_ns=item.lead_ns - lead, hold_ns=item.hold_ns - hold, rest_ns=item.rest_ns - rest
        )
        excess_ns -= lead + hold + rest
    return tuple(changed)


# -- more workers --


def _double(schedule: Schedule, kind: str) -> Schedule:
    """Return a schedule with twice as many pools of a kind; every other trajectory uses the new ones."""
    copies: dict[int, int] = {}
    pools: list[Pool] = list(schedule.pools)
    for number, pool in enumerate(schedule.pools):
        if pool.kind == kind:
            copies[number] = len(pools)
            pools.append(pool._replace(instance=f"{pool.instance}'"))
    if not copies:
        return schedule
    schedule = _shorten_blocked(schedule, dict.fromkeys(copies, 1.0), 0.5)  # half of the calls block another loop
    turns: Counter[tuple[int, int]] = Counter()
    rollouts = []
    for rollout in schedule.rollouts:
        moved: dict[int, int] = {}
        for used in sorted({item.pool for item in rollout.items if item.pool in copies}):
            if turns[used, rollout.step] % 2:
                moved[used] = copies[used]
            turns[used, rollout.step] += 1
        items = tuple(item._replace(pool=moved.get(item.pool, item.pool)) for item in rollout.items)
        rollouts.append(rollout._replace(items=items))
    return schedule._replace(rollouts=tuple(rollouts), pools=tuple(pools))


# -- earlier --


def _submit_earlier(schedule: Schedule) -> Schedule:
    """Return a schedule in which each trajectory is submitted one step earlier, at the same place of that step."""
    places: dict[tuple[int, str, str, int], int] = {}
    where: list[tuple[str, str, int]] = []
    seen: Counter[tuple[int, str, str]] = Counter()
    first: dict[int, int] = {}
    for index, part in enumerate(schedule.parts):
        number = seen[part.step, part.kind, part.phase]
        seen[part.step, part.kind, part.phase] += 1
        places[part.step, part.kind, part.phase, number] = index
        where.append((part.kind, part.phase, number))
        first.setdefault(part.step, index)

    def move(rollout: Rollout) -> Rollout:
        if rollout.anchor == UNANCHORED:
            return rollout
        step = schedule.parts[rollout.anchor].step - 1
        if step < 0:
            return rollout
        return rollout._replace(anchor=places.get((step, *where[rollout.anchor]), first[step]))

    return schedule._replace(rollouts=tuple(map(move, schedule.rollouts)))


FEWEST_STEPS: Final = 3
"""With fewer steps the uncertainty is unknown."""
CONFIDENCE: Final = 0.9
RESAMPLES: Final = 1_000
MAX_UNLINKED: Final = 0.05
"""Share of trajectories without a known submitter above which nothing is replayed."""
MAX_ITEMS: Final = 200_000
"""Pieces of trajectories that are replayed at most: 10 s on one core."""


ONE_STEP_SHARE: Final = 0.9
"""A step with this share of a gain is named: what happened once need not happen again."""
FEW: Final = 0.25
"""Fewer long steps than this share are no measure of the others: one of 2 s among steps of 0.2 s would decide what each lever gains."""


_ONE_ATTEMPT: Final = (
    "the attempt with the most of the newest steps is replayed: what the steps of others waited for is not known"
)
_NO_STEP_BEFORE: Final = (
    "no step before the replayed one is known: whether submitting trajectories one step earlier helps is not known"
)


class Lever(NamedTuple):
    """Something that would make steps shorter, or longer."""

    kind: str
    """``tool``, ``reward``, ``unblocked_tool``, ``unblocked_reward``, ``tail``, ``agent_loop_workers``, ``replicas``,
    ``reward_workers``, ``between``, ``logging``, ``data_loading``, ``weight_sync``, ``asynchrony``."""
    subject: str
    """Tool, data source, tracker or percentage; empty where the kind says all."""
    seconds: float
    """How much shorter the time from one step to the next would be: the mean, or of ``only_step`` alone."""
    low: float | None
    """Lower end of the interval of 90% for this mean, from the differences between the steps; None: unknown."""
    high: float | None
    share: float
    """``seconds`` as a share of the time from one step to the next, or from ``only_step`` to the next."""
    only_step: int | None = None
    """Number of the step from which nearly all of the gain comes; None: from several."""


class Levers(NamedTuple):
    """The levers of a run."""

    levers: tuple[Lever, ...]
    """The largest gain first; those of one step last."""
    steps: tuple[int | None, ...]
    """Numbers of the steps that were compared."""
    period: float
    """Mean time from the start of one of them to the start of the next one, in seconds."""
    waited: float
    """Mean time of that in which the trainer waited for trajectories."""
    limits: tuple[tuple[str, str, int], ...]
    """Kind, process and slots of each limit that was found."""
    unknown: tuple[str, ...]
    """Sentences about what is not known."""
    left_out: tuple[int | None, ...] = ()
    """Numbers of the steps that took so much longer that they are no measure of the others: only levers of one step name them."""


NOTHING: Final = Levers((), (), 0.0, 0.0, (), ())


def find_levers(steps: Sequence[RecentStep], *, most_items: int = MAX_ITEMS) -> Levers:
    """Return the levers of recorded steps.

    Args:
        steps: Consecutive steps in the order of time.
        most_items: Pieces of trajectories that are replayed; with more, fewer steps are.
    """
    chosen = _choose_steps(steps, most_items)
    reason = _find_reason(chosen)
    if reason:
        return NOTHING._replace(unknown=(reason,))
    schedule = schedules.build(chosen)
    try:
        timeline = replay(schedule)
    except ValueError as error:
        return NOTHING._replace(unknown=(f"the times of its spans contradict each other: {error}",))
    compared = _find_compared(chosen)
    before = timeline.find_periods(schedule)
    usual, long = _divide(compared, before)
    numbers = {index: schedule.numbers[index] for index in compared}
    candidates = list(find_candidates(schedule, timeline))
    # What the first replayed step trained on cannot be submitted in a step before it.
    known = [candidate for candidate in candidates if candidate.kind != "asynchrony" or any(compared)]
    levers = [_measure(candidate, before, numbers, usual) for candidate in known]
    levers.sort(key=lambda lever: (lever.only_step is not None, -lever.seconds, lever.kind, lever.subject))
    waits = timeline.find_waits(schedule)
    return Levers(
        tuple(levers),
        tuple(schedule.numbers[index] for index in usual),
        fmean(before[index] for index in usual) / 1e9,
        fmean(waits[index] for index in usual) / 1e9,
        tuple((pool.kind, pool.instance, pool.slots) for pool in schedule.pools),
        (
            *_describe_unknown(schedule),
            *([_NO_STEP_BEFORE] if len(known) < len(candidates) else []),
            *([_ONE_ATTEMPT] if any(step.is_last for step in steps if step.start_ns != chosen[-1].start_ns) else []),
        ),
        tuple(schedule.numbers[index] for index in long),
    )


def can_replay(steps: Sequence[RecentStep]) -> bool:
    """Return whether the schedule of recorded steps is known well enough to look for levers.

    Args:
        steps: Consecutive steps in the order of time.
    """
    return not _find_reason(_choose_steps(steps, MAX_ITEMS))


def _choose_steps(steps: Sequence[RecentStep], most_items: int) -> Sequence[RecentStep]:
    """Return the steps to replay: without the one with the start-up if there are others, and no more than can be replayed soon.

    They are of one attempt of the run, that with the most: other processes serve the next one, and nothing of it waited for anything before it.
    """
    attempts: list[list[RecentStep]] = []
    for step in steps:
        if step.is_first or not attempts:
            attempts.append([])
        attempts[-1].append(step)
    longest = max(reversed(attempts), key=len, default=[])
    chosen = [step for step in longest if not step.is_first] or longest
    items = 0
    for index in range(len(chosen) - 1, -1, -1):
        items += sum(len(member.path) for member in chosen[index].members)
        if items > most_items and index + 1 < len(chosen):
            return chosen[index + 1 :]
    return chosen


def _find_reason(steps: Sequence[RecentStep]) -> str:
    """Return why nothing can be replayed; empty if it can."""
    if not steps:
        return "no step has ended"
    unlinked, total = schedules.count_unlinked(steps)
    if unlinked > MAX_UNLINKED * total:
        of = f"{total:,} trajectories of the last {counted(len(steps), 'step')}"
        return f"what submitted {unlinked:,} of {of} is not recorded, so their schedule cannot be replayed"
    trainers = {step.path[0].instance for step in steps if step.path}
    if any(member.instance in trainers for step in steps for member in step.members):
        return (
            "trajectories ran in the process of the training loop, so that it is not known what they shared there (its thread, its event loop) "
            "and what would be faster without it: verl-otel explain says what delayed each step"
        )
    return ""


def _find_compared(steps: Sequence[RecentStep]) -> list[int]:
    """Return the indices of the steps whose periods are compared.

    The first one still contains what was submitted before it, and the last one has no next step: both only count if there is nothing else.
    """
    whole = [index for index, step in enumerate(steps) if not step.failed and not step.is_last]
    return [index for index in whole if index] or whole or list(range(len(steps)))


def _divide(compared: Sequence[int], periods: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the indices of the usual steps, and of those that are much longer, if they are few."""
    limit = LONG_FACTOR * median(periods[index] for index in compared)
    long = [index for index in compared if periods[index] > limit]
    usual = [index for index in compared if index not in long]
    few = len(long) < FEW * len(compared) and len(usual) >= FEWEST_STEPS
    return (usual, long) if few else (list(compared), [])


def _measure(
    candidate: Candidate, before: Sequence[int], compared: Mapping[int, int | None], usual: Sequence[int]
) -> Lever:
    """Return the gain of a lever.

    Args:
        candidate: The lever.
        before: Periods without it.
        compared: Numbers of the compared steps, by index.
        usual: Indices of those that are no longer than others.
    """
    after = replay(candidate.schedule).find_periods(candidate.schedule)
    by_step = {index: before[index] - after[index] for index in compared}
    largest = max(by_step, key=lambda index: by_step[index])
    if len(by_step) > 1 and 0 < ONE_STEP_SHARE * sum(by_step.values()) <= by_step[largest]:
        gain, only = by_step[largest], compared[largest]
        return Lever(candidate.kind, candidate.subject, gain / 1e9, None, None, gain / before[largest], only)
    gains = sorted(by_step[index] for index in usual)
    low, high = _bootstrap(gains) if len(gains) >= FEWEST_STEPS else (None, None)
    total = sum(before[index] for index in usual)
    share = sum(gains) / total if total else 0.0
    return Lever(candidate.kind, candidate.subject, fmean(gains) / 1e9, low, high, share)


def _bootstrap(gains: Sequence[int]) -> tuple[float, float]:
    """Return the ends of an interval for the mean of gains in seconds, from means of samples of them with replacement.

    It is the same at each call: the random numbers are seeded.
    """
    chance = random.Random(0)  # noqa: S311 - no secret
    means = sorted(fmean(chance.choices(gains, k=len(gains))) for _ in range(RESAMPLES))
    edge = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return means[edge] / 1e9, means[-edge - 1] / 1e9


def _describe_unknown(schedule: Schedule) -> tuple[str, ...]:
    kinds = {pool.kind for pool in schedule.pools}
    sentences = []
    if "server" not in kinds:
        sentences.append("no limit of the LLM servers was seen: whether smaller batches would be faster is not known")
    sentences.append("a change of what the model writes or learns is not predicted")
    return tuple(sentences)
