# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Tests whether two runs differ, from a few steps of each: Yuen's trimmed-means test for pairs, extended by noise between runs.

* Trimmed means: Yuen, "The Two-Sample Trimmed t for Unequal Population Variances" (Biometrika 61, 1974). One slow step in a run of eight
  moves neither the mean nor its error much; the variance is that of the winsorized values.
* Pairs: the n-th step of one run is compared with the n-th of the other (the dependent form of the test: Wilcox, "Introduction to Robust
  Estimation and Hypothesis Testing", section 5.9.5). Steps become shorter while a run warms up and longer while responses grow, in both runs
  alike: what they have in common is no noise.
* What is left of neighbouring steps may still be alike. The variance of their mean grows by (1 + r) / (1 - r) where r is the correlation of
  neighbours (Bayley and Hammersley, 1946), corrected for its bias in short series (Kendall, 1954) and, because a few steps say little about
  it, drawn towards 0 as if `PRIOR_STEPS` more had shown none.
* Two runs of the same thing differ by more than their steps tell (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013):
  where the processes were placed, the machine's clocks, its neighbours. Two runs cannot show how much; a share of ``noise`` is assumed of
  each and added to the variance (Satterthwaite's rule then gives the degrees of freedom).
* More than one question: Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).

Deterministic: nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Annotated, Final, NamedTuple

from verl_otel._internal.quantiles import quantile
from verl_otel.analysis.document import Document, Number, about

TRIMMED: Final = 0.2
"""Share of the steps trimmed at either end: Wilcox' recommendation, 0.9 of the mean's efficiency on normal noise."""
NOISE: Final = 0.02
"""Relative standard deviation of a run's level among equivalent runs."""
FEWEST: Final = 4
"""Minimum number of values of a run."""
MOST_CORRELATED: Final = 0.8
"""Upper limit of the estimated correlation, unreliable for few steps; the variance is then nine times as large."""
PRIOR_STEPS: Final = 20
"""Weight, in steps, of the prior assumption that neighbours are uncorrelated: chosen by simulation (`docs/explanation/comparison.md`)."""


class Sample(Document):
    """Steps of one run."""

    steps: int
    typical: Annotated[Number, about("mean without the fastest and slowest fifth")]
    median: Number
    low: Annotated[Number, about("first quartile")]
    high: Annotated[Number, about("third quartile")]


class Difference(NamedTuple):
    """The result of testing two runs."""

    a: Sample
    b: Sample
    change: float
    """Change of the typical value relative to A; infinite where A's is zero."""
    p: float
    """Probability of such a difference, or a larger one, between equivalent runs."""
    error: float
    """Standard error of the change."""
    freedom: float
    """Degrees of freedom of that error."""

    def detectable(self, level: float) -> float:
        """Return the smallest relative change that would have been significant at a level."""
        return critical(self.freedom, level) * self.error


def describe(values: Sequence[float]) -> Sample:
    """Return the statistics of a run."""
    ordered = sorted(values)
    kept = ordered[_cut(len(ordered)) : len(ordered) - _cut(len(ordered))]
    return Sample(len(ordered), fmean(kept), median(ordered), quantile(ordered, 0.25), quantile(ordered, 0.75))


def differ(a: Sequence[float], b: Sequence[float], *, noise: float = NOISE) -> Difference:
    """Test the difference of two runs. Of the longer one, the first steps count.

    Args:
        a: One value of each step, in the order of time; at least `FEWEST`, none negative.
        b: The same for the other run.
        noise: Relative standard deviation of a run's level among runs of the same thing.
    """
    steps = min(len(a), len(b))
    first, second = describe(a[:steps]), describe(b[:steps])
    apart = [right - left for left, right in zip(_winsorize(a[:steps]), _winsorize(b[:steps]), strict=True)]
    middle = fmean(apart)
    stretch = _stretch(apart)
    kept = steps - 2 * _cut(steps)
    from_steps = stretch * sum((value - middle) ** 2 for value in apart) / (kept * (kept - 1))
    squared = from_steps + noise**2 * (first.typical**2 + second.typical**2)
    freedom = squared**2 / (from_steps**2 * stretch / (kept - 1)) if from_steps else math.inf
    error = math.sqrt(squared)
    more = second.typical - first.typical
    p = float(not more) if not error else two_sided(abs(more) / error, freedom)
    change = more / first.typical if first.typical else (math.inf if more else 0.0)
    return Difference(first, second, change, p, error / first.typical if first.typical else math.inf, freedom)


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's procedure: each may be compared with the overall level."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    adjusted = [1.0] * len(values)
    reached = 0.0
    for rank, index in enumerate(order):
        reached = max(reached, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = reached
    return adjusted


def find_level(adjusted: Sequence[float], index: int, level: float) -> float:
    """Return the level at which Holm's procedure tests one value, given the others: below it, the value is significant.

    Args:
        adjusted: What `holm` returned.
        index: The place of the value.
        level: The overall level.
    """
    others = sum(value < level for place, value in enumerate(adjusted) if place != index)
    return level / (len(adjusted) - others)


def two_sided(t: float, freedom: float) -> float:
    """Return the probability of Student's t beyond ``t`` on either side."""
    if math.isinf(freedom):
        return math.erfc(t / math.sqrt(2))
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def critical(freedom: float, level: float) -> float:
    """Return the t beyond which, on either side, the probability is ``level``."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > level and high < 1e9:  # noqa: PLR2004 - one degree of freedom at one in a billion
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > level else (low, middle)
    return high


def _cut(count: int) -> int:
    return int(TRIMMED * count)


def _winsorize(values: Sequence[float]) -> list[float]:
    """Return the values in their order, the extreme ones replaced by the nearest that is kept."""
    ordered = sorted(values)
    low, high = ordered[_cut(len(ordered))], ordered[len(ordered) - 1 - _cut(len(ordered))]
    return [min(high, max(low, value)) for value in values]


def _stretch(values: Sequence[float]) -> float:
    """Return the factor by which correlated neighbours increase the variance of a mean."""
    middle, count = fmean(values), len(values)
    rest = [value - middle for value in values]
    squares = sum(value * value for value in rest)
    if not squares:
        return 1.0
    correlation = sum(left * right for left, right in pairwise(rest)) / squares
    corrected = (correlation + (1 + 3 * correlation) / count) * count / (count + PRIOR_STEPS)
    r = min(MOST_CORRELATED, max(0.0, corrected))
    return (1 + r) / (1 - r)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function (continued fraction 26.5.8 of Abramowitz and Stegun, by Lentz' method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(b, a, 1 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    result = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            result *= c * d
        if abs(c * d - 1) < 1e-14:  # noqa: PLR2004 - a float holds no more
            break
    return result
