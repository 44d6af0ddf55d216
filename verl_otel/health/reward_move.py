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
from verl_otel.health.recent_past import MIN_VALUES, find_jump
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
    """The largest change of the mean reward and its components in the same steps; where it stayed, that of the component that changed most."""

    first: tuple[int, int]
    """First and last step of the window before."""
    last: tuple[int, int]
    """The same of the window after."""
    step: int | None
    """Step at which it jumped; None: it moved over many steps."""
    before: float
    """Mean reward."""
    after: float
    moved: bool
    """Whether the mean reward moved; False: only components did."""
    components: tuple[Change, ...]
    """Those that moved first, by name."""


def find_components(steps: Sequence[tuple[int, Scalars]]) -> list[str]:
    """Return the keys of the means of components that a run has."""
    return sorted({key for _, values in steps for key in values if key.startswith(COMPONENT) and key.endswith(MEAN)})


def find_move(steps: Sequence[tuple[int, Scalars]], size: int) -> RewardMove | None:
    """Return the largest move; None without components, with too few steps, or where noise explains it.

    Args:
        steps: Number and scalars of each step, in the order of time.
        size: Steps of a window.
    """
    keys = find_components(steps)
    rows = [(number, reward, values) for number, values in steps if (reward := find_reward(values)) is not None]
    if not keys or len(rows) < max(MIN_VALUES, 2 * size):
        return None
    courses = {key: [values.get(key, math.nan) for _, _, values in rows] for key in keys}
    whole = {key: course for key, course in courses.items() if not any(map(math.isnan, course))}
    rewards = [reward for _, reward, _ in rows]
    ratio = _find_ratio(rewards, size)
    course = (
        rewards
        if ratio > NOISE_FACTOR
        else max(whole.values(), key=lambda one: _find_ratio(one, size), default=rewards)
    )
    if _find_ratio(course, size) <= NOISE_FACTOR:
        return None
    begin, end = _find_windows(course, size)
    before, after = fmean(rewards[begin : begin + size]), fmean(rewards[end : end + size])
    windows = [[values for _, _, values in rows[place : place + size]] for place in (begin, end)]
    changes = [change for key in keys if (change := _compare(key, windows, steps, size)) is not None]
    first, last = ((rows[place][0], rows[place + size - 1][0]) for place in (begin, end))
    jump = find_jump(course[begin : end + size])
    step = None if jump is None else rows[begin + jump][0]
    components = tuple(sorted(changes, key=lambda change: not change.moved))
    return RewardMove(first, last, step, before, after, ratio > NOISE_FACTOR, components)


def _find_ratio(values: Sequence[float], size: int) -> float:
    """Return the largest difference between two windows, in standard errors."""
    begin, end = _find_windows(values, size)
    return _count_errors(fmean(values[begin : begin + size]), fmean(values[end : end + size]), values, size)


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
    moved = _count_errors(before, after, course, size) > COMPONENT_FACTOR
    return Change(key.removeprefix(COMPONENT).removesuffix(MEAN), before, after, moved)


def _count_errors(before: float, after: float, values: Sequence[float], size: int) -> float:
    """Return the difference of two means in standard errors, by the noise from one step to the next."""
    noise = DIFFERENCE * fmean(abs(later - earlier) for earlier, later in itertools.pairwise(values))
    return abs(after - before) / (noise * math.sqrt(2 / size)) if noise else 0.0
