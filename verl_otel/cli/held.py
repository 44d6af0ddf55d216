# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that waited for one trajectory alone: what a report says first, whether or not it was unusual."""

from __future__ import annotations

from typing import Final, NamedTuple

from verl_otel.analysis.facts import Explanation, Part, Step, Trajectory

NOTABLE_SHARE: Final = 0.2
"""Share of a step below which the wait for one trajectory is not worth a line."""


class Held(NamedTuple):
    """One step that waited for one trajectory."""

    step: Step
    trajectory: Trajectory
    part: Part
    """What the trajectory spent most of its time on."""
    lead: float
    """Seconds by which the step would have been shorter without it."""


def find(run: Explanation) -> list[Held]:
    """Return the steps that waited noticeably for one trajectory, the worst first."""
    found = [held for step in run.steps if (held := _find(step)) is not None]
    return sorted(found, key=lambda held: -held.lead)


def _find(step: Step) -> Held | None:
    lead = next((saving.seconds for saving in step.savings if saving.what == "slowest"), 0.0)
    if step.members < 2 or lead <= 0 or lead < NOTABLE_SHARE * step.seconds or not step.slowest:  # noqa: PLR2004 - one has no other to be later than
        return None
    last = max(step.slowest, key=lambda each: each.end_ns)
    if not last.parts:
        return None
    return Held(step, last, max(last.parts, key=lambda part: part.seconds), lead)
