# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The data model of a replay: what the trainer does in order, what each trajectory does in order, and the limits that they share.

Times are nanoseconds. Where a time is absolute, it is that of the recording.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NO_POOL: Final = -1
"""A piece of work that needs no slot."""
UNANCHORED: Final = -1
"""A trajectory that was submitted before the schedule begins, or by nothing that is in it."""


class Pool(NamedTuple):
    """A limit: who comes when all its slots are taken waits, in the order of arrival."""

    kind: str
    """``loop`` (an event loop that tools block), ``server`` (slots of an LLM server) or ``reward`` (threads of a reward worker)."""
    instance: str
    """Process: ``<role>-<number>``."""
    slots: int


class Item(NamedTuple):
    """A piece of a trajectory: first ``lead_ns`` without a slot, then ``hold_ns`` in a slot of its pool, then ``rest_ns`` without."""

    kind: str
    """Kind of segment (`kinds.KINDS`)."""
    name: str
    instance: str
    lead_ns: int
    pool: int = NO_POOL
    hold_ns: int = 0
    rest_ns: int = 0

    @property
    def length_ns(self) -> int:
        """How long it takes if it does not wait for a slot."""
        return self.lead_ns + self.hold_ns + self.rest_ns


class Rollout(NamedTuple):
    """A trajectory."""

    trace_id: int
    step: int
    """Index of the step that trained on it."""
    anchor: int
    """Index of the trainer's part at whose start it was submitted, or `UNANCHORED`."""
    offset_ns: int
    """From the start of that part to the start of its first item; absolute where it has no anchor."""
    items: tuple[Item, ...]
    instance: str = ""
    """Its agent loop."""


class Part(NamedTuple):
    """A piece of the trainer's time: work of a fixed length, or waiting for trajectories."""

    kind: str
    name: str
    phase: str
    """Phase of the step; ``between`` after the step."""
    length_ns: int
    """Length of the work; of a wait, 0."""
    step: int
    """Index of its step."""
    awaited: tuple[int, ...] | None = None
    """Indices of the trajectories that it waits for; None: it waits for none."""
    overlapped: bool = False
    """The trainer only starts it, and waits until an earlier one of the same phase has ended."""


class Schedule(NamedTuple):
    """Consecutive steps of a run."""

    begin_ns: int
    """Start of the first step."""
    numbers: tuple[int | None, ...]
    """Number of each step."""
    parts: tuple[Part, ...]
    rollouts: tuple[Rollout, ...]
    pools: tuple[Pool, ...]
