# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which faults are planted in which training, and where. A seed makes the plan."""

import random
from typing import NamedTuple

from tests.end_to_end.faults import kinds
from tests.end_to_end.faults.kinds import (
    CRASHED,
    DATA,
    HUNG,
    IN_ROLLOUTS,
    IN_UPDATE,
    NUMBERS,
    SLOW,
    UPDATES,
    VALIDATE_EVERY,
    of_mode,
)

FIRST, APART = 6, {"sync": 3, "separate_async": 5, "fully_async": 5}
"""First step with a fault, and steps between two of them: a fault in a rollout lasts for several asynchronous steps."""
SIZES = {SLOW: (1.5, 4.0), HUNG: (25.0, 25.0), CRASHED: (0.0, 0.0), DATA: (0.0, 0.0)}
"""Seconds that a fault lasts, by series."""
TRAININGS = ((SLOW, 14), (SLOW, 14), (SLOW, 13), (HUNG, 5), (HUNG, 5), *[(CRASHED, 1)] * 8, (DATA, 2))
"""The trainings of one round, which plants each kind once, and the number of their faults. One more in mode ``sync`` has `PAIRS` steps with two
faults each; an asynchronous step does not wait for what holds its rollouts, and for what holds its update, at once."""
PAIRS = 10


MODES = (*kinds.MODES, "colocate_async", "asyncio", "threads", "ray")
"""What is trained without a fault: modes of `cpu_train`, and loops of one's own (`own_loop`)."""
HEALTHY, HEALTHY_STEPS = "healthy", 100
"""The series of trainings without a fault, and the most steps of one of them."""


class Fault(NamedTuple):
    """A fault of one training."""

    kind: str
    step: int
    seconds: float

    def plant(self, mode, *, validations):
        """Return what `cpu_plant` reads.

        Args:
            mode: Mode of verl.
            validations: Whether the training has validations.
        """
        kind = of_mode(mode)[self.kind]
        place, _, which = kind.plant.partition(":")
        # Asynchronous rollouts begin during the step before theirs.
        before = (self.step - 1 - (mode != "sync")) // VALIDATE_EVERY if validations else 0
        number = NUMBERS[kind.number](self.step, before, UPDATES[mode])
        return ":".join([place, f"{self.seconds:.2f}", str(number), *([which] if which else [])])


class Training(NamedTuple):
    """One training of a plan."""

    number: int
    series: str
    faults: tuple[Fault, ...]
    mode: str = "sync"
    healthy: int = 0
    """Number of its steps, if it has no faults."""

    @property
    def steps(self):
        """Number of its steps."""
        return self.healthy or max(fault.step for fault in self.faults) + APART[self.mode]

    def needs(self, what):
        """Return whether one of its kinds needs a ``validation`` or a ``checkpoint``."""
        return any(of_mode(self.mode)[fault.kind].needs == what for fault in self.faults)

    @property
    def plants(self):
        """What `cpu_plant` reads for each fault."""
        return [fault.plant(self.mode, validations=self.needs("validation")) for fault in self.faults]


def make_healthy(mode, steps):
    """Return trainings in a mode with so many steps together, and no fault."""
    each = [min(HEALTHY_STEPS, steps - before) for before in range(0, steps, HEALTHY_STEPS)]
    return [Training(number, HEALTHY, (), mode, count) for number, count in enumerate(each)]


def make_plan(seed, count, mode="sync"):
    """Return the first trainings of a seed. Equal seeds make equal plans, and a longer plan begins like a shorter one."""
    plan = []
    while len(plan) < count:
        series = str(seed) if mode == "sync" else f"{seed}/{mode}"
        plan += _make_round(random.Random(f"{series}/{len(plan)}"), len(plan), mode)
    return plan[:count]


def _make_round(chance, first, mode):
    """Return trainings that plant each kind of a mode once."""
    planted = of_mode(mode)
    waiting = {series: [name for name, kind in planted.items() if kind.series == series] for series in SIZES}
    for names in waiting.values():
        chance.shuffle(names)
    trainings = []
    for series, size in TRAININGS:
        names = [waiting[series].pop() for _ in range(min(size, len(waiting[series])))]
        if not names:
            continue
        steps = _choose_steps(planted, names, APART[mode])
        faults = [Fault(name, steps[name], round(chance.uniform(*SIZES[series]), 2)) for name in names]
        faults = tuple(sorted(faults, key=lambda fault: fault.step))
        trainings.append(Training(first + len(trainings), series, faults, mode))
    return [*trainings, _make_pairs(chance, first + len(trainings))] if mode == "sync" else trainings


def _make_pairs(chance, number):
    """Return a training with steps that have two faults, one in the rollouts and one after them: neither hides the other."""
    chosen = zip(chance.sample(IN_ROLLOUTS, PAIRS), chance.sample(IN_UPDATE, PAIRS), strict=True)
    faults = [
        Fault(name, FIRST + APART["sync"] * place, round(chance.uniform(*SIZES[SLOW]), 2))
        for place, names in enumerate(chosen)
        for name in names
    ]
    return Training(number, SLOW, tuple(faults))


def _choose_steps(planted, names, apart):
    """Return the step of each kind; validations and checkpoints are not after every step."""
    free = [FIRST + apart * place for place in range(len(names) + 2)]
    steps = {}
    for name in sorted(names, key=lambda name: not planted[name].needs):
        needs = planted[name].needs
        # The first checkpoint makes its folders, and is not compared with later ones.
        first = (1 + (needs == "checkpoint" and planted[name].series == SLOW)) * VALIDATE_EVERY
        fitting = (step for step in free if not needs or step in range(first, 99, VALIDATE_EVERY))
        steps[name] = next(fitting)
        free.remove(steps[name])
    return steps
