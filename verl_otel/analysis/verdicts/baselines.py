# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Typical durations: medians of the last steps by kind of work, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from verl_otel.analysis.typed import Keyed

# -- Thresholds for verdicts. A wrong verdict costs more trust than a missing one --
#
# A duration is a cause when it exceeds its peers by all of: a floor in seconds, a share of the step, a multiple of the
# spread of its peers and, where peers are few, a multiple of what they took. What the numbers were measured on:
# ``docs/explanation/verdicts.md``.

TRAJECTORY_SECONDS: Final = 0.25
"""A wait for one trajectory below this is scheduling: on a busy machine one preemption of a process costs up to a fifth of a second."""
PHASE_SECONDS: Final = 0.5
"""The same for a phase, in which a worker group may be called several times: of 425 phases of healthy trainings on two busy cores the
worst took 0.22 s longer than the median of the others."""
RANK_SECONDS: Final = 0.5
"""The same for a rank that is late in a call of its group."""
STEP_SHARE: Final = 0.15
"""Less than a seventh of a step is not worth investigating; steps differ by a tenth from one to the next."""
USUAL_LENGTH: Final = 1.1
"""A step that is at most this many times as long as the median of the others took no longer than usual: see `STEP_SHARE`."""
USUAL_FLOORS: Final = 2.0
"""In such a step one trajectory must have cost this many times the floor: in 64 trainings with planted faults the verdicts on trajectories in such
steps were 4, of 0.28 to 0.38 s, and none was right."""
SPREADS: Final = 4.0
"""How many median absolute deviations above the median: 2.7 standard deviations of a normal distribution, one value in 300."""
FEW_PEERS: Final = 5
"""Below this many peers their spread is unreliable: two that happen to be equal have none."""
FEW_FACTOR: Final = 2.0
"""With few peers a duration has to be this many times theirs: a noisy machine adds half."""
FEW_SECONDS: Final = 0.5
"""And longer by this: one preemption of the process doubles short durations."""
GROUP_SHARE: Final = 0.8
"""One trajectory is named instead of a group where it alone explains this share of the group's saving."""
FEWEST_IN_TURN: Final = 3
"""Trajectories of a step, run one after the other, of which each was delayed by the same tool or reward: that is named instead of them."""
DETAIL_SHARE: Final = 0.5
"""A part of a phase is named as the cause where it explains at least this share of what the phase took too long."""
PACE_SECONDS: Final = 0.05
"""Shorter phases are not used to measure the pace of a step."""
PACE_PHASES: Final = 2
"""Minimum number of other phases to measure the pace."""
LOOK_AHEAD: Final = 32
"""Steps after which a verdict is final: medians need peers from both sides, and memory has to end."""
REMEMBERED_STEPS: Final = 64
"""Steps whose durations make the medians. Responses grow over a run: what was typical a thousand steps ago is not."""
SAMPLE: Final = 16
"""Number of trajectories of a step whose durations are kept: the median of 16 is close enough to that of a thousand."""
MAX_KEYS: Final = 1000
"""Maximum number of kinds of work with baselines. Beyond it, new kinds (names made of ids) have no peers and get no verdict."""
MAX_GROUPS: Final = 8
"""Savings by group that are kept for a step, the largest."""


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


Key = tuple[str, ...]
"""A kind of work, in words."""


@dataclass
class Baselines:
    """Durations of the last steps by kind of work."""

    _entries: Keyed[Key, list[_Entry]] = field(default_factory=Keyed)
    _first: Keyed[Key, int] = field(default_factory=Keyed)

    def learn(self, key: Key, step: int, values: Iterable[float]) -> None:
        """Add the durations of one kind of work in one step."""
        baseline = measure(values)
        if baseline is not None:
            self.take(key, step, baseline)

    def take(self, key: Key, step: int, baseline: Baseline) -> None:
        """Add the baseline of one kind of work in one step."""
        entries = self._entries.get(key)
        if entries is None:
            if len(self._entries) >= MAX_KEYS:
                return
            entries = self._entries[key] = []
            self._first[key] = step
        entries.append(_Entry(step, baseline))
        del entries[:-REMEMBERED_STEPS]

    def is_first(self, key: Key, step: int) -> bool:
        """Return whether a kind of work occurred in this step for the first time, or is unknown."""
        return self._first.get(key, step) == step

    def of_others(self, key: Key, step: int) -> Baseline | None:
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
