# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that waited for a single trajectory; a report lists them first, whether or not that was unusual."""

from __future__ import annotations

from typing import Final, NamedTuple

from verl_otel.analysis.model import Explanation, Part, Step, Trajectory

MAX_WAITS: Final = 2
"""Trajectories on the critical path above which a step runs them one after the other: then it waits for each, and verdicts compare them."""
NOTABLE_SHARE: Final = 0.2
"""Minimum share of a step for the wait for one trajectory to be reported."""


class SingleWait(NamedTuple):
    """One step that waited for one trajectory."""

    step: Step
    trajectory: Trajectory
    part: Part
    """The part that the trajectory spent most of its time on."""
    lead: float
    """Seconds by which the step would have been shorter without it."""


def find(run: Explanation) -> list[SingleWait]:
    """Return the steps that waited noticeably for one trajectory, the longest wait first."""
    waits = [wait for step in run.steps if (wait := _find(step)) is not None]
    return sorted(waits, key=lambda wait: -wait.lead)


def _find(step: Step) -> SingleWait | None:
    lead = next((saving.seconds for saving in step.savings if saving.what == "slowest"), 0.0)
    if step.members < 2 or lead <= 0 or lead < NOTABLE_SHARE * step.seconds or not step.slowest:  # noqa: PLR2004 - one has no other to be later than
        return None
    if len({segment.trace_id for segment in step.path} - {0}) > MAX_WAITS:
        return None
    last = max(step.slowest, key=lambda trajectory: trajectory.end_ns)
    if not last.parts:
        return None
    return SingleWait(step, last, max(last.parts, key=lambda part: part.seconds), lead)
