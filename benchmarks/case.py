# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A case: one workload, the backends that run it, and the budget of verl-otel."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import cases

OURS: Final = "verl_otel"
"""Name of the variant that a case is about, unless a target says otherwise."""
BASELINE: Final = "baseline"
"""Name of the variant without telemetry, which is subtracted from all others."""


class Unavailable(Exception):  # noqa: N818 - nothing went wrong: there is nothing to measure here
    """A variant cannot be measured on this machine; the message says why."""


def _nothing() -> None:
    """End nothing."""


def _no_figures() -> Mapping[str, Sequence[float]]:
    return {}


@dataclass(frozen=True)
class Operation:
    """One variant, ready to be measured in this process."""

    run: Callable[[int], float]
    """Does the operation this many times and returns the seconds that it took, of the caller's clock or of CPU time."""
    count: int = 0
    """How often a round does it; 0: as often as fits into a few milliseconds."""
    close: Callable[[], None] = _nothing
    """Ends what building it has started."""
    figures: Callable[[], Mapping[str, Sequence[float]]] = _no_figures
    """What else the rounds have found: a figure of the case -> one value of each round."""
    warm: bool = True
    """Whether it runs once before the first round; what starts a process of its own each time needs no warming."""


@dataclass(frozen=True)
class Variant:
    """One backend doing the work of a case."""

    name: str
    text: str
    """How it is set up, for the reader of the table."""
    build: Callable[[], Operation]
    """Called in the process that measures.

    Raises:
        Unavailable: It cannot be measured on this machine.
    """


@dataclass(frozen=True)
class Target:
    """The budget of one variant of a case."""

    title: str
    at_most: float | None = None
    """Overhead over the baseline, in the unit of the case."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Variant -> how many times our overhead its own is at least."""
    ours: str = OURS
    figure: str = ""
    """What ``at_most`` is about: a figure of the case, in its unit; empty for the overhead."""


@dataclass(frozen=True)
class Case:
    """One workload and everything that does it.

    Args:
        name: What ``--only`` takes.
        title: What is measured, in a few words.
        variants: Who does it. One named `BASELINE` is subtracted from the others.
        targets: What is promised; none is a case that is only shown.
        unit: Unit of one operation's cost: ``ns``, ``us`` or ``ms``.
        steady: Whether the least of a process's rounds counts. A call costs the same each time and a neighbour only adds to it; a job
            with a collection of garbage or a drain now and then does not, so there the median counts.
        rounds: Rounds of a process at most, for what takes long; 0: as many as the run says.
        processes: Fresh processes at most, for what takes minutes; 0: as many as the run says.
        suite: ``hot``, or what only ``--suite`` asks for.
        seconds: After which a process of it is given up.
        figures: What else is found besides the seconds -> its unit.
        null: Variant that is the baseline once more. The difference between the two, where there is none, is what this machine cannot tell;
            of all others it is said by how much of the baseline they are slower at most, not what they add.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    targets: tuple[Target, ...] = ()
    unit: str = "ns"
    steady: bool = True
    rounds: int = 0
    processes: int = 0
    suite: str = "hot"
    seconds: float = 300.0
    figures: Mapping[str, str] = field(default_factory=dict)
    null: str = ""

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        targeted = {name for target in self.targets for name in (target.ours, *target.ratios)}
        if len(set(names)) != len(names) or not targeted <= set(names):
            raise ValueError(
                f"{self.name}: each variant once, and targets only of variants: {names}, {sorted(targeted)}"
            )
        if not {target.figure for target in self.targets} <= {"", *self.figures}:
            raise ValueError(f"{self.name}: targets only of figures that it finds: {sorted(self.figures)}")
        if self.null and not {self.null, BASELINE} <= set(names):
            raise ValueError(f"{self.name}: a null test needs a baseline and its double")

    def variant(self, name: str) -> Variant:
        """Return a variant by its name."""
        return next(variant for variant in self.variants if variant.name == name)


def load_cases() -> dict[str, Case]:
    """Return every case by its name, in the order of their files.

    Raises:
        ValueError: Two cases have the same name.
    """
    by_name: dict[str, Case] = {}
    for module in sorted(pkgutil.iter_modules(cases.__path__), key=lambda info: info.name):
        for case in importlib.import_module(f"{cases.__name__}.{module.name}").CASES:
            if case.name in by_name:
                raise ValueError(f"two cases are named {case.name}")
            by_name[case.name] = case
    return by_name
