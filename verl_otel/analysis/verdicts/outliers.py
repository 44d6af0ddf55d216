# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Detects outliers: compares each value with the median of the others.

The median excludes the value itself, so that an outlier does not move its own baseline. The modified z-score
its limit of 3.5: Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from statistics import median
from typing import Final

OUTLIER: Final = 3.5
"""Minimum distance from the median of the others, in scaled median absolute deviations."""
_MAD_TO_DEVIATION: Final = 1.4826
"""A normal distribution's standard deviation is so many of its median absolute deviations."""


class RankValues:
    """One value per rank of a call, at least two; sorted once, as groups have thousands of ranks.

    Args:
        values: One for each rank.
    """

    def __init__(self, values: Iterable[float]) -> None:
        self._ordered = sorted(values)

    def median_without(self, own: float) -> float:
        """Return the median of the others; ``own`` is one of the values."""
        ordered, left_out = self._ordered, bisect_left(self._ordered, own)
        half, is_odd = divmod(len(ordered) - 1, 2)
        upper = ordered[half + (half >= left_out)]
        return upper if is_odd else (ordered[half - 1 + (half - 1 >= left_out)] + upper) / 2

    def excess(self, own: float, lead: float) -> float:
        """Return by how much a value exceeds the median of the others; 0 if by less than ``lead`` or if it is no outlier."""
        median_of_others = self.median_without(own)
        beyond = own - median_of_others
        if beyond <= 0 or beyond < lead:
            return 0.0  # this is what most ranks end with: their spread need not be known
        left_out = bisect_left(self._ordered, own)
        others = (*self._ordered[:left_out], *self._ordered[left_out + 1 :])
        spread = _MAD_TO_DEVIATION * median([abs(value - median_of_others) for value in others])
        return beyond if beyond > OUTLIER * spread else 0.0
