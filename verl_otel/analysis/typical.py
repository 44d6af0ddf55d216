# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How long things typically take: per kind of thing the medians of the last steps, bounded however long the run is."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from verl_otel.analysis.thresholds import FEW_FACTOR, FEW_PEERS, FEW_SECONDS, MAX_KEYS, REMEMBERED_STEPS, SPREADS


class Yardstick(NamedTuple):
    """What something is compared with."""

    median: float
    """Seconds."""
    spread: float
    """Median absolute deviation of the peers."""
    peers: int

    def allows(self, seconds: float, floor: float) -> bool:
        """Return whether something may take so long without being remarkable.

        Args:
            seconds: How long it took.
            floor: By how much it has to be longer at least.
        """
        least = max(floor, SPREADS * self.spread)
        if self.peers < FEW_PEERS:
            least = max(least, FEW_SECONDS, (FEW_FACTOR - 1) * self.median)
        return seconds - self.median < least


def measure(values: Iterable[float]) -> Yardstick | None:
    """Return the yardstick that some durations make; None of none."""
    known = sorted(values)
    if not known:
        return None
    middle = _find_middle(known)
    return Yardstick(middle, _find_middle(sorted([abs(value - middle) for value in known])), len(known))


def _find_middle(ordered: Sequence[float]) -> float:
    """Return the median of sorted numbers."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class _Entry(NamedTuple):
    step: int
    found: Yardstick


class Typical:
    """Durations of the last steps by kind of thing."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, deque[_Entry]] = {}
        self._first: dict[Hashable, int] = {}

    def learn(self, key: Hashable, step: int, values: Iterable[float]) -> None:
        """Take the durations of one kind of thing in one step."""
        found = measure(values)
        if found is not None:
            self.take(key, step, found)

    def take(self, key: Hashable, step: int, found: Yardstick) -> None:
        """Take what the durations of one kind of thing in one step make."""
        entries = self._entries.get(key)
        if entries is None:
            if len(self._entries) >= MAX_KEYS:
                return
            entries = self._entries[key] = deque(maxlen=REMEMBERED_STEPS)
            self._first[key] = step
        entries.append(_Entry(step, found))

    def is_first(self, key: Hashable, step: int) -> bool:
        """Return whether a kind of thing occurred in this step for the first time, or is not remembered."""
        return self._first.get(key, step) == step

    def of_others(self, key: Hashable, step: int) -> Yardstick | None:
        """Return what a kind of thing takes in other steps; None if it occurred in no other.

        The step in which it occurred first counts only where there is no other: first times are slower.
        """
        others = [each for each in self._entries.get(key, ()) if each.step != step]
        later = [each for each in others if each.step != self._first[key]]
        found = [each.found for each in later or others]
        between = measure(each.median for each in found)
        if between is None:
            return None
        within = _find_middle(sorted([each.spread for each in found]))
        return between._replace(spread=max(between.spread, within))
