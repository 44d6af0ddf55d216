# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From rounds of processes to a figure, how sure it is, and whether it keeps what was promised.

The median over processes has an interval by order statistics, which assumes nothing of the noise: of nine values the second and the
eighth enclose the median of all processes that could have been started with 96 % (Conover, "Practical Nonparametric Statistics", 3.2).
A ratio is formed in each round, where both sides had the same neighbours, and its median taken in each process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95
"""How sure an interval is at least, if there are enough processes for it."""
BETWEEN_RUNS: Final = 0.08
"""By how much of itself a figure may differ between two whole runs, which none of them can see: layout of memory, who else is on the machine.

Of three runs in two days all ratios but one were within 7 % of their middle.
"""
MET: Final = "met"
NOT_MET: Final = "not met"
NOT_SIGNIFICANT: Final = "not significant"
"""The interval, and what another run may find, holds the promised figure: a quieter machine would perhaps tell."""
NOT_MEASURED: Final = "not measured"


class Estimate(NamedTuple):
    """A median over processes."""

    value: float
    low: float
    high: float
    confidence: float
    """Probability that the interval holds the true median; of three processes it is only 75 %."""
    processes: int


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median of values and the narrowest symmetric interval of order statistics around it.

    Args:
        values: One of each process; at least one.
        confidence: How sure it shall be. Where all values are too few for that, it goes from the least to the largest.
    """
    ordered = sorted(values)
    count = len(ordered)
    outside, beyond = 0.5**count, 0
    while beyond + 1 < count / 2:
        more = outside + math.comb(count, beyond + 1) * 0.5**count
        if 1 - 2 * more < confidence:
            break
        outside, beyond = more, beyond + 1
    return Estimate(median(ordered), ordered[beyond], ordered[count - 1 - beyond], max(0.0, 1 - 2 * outside), count)


def overhead(seconds: Sequence[float], baseline: Sequence[float], *, steady: bool) -> float:
    """Return what one process says an operation costs over the baseline, in seconds; never below zero.

    Args:
        seconds: One operation, by round.
        baseline: The same without telemetry; empty if there is no such thing.
        steady: Take the least of the rounds, not their median.
    """
    pick = min if steady else median
    return max(0.0, pick(seconds) - (pick(baseline) if baseline else 0.0))


def ratio(theirs: Sequence[float], ours: Sequence[float], baseline: Sequence[float]) -> float | None:
    """Return how many times our overhead theirs is in one process: the median of the ratios of its rounds.

    A round in which ours took no longer than the baseline says nothing and is left out.

    Returns:
        The ratio, or None where more than half of the rounds say nothing.
    """
    nothing = list(baseline) or [0.0] * len(ours)
    ratios = [
        (their - base) / (our - base) for their, our, base in zip(theirs, ours, nothing, strict=True) if our > base
    ]
    return median(ratios) if len(ratios) * 2 > len(ours) else None


def differences(seconds: Sequence[float], baseline: Sequence[float]) -> Sequence[float]:
    """Return by how much of the baseline something is slower in each round of one process, below zero if it is faster."""
    return [(value - base) / base for value, base in zip(seconds, baseline, strict=True)]


def upper_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Return what the median of all that could have been measured lies below, or None if the values are too few to be that sure.

    One-sided, by order statistics like `estimate`: the median is above the k-th of n values exactly when at least k of them fell on its
    lower side, each with one half. Of five values it is the largest with 97 %, of nine the eighth with 98 %; four are never enough.

    Args:
        values: One of each process.
        confidence: How sure it shall be.
    """
    ordered, count = sorted(values), len(values)
    bound, above = None, 0.0
    for rank in range(count, 0, -1):
        above += math.comb(count, rank) * 0.5**count
        if above > 1 - confidence:
            break
        bound = ordered[rank - 1]
    return bound


class Pairs(NamedTuple):
    """What pairs of two things that ran at the same time say, beside pairs of the same thing: shares of the baseline."""

    most: float | None
    """What the slow-down is below, as sure as `CONFIDENCE`; None: too few pairs. It is never a point: the truth may be nothing."""
    least: float | None
    """What it is above, likewise; below zero it may be none."""
    resolution: float | None
    """How far apart two of the same were: their interval's end that is farther from zero. Nothing smaller can be seen here."""
    fair: bool
    """Whether zero is inside the interval of the same against itself. If not, the order of the runs shows, and the rest says little."""
    number: int

    @property
    def outcome(self) -> str:
        """Return "slower", "not significant", "unfair" or "not measured"."""
        if self.most is None or self.least is None or self.resolution is None:
            return NOT_MEASURED
        if not self.fair:
            return "unfair"
        return "slower" if self.least > 0 and self.most > self.resolution else NOT_SIGNIFICANT


def compare_pairs(changed: Sequence[float], same: Sequence[float]) -> Pairs:
    """Return what pairs say, and what they could have seen.

    Args:
        changed: `differences` of all processes between the changed thing and the baseline.
        same: That between the baseline and its double.
    """
    most, below = upper_bound(changed), upper_bound([-value for value in changed])
    high, low = upper_bound(same), upper_bound([-value for value in same])
    least = None if below is None else -below
    if high is None or low is None:
        return Pairs(most, least, None, True, len(changed))
    return Pairs(most, least, max(high, low), high >= 0 and low >= 0, len(changed))


def judge_at_most(measured: Estimate | None, bound: float) -> str:
    """Return whether a figure is at most ``bound``, allowing for the difference between runs."""
    if measured is None:
        return NOT_MEASURED
    if measured.high * (1 + BETWEEN_RUNS) <= bound:
        return MET
    return NOT_MET if measured.low > bound * (1 + BETWEEN_RUNS) else NOT_SIGNIFICANT


def judge_at_least(measured: Estimate | None, bound: float) -> str:
    """Return whether a figure is at least ``bound``, allowing for the difference between runs."""
    if measured is None:
        return NOT_MEASURED
    if measured.low >= bound * (1 + BETWEEN_RUNS):
        return MET
    return NOT_MET if measured.high * (1 + BETWEEN_RUNS) < bound else NOT_SIGNIFICANT
