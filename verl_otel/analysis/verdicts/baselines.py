# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Typical durations: medians of the last steps by kind of work, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from statistics import median
from typing import NamedTuple

from verl_otel.analysis.verdicts.thresholds import (
    FEW_FACTOR,
    FEW_PEERS,
    FEW_SECONDS,
    MAX_KEYS,
    REMEMBERED_STEPS,
    SPREADS,
)


class Baseline(NamedTuple):
    """The durations that a value is compared with."""

    median: float
    """Seconds."""
    spread: float
    """Median absolute deviation of the peers."""
    peers: int

    def allows(self, seconds: float, floor: float) -> bool:
        """Return whether a duration is within the normal range.

        Args:
            seconds: The duration.
            floor: Minimum excess in seconds.
        """
        least = max(floor, SPREADS * self.spread)
        if self.peers < FEW_PEERS:
            least = max(least, FEW_SECONDS, (FEW_FACTOR - 1) * self.median)
        return seconds - self.median < least


def measure(values: Iterable[float]) -> Baseline | None:
    """Return the baseline of some durations; None if there are none."""
    durations = list(values)
    if not durations:
        return None
    middle = median(durations)
    return Baseline(middle, median([abs(value - middle) for value in durations]), len(durations))


class _Entry(NamedTuple):
    step: int
    baseline: Baseline


class Baselines:
    """Durations of the last steps by kind of work."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, deque[_Entry]] = {}
        self._first: dict[Hashable, int] = {}

    def learn(self, key: Hashable, step: int, values: Iterable[float]) -> None:
        """Add the durations of one kind of work in one step."""
        baseline = measure(values)
        if baseline is not None:
            self.take(key, step, baseline)

    def take(self, key: Hashable, step: int, baseline: Baseline) -> None:
        """Add the baseline of one kind of work in one step."""
        entries = self._entries.get(key)
        if entries is None:
            if len(self._entries) >= MAX_KEYS:
                return
            entries = self._entries[key] = deque(maxlen=REMEMBERED_STEPS)
            self._first[key] = step
        entries.append(_Entry(step, baseline))

    def is_first(self, key: Hashable, step: int) -> bool:
        """Return whether a kind of work occurred in this step for the first time, or is unknown."""
        return self._first.get(key, step) == step

    def of_others(self, key: Hashable, step: int) -> Baseline | None:
        """Return the baseline of a kind of work in other steps; None if it occurred in no other.

        The step of the first occurrence counts only where there is no other: first times are slower.
        """
        others = [entry for entry in self._entries.get(key, ()) if entry.step != step]
        later = [entry for entry in others if entry.step != self._first[key]]
        baselines = [entry.baseline for entry in later or others]
        across_steps = measure(baseline.median for baseline in baselines)
        if across_steps is None:
            return None
        within_steps = median([baseline.spread for baseline in baselines])
        return across_steps._replace(spread=max(across_steps.spread, within_steps))
