# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks the levers of a run by how much shorter its steps would be, with the uncertainty of that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.analysis.levers import recording
from verl_otel.analysis.levers.candidates import Candidate, find_candidates
from verl_otel.analysis.levers.recent_steps import RecentStep
from verl_otel.analysis.levers.replay import Timeline, replay
from verl_otel.analysis.levers.schedule import Schedule

FEWEST_STEPS: Final = 3
"""With fewer steps the uncertainty is unknown."""
CONFIDENCE: Final = 0.9
RESAMPLES: Final = 1_000
MAX_UNLINKED: Final = 0.05
"""Share of trajectories without a known submitter above which nothing is replayed."""
MAX_ITEMS: Final = 200_000
"""Pieces of trajectories that are replayed at most: 10 s on one core."""


class Lever(NamedTuple):
    """Something that would make steps shorter, or longer."""

    kind: str
    """``tool``, ``reward``, ``unblocked_tool``, ``unblocked_reward``, ``tail``, ``agent_loop_workers``, ``replicas``,
    ``reward_workers``, ``between``, ``logging``, ``data_loading``, ``weight_sync``, ``asynchrony``."""
    subject: str
    """Tool, data source, tracker or percentage; empty where the kind says all."""
    seconds: float
    """Mean of how much shorter the time from one step to the next would be."""
    low: float | None
    """Lower end of the interval of 90 % for this mean, from the differences between the steps; None: unknown."""
    high: float | None
    share: float
    """``seconds`` as a share of the time from one step to the next."""


class Levers(NamedTuple):
    """The levers of a run."""

    levers: tuple[Lever, ...]
    """The largest gain first."""
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


NOTHING: Final = Levers((), (), 0.0, 0.0, (), ())


def find_levers(steps: Sequence[RecentStep], *, most_items: int = MAX_ITEMS) -> Levers:
    """Return the levers of recorded steps.

    Args:
        steps: Consecutive steps in the order of time.
        most_items: Pieces of trajectories that are replayed; with more, fewer steps are.
    """
    chosen = _choose(steps, most_items)
    reason = _find_reason(chosen)
    if reason:
        return NOTHING._replace(unknown=(reason,))
    schedule = recording.build(chosen)
    try:
        timeline = replay(schedule)
    except ValueError as error:
        return NOTHING._replace(unknown=(f"the times of its spans contradict each other: {error}",))
    compared = _find_compared(chosen)
    before = timeline.find_periods(schedule)
    levers = [_measure(candidate, before, compared) for candidate in find_candidates(schedule, timeline)]
    levers.sort(key=lambda lever: (-lever.seconds, lever.kind, lever.subject))
    return Levers(
        tuple(levers),
        tuple(schedule.numbers[index] for index in compared),
        fmean(before[index] for index in compared) / 1e9,
        _mean_wait(timeline, schedule, compared),
        tuple((pool.kind, pool.instance, pool.slots) for pool in schedule.pools),
        _describe_unknown(schedule),
    )


def _choose(steps: Sequence[RecentStep], most_items: int) -> Sequence[RecentStep]:
    """Return the steps to replay: without the one with the start-up if there are others, and no more than can be replayed soon."""
    chosen = [step for step in steps if not step.is_first] or list(steps)
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
    unlinked, total = recording.count_unlinked(steps)
    if unlinked > MAX_UNLINKED * total:
        return f"what submitted {unlinked:,} of {total:,} trajectories is not recorded, so their schedule cannot be replayed"
    trainers = {step.path[0].instance for step in steps if step.path}
    if any(member.instance in trainers for step in steps for member in step.members):
        return "trajectories ran in the process of the trainer: what they waited for there is not recorded"
    return ""


def _find_compared(steps: Sequence[RecentStep]) -> list[int]:
    """Return the indices of the steps whose periods are compared.

    The first one still contains what was submitted before it, and the last one has no next step: both only count if there is nothing else.
    """
    whole = [index for index, step in enumerate(steps) if not step.failed and not step.is_last]
    return [index for index in whole if index] or whole or list(range(len(steps)))


def _measure(candidate: Candidate, before: Sequence[int], compared: Sequence[int]) -> Lever:
    after = replay(candidate.schedule).find_periods(candidate.schedule)
    gains = sorted(before[index] - after[index] for index in compared)
    low, high = _bootstrap(gains) if len(gains) >= FEWEST_STEPS else (None, None)
    total = sum(before[index] for index in compared)
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


def _mean_wait(timeline: Timeline, schedule: Schedule, compared: Sequence[int]) -> float:
    waits = timeline.find_waits(schedule)
    return fmean(waits[index] for index in compared) / 1e9


def _describe_unknown(schedule: Schedule) -> tuple[str, ...]:
    kinds = {pool.kind for pool in schedule.pools}
    sentences = []
    if "server" not in kinds:
        sentences.append("no limit of the LLM servers was seen: whether smaller batches would be faster is not known")
    sentences.append("a change of what the model writes or learns is not predicted")
    return tuple(sentences)
