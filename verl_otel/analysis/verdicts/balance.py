# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which side of an asynchronous training is short of GPUs: the trainer that waits for samples, or the rollouts that wait for the trainer.

A side is short only while the other one waits for its work. While no trajectory is open and the trainer waits for samples, both wait: for prompts, or
for the trainer to notice that samples are there. More GPUs shorten none of that.

Only where rollouts have GPUs of their own; the trainer's may generate as well, while it does not train (``separate_async``). Where all GPUs are
shared the two take turns, and `levers` tells what overlapping them would bring.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.analysis.model import DeviceTime, sum_causes

NOTABLE: Final = 0.1
"""Share of its GPU time that a side waits for the other, and by which it waits more than the other, before it is called held."""
ROLLOUTS, TRAINER, NEITHER = "rollouts", "trainer", "neither"
"""The side that is short of GPUs."""
AHEAD: Final = (
    "submit more ahead [trainer.v1.separate_async.num_warmup_batches, async_training.staleness_threshold], give trajectories more slots, "
    "and look for pauses and for polls of the trainer"
)
"""What shortens the time in which both sides wait; settings of verl are in brackets."""
FEW_REQUESTS: Final = 0.3
"""Share of the time of the GPUs of the rollouts that they wait for tools, rewards or the last requests: more trajectories at a time would use it."""
_TOO_FEW: Final = ("tail_wait", "tool_wait", "reward_wait", "loop_wait")


class Balance(NamedTuple):
    """How long the two sides of a training waited for each other."""

    short: str
    """`ROLLOUTS`, `TRAINER` or `NEITHER`."""
    trainer_gpus: int
    rollout_gpus: int
    trainer_waits: float
    """Share of the time of the trainer's GPUs, without start-up, in which they neither trained nor generated, and the trainer waited for samples
    while trajectories were open."""
    rollouts_wait: float
    """Share of the time of the GPUs of the rollouts in which they had nothing to generate until the trainer went on."""
    both_wait: float
    """Share of the time of all these GPUs in which the trainer waited for samples and no trajectory was open."""
    too_few: float
    """Share of the time of the GPUs of the rollouts in which trajectories were open, and no or few requests."""

    @property
    def advice(self) -> str:
        """Which side is short of GPUs, and what to do; also about the time in which both wait, if it is notable."""
        advice = _advise_short(self)
        if self.both_wait < NOTABLE:
            return advice
        return f"{advice}; more GPUs do not shorten the time in which both wait: {AHEAD}"


def judge(devices: Iterable[DeviceTime]) -> Balance | None:
    """Return the balance of a run or a step; None where the rollouts or the trainer have no GPUs of their own."""
    listed = list(devices)
    trainer = [device for device in listed if device.lane in ("train", "hybrid")]
    rollouts = [device for device in listed if device.lane == "rollout"]
    if not trainer or not rollouts:
        return None
    trainer_waits, rollouts_wait = _share(trainer, ("rollout_wait", *_TOO_FEW)), _share(rollouts, ("train_wait",))
    short = NEITHER
    if trainer_waits >= max(NOTABLE, rollouts_wait + NOTABLE):
        short = ROLLOUTS
    elif rollouts_wait >= max(NOTABLE, trainer_waits + NOTABLE):
        short = TRAINER
    trainer_gpus, rollout_gpus = (sum(device.gpus for device in side) for side in (trainer, rollouts))
    both_wait = _share([*trainer, *rollouts], ("none_open",))
    return Balance(
        short, trainer_gpus, rollout_gpus, trainer_waits, rollouts_wait, both_wait, _share(rollouts, _TOO_FEW)
    )


def _advise_short(sides: Balance) -> str:
    if sides.short == TRAINER:
        return "short is the trainer: give it GPUs of the rollouts, or allow older samples"
    if sides.short == NEITHER:
        return "neither is short of GPUs"
    if sides.too_few >= FEW_REQUESTS:
        return (
            f"short are the rollouts, with few requests {sides.too_few:.0%} of the time: more trajectories at a time first, "
            "or faster tools and rewards; then more GPUs"
        )
    return "short are the rollouts: give them GPUs of the trainer, or more replicas"


def _share(devices: Iterable[DeviceTime], causes: Iterable[str]) -> float:
    spent = sum_causes(devices)
    whole = spent.total() - spent["start_up"]
    return sum(spent[cause] for cause in causes) / whole if whole else 0.0
