# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the newest steps of a run with all their trajectories, in bounded memory: what is replayed."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from verl_otel.analysis.model import Segment, Step, Trajectory
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.what_if import Wait, find_waits

MAX_STEPS: Final = 64


class RecentStep(NamedTuple):
    """A step, as far as a replay needs it."""

    number: int | None
    trace_id: int
    start_ns: int
    end_ns: int
    next_ns: int
    """Start of the next step, or end of the run."""
    failed: bool
    path: tuple[Segment, ...]
    between_path: tuple[Segment, ...]
    waits: tuple[Wait, ...]
    consumed: int
    """Number of trajectories that it trained on."""
    members: tuple[Trajectory, ...]
    """Those of them that were found."""
    is_first: bool
    """Whether it is the first step of an attempt, which contains the start-up."""
    is_last: bool
    """Whether the run, an attempt, or what is known of it, ends with it."""


class RecentSteps:
    """The newest steps, added in the order of time.

    Args:
        limit: Trajectories that are kept, 5 kB each. Fewer steps are kept if they have more, but at least one; 0: none are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._steps: deque[RecentStep] = deque()
        self._trajectories = 0
        self._attempt = 0

    def add(self, step: Step, members: tuple[Trajectory, ...], roots: tuple[Node, ...], *, is_last: bool) -> None:
        """Add a step.

        Args:
            step: With its period, its critical path and the one after it.
            members: The trajectories that it trained on.
            roots: Roots of all traces that overlap its period, including its own.
            is_last: Whether no step follows.
        """
        if not self._limit:
            return
        root = next((root for root in roots if root.span.trace_id == step.trace_id and not root.span.parent_id), None)
        self._steps.append(
            RecentStep(
                step.number,
                step.trace_id,
                step.start_ns,
                step.end_ns,
                step.next_ns,
                step.failed,
                step.path,
                step.between_path,
                find_waits(step.path, root),
                len(step.trajectories),
                members,
                step.attempt != self._attempt,
                is_last,
            )
        )
        self._attempt = step.attempt
        self._trajectories += len(members)
        while len(self._steps) > MAX_STEPS or (self._trajectories > self._limit and len(self._steps) > 1):
            self._trajectories -= len(self._steps.popleft().members)

    def all(self) -> tuple[RecentStep, ...]:
        """Return the steps in the order of time."""
        return tuple(self._steps)
