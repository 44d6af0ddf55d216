# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which trajectory held a step, and what it spent its time on: the first thing that a report says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.analysis.timeline import Part, Step, Timeline, Trajectory

NOTABLE_SHARE: Final = 0.2
"""Share of a step below which the wait for one trajectory is not worth a verdict."""


class Verdict(NamedTuple):
    """One step that waited for one trajectory."""

    step: Step
    trajectory: Trajectory
    part: Part
    """What the trajectory spent most of its time on."""
    lead: float
    """Seconds of the step between the end of the trajectory before this one and its own: an upper bound of what it cost."""


def judge(timeline: Timeline) -> tuple[Verdict, ...]:
    """Return the steps that waited noticeably for one trajectory, the worst first."""
    found = [verdict for step in timeline.steps if (verdict := _judge_step(step, timeline)) is not None]
    return tuple(sorted(found, key=lambda verdict: -verdict.lead))


def slowest(trajectories: Iterable[Trajectory], count: int) -> list[Trajectory]:
    """Return the slowest trajectories."""
    return sorted(trajectories, key=lambda trajectory: -trajectory.seconds)[:count]


def _judge_step(step: Step, timeline: Timeline) -> Verdict | None:
    members = [timeline.trajectories[each] for each in step.trajectories if each in timeline.trajectories]
    if len(members) < 2 or not step.seconds:  # noqa: PLR2004 - one has no other to be later than
        return None
    last, before = sorted(members, key=lambda each: each.end_ns)[-1:-3:-1]
    lead = (min(last.end_ns, step.end_ns) - max(before.end_ns, step.start_ns)) / 1e9
    if lead < NOTABLE_SHARE * step.seconds or not last.parts:
        return None
    return Verdict(step, last, max(last.parts, key=lambda part: part.seconds), lead)
