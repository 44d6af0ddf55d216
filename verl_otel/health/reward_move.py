# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which components of the reward moved when the mean reward of a run moved most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.health.conditions import DIFFERENCE, NOISE_FACTOR, Scalars, find_reward
from verl_otel.health.recent_past import MIN_VALUES
from verl_otel.semconv.scalar_keys import COMPONENT

MEAN: Final = "_mean"
"""End of the keys of the means of components."""
COMPONENT_FACTOR: Final = 4.0
"""Standard errors beyond which a component has moved. Less than `NOISE_FACTOR`: the steps are given, and not those with
its largest difference."""


class Change(NamedTuple):
    """The means of a value over two windows of steps."""

    name: str
    before: float
    after: float
    moved: bool
    """Whether they differ by more than the noise between steps explains."""


class RewardMove(NamedTuple):
    """The largest change of the mean reward, and its components in the same steps."""

    first: tuple[int, int]
    """First and last step of the window before."""
    last: tuple[int, int]
    """The same of the window after."""
    before: float
    """Mean reward."""
    after: float
    components: tuple[Change, ...]
    """Those that moved first, by name."""


def find_components(steps: Sequence[tuple[int, Scalars]]) -> list[str]:
    """Return the keys of the means of components that a run has."""
    return sorted({key for _, values in steps for key in values if key.startswith(COMPONENT) and key.endswith(MEAN)})


def find_move(steps: Sequence[tuple[int, Scalars]], size: int) -> RewardMove | None:
    """Return the largest move of the mean reward; None without components, with too few steps, or where noise explains it.

    Args:
        steps: Number and scalars of each step, in the order of time.
        size: Steps of a window.
    """
    keys = find_components(steps)
    rows = [(number, reward, values) for number, values in steps if (reward := find_reward(values)) is not None]
    if not keys or len(rows) < max(MIN_VALUES, 2 * size):
        return None
    rewards = [reward for _, reward, _ in rows]
    begin, end = _find_windows(rewards, size)
    before, after = fmean(rewards[begin : begin + size]), fmean(rewards[end : end + size])
    if not _differ(before, after, rewards, size, NOISE_FACTOR):
        return None
    windows = [[values for _, _, values in rows[place : place + size]] for place in (begin, end)]
    changes = [change for key in keys if (change := _compare(key, windows, steps, size)) is not None]
    first, last = ((rows[place][0], rows[place + size - 1][0]) for place in (begin, end))
    return RewardMove(first, last, before, after, tuple(sorted(changes, key=lambda change: not change.moved)))


def _find_windows(values: Sequence[float], size: int) -> tuple[int, int]:
    """Return where the two windows begin whose means differ most, of those that do not overlap, in one pass."""
    sums = [0.0, *itertools.accumulate(values)]
    means = [sums[place + size] - sums[place] for place in range(len(values) - size + 1)]
    lowest = highest = 0
    best = (0, size)
    for end in range(size, len(means)):
        lowest = min(lowest, end - size, key=means.__getitem__)
        highest = max(highest, end - size, key=means.__getitem__)
        best = max(best, (lowest, end), (highest, end), key=lambda pair: abs(means[pair[1]] - means[pair[0]]))
    return best


def _compare(
    key: str, windows: Sequence[Sequence[Scalars]], steps: Sequence[tuple[int, Scalars]], size: int
) -> Change | None:
    """Return the change of a component; None if a window does not have it."""
    found = [[values[key] for values in window if key in values] for window in windows]
    if not all(found):
        return None
    before, after = map(fmean, found)
    course = [values[key] for _, values in steps if key in values]
    return Change(
        key.removeprefix(COMPONENT).removesuffix(MEAN),
        before,
        after,
        _differ(before, after, course, size, COMPONENT_FACTOR),
    )


def _differ(before: float, after: float, values: Sequence[float], size: int, factor: float) -> bool:
    """Return whether two means differ by more than a number of standard errors, by the noise from one step to the next."""
    noise = DIFFERENCE * fmean(abs(later - earlier) for earlier, later in itertools.pairwise(values))
    return abs(after - before) > factor * noise * math.sqrt(2 / size)
