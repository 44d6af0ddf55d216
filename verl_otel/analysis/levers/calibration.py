# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Takes the waiting for slots out of recorded trajectories, such that a replay with the same limits puts exactly the same waiting back.

A recorded piece of work contains its waiting for a slot. The limits are replayed with the recorded ends; what remains of a piece after
its slot was granted is its own time. A piece that ended before it could have had a slot did not need one: it is exempt from the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from verl_otel.analysis.levers.replay import GIVE_UP, OTHER, Rollouts
from verl_otel.analysis.levers.schedule import NO_POOL, Item, Pool


class Demand(NamedTuple):
    """A recorded piece of a trajectory, waiting included."""

    kind: str
    name: str
    instance: str
    length_ns: int
    pool: int = NO_POOL
    lead_ns: int = 0
    """Time at its start in which it needs no slot."""
    holds: bool = False
    """Whether it keeps the slot to its end; otherwise it only has to get one, as code that an event loop resumes."""


class _Calibration(Rollouts):
    """A replay in which each item ends when it was recorded to end."""

    def __init__(self, demands: Sequence[Sequence[Demand]], starts_ns: Sequence[int], pools: tuple[Pool, ...]) -> None:
        plain = [tuple(_make_plain(demand) for demand in row) for row in demands]
        super().__init__([tuple(_ask(demand) for demand in row) for row in demands], pools)
        self.measured = [list(row) for row in plain]
        self._holds = [[demand.holds for demand in row] for row in demands]
        self._recorded = [[demand.length_ns for demand in row] for row in demands]
        self._begun = [0] * len(demands)
        self._waiting: set[tuple[int, int]] = set()
        for rollout, start in enumerate(starts_ns):
            self.begin(rollout, start)

    def _advance(self, time_ns: int, rollout: int, index: int) -> None:
        self._begun[rollout] = time_ns
        super()._advance(time_ns, rollout, index)

    def _handle(self, time_ns: int, rollout: int, index: int, what: int) -> None:
        if what == GIVE_UP:
            self._give_up(time_ns, rollout, index)
        else:
            super()._handle(time_ns, rollout, index, what)

    def _request(self, time_ns: int, rollout: int, index: int) -> None:
        self._waiting.add((rollout, index))
        super()._request(time_ns, rollout, index)
        if (rollout, index) in self._waiting:
            end = self._begun[rollout] + self._recorded[rollout][index]
            self._push(end, OTHER, rollout, index, GIVE_UP)

    def _grant(self, time_ns: int, rollout: int, index: int) -> None:
        self._waiting.discard((rollout, index))
        left = self._begun[rollout] + self._recorded[rollout][index] - time_ns
        held = left if self._holds[rollout][index] else 0
        item = self._items[rollout][index]._replace(hold_ns=held, rest_ns=left - held)
        self.measured[rollout][index] = item
        self._items[rollout] = (*self._items[rollout][:index], item, *self._items[rollout][index + 1 :])
        super()._grant(time_ns, rollout, index)

    def _give_up(self, time_ns: int, rollout: int, index: int) -> None:
        if (rollout, index) not in self._waiting:
            return
        self._waiting.discard((rollout, index))
        self._slots[self._items[rollout][index].pool].queue.remove((rollout, index))
        self._advance(time_ns, rollout, index + 1)


def _make_plain(demand: Demand) -> Item:
    return Item(demand.kind, demand.name, demand.instance, demand.length_ns)


def _ask(demand: Demand) -> Item:
    lead = demand.length_ns if demand.pool == NO_POOL else min(demand.lead_ns, demand.length_ns)
    return Item(demand.kind, demand.name, demand.instance, lead, demand.pool)


def calibrate(
    demands: Sequence[Sequence[Demand]], starts_ns: Sequence[int], pools: tuple[Pool, ...]
) -> tuple[tuple[Item, ...], ...]:
    """Return the items of trajectories that replay to their recorded ends.

    Args:
        demands: The recorded pieces of each trajectory, one after the other.
        starts_ns: When each of them began.
        pools: The limits that they share.
    """
    run = _Calibration(demands, starts_ns, pools)
    run.run()
    return tuple(map(tuple, run.measured))
