# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Thresholds for verdicts. A wrong verdict costs more trust than a missing one.

A duration is a cause when it exceeds its peers by all of: a floor in seconds, a share of the step, a multiple of the spread of
its peers and, where peers are few, a multiple of what they took. What the numbers were measured on: ``docs/explanation/verdicts.md``.
"""

from __future__ import annotations

from typing import Final

TRAJECTORY_SECONDS: Final = 0.25
"""A wait for one trajectory below this is scheduling: on a busy machine one preemption of a process costs up to a fifth of a second."""
PHASE_SECONDS: Final = 0.5
"""The same for a phase, in which a worker group may be called several times: of 425 phases of healthy trainings on two busy cores the
worst took 0.22 s longer than the median of the others."""
RANK_SECONDS: Final = 0.5
"""The same for a rank that is late in a call of its group."""
STEP_SHARE: Final = 0.15
"""Less than a seventh of a step is not worth investigating; steps differ by a tenth from one to the next."""
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
