# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From when on something is worth a verdict. A verdict that is wrong costs more trust than one that is missing.

Something is a cause when it took longer than its peers by all of: a floor in seconds, a share of the step, a multiple of the spread of
its peers and, where peers are few, a multiple of what they took. What the numbers were measured on: ``docs/guide/verdicts.md``.
"""

from __future__ import annotations

from typing import Final

TRAJECTORY_SECONDS: Final = 0.25
"""A wait for one trajectory below this is scheduling: on a busy machine one preemption of a process costs up to a fifth of a second."""
PHASE_SECONDS: Final = 0.5
"""The same for a phase, in which a worker group may be called several times: of 425 phases of healthy trainings on two busy cores the
worst took 0.22 s longer than the median of the others."""
RANK_SECONDS: Final = 0.5
"""The same for a rank that comes late to a call of its group."""
STEP_SHARE: Final = 0.15
"""Nobody looks for the cause of less than a seventh of a step; steps differ by a tenth from one to the next."""
SPREADS: Final = 4.0
"""How many median absolute deviations above the median: 2.7 standard deviations of a normal distribution, one value in 300."""
FEW_PEERS: Final = 5
"""Below this many peers their spread says little: two that happen to be equal have none."""
FEW_FACTOR: Final = 2.0
"""Where peers are few, it has to be this many times as long as they: a noisy machine makes things half as long again."""
FEW_SECONDS: Final = 0.5
"""And longer by this: short things are doubled by one preemption of the process."""
GROUP_SHARE: Final = 0.8
"""One trajectory is named, and no group, where it alone explains this share of what the group does."""
DETAIL_SHARE: Final = 0.5
"""A part of a phase is named as the cause where it explains at least this share of what the phase took too long."""
PACE_SECONDS: Final = 0.05
"""Phases that take less are no measure of how fast the whole step went."""
PACE_PHASES: Final = 2
"""So many other phases have to tell it."""
LOOK_AHEAD: Final = 32
"""Steps after which a verdict is final: medians need peers from both sides, and memory has to end."""
REMEMBERED_STEPS: Final = 64
"""Steps whose durations make the medians. Responses grow over a run: what was typical a thousand steps ago is not."""
SAMPLE: Final = 16
"""Trajectories of a step whose durations are remembered: the median of 16 is near enough to that of a thousand."""
MAX_KEYS: Final = 1000
"""Kinds of things whose durations are remembered. Beyond them, new ones (names made of ids) have no peers and get no verdict."""
MAX_GROUPS: Final = 8
"""Savings by group that are kept for a step, the largest."""
