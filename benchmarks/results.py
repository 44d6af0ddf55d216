# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Results of a run, as data and as the JSON files under ``benchmarks/results/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from benchmarks import statistics
from benchmarks.case import BASELINE, Case, Target
from benchmarks.processes import Measured
from benchmarks.statistics import Estimate

FOLDER: Final = Path(__file__).resolve().parent / "results"
HEADLINE: Final = FOLDER / "headline.json"
"""The file that the tables of the documents are made from."""
UNITS: Final = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
"""Of an operation. A figure is in the unit that its case says."""


@dataclass(frozen=True)
class Overhead:
    """What one variant costs over the baseline, in the unit of its case."""

    text: str
    values: tuple[float, ...] = ()
    """One of each process."""
    typical: tuple[float, ...] = ()
    """The same from the median of the rounds, where `values` are of the least: how much this machine's noise adds."""
    missing: str = ""
    """Why it was not measured."""

    @property
    def estimate(self) -> Estimate | None:
        """The median over processes; None if nothing was measured."""
        return statistics.estimate(self.values) if self.values else None


@dataclass(frozen=True)
class Verdict:
    """One budget and its outcome."""

    title: str
    ours: str
    against: str
    """The other side of a ratio; empty for an overhead."""
    bound: float
    values: tuple[float, ...] = ()
    """One of each process."""
    figure: str = ""
    """The figure of the case that the bound is of; empty for an overhead."""
    decides: bool = True
    """Whether the budget depends on it: a time depends on the machine and is only informative if there is a ratio, too."""

    @property
    def estimate(self) -> Estimate | None:
        """The median over processes; None if nothing was measured."""
        return statistics.estimate(self.values) if self.values else None

    @property
    def outcome(self) -> str:
        """Return "met", "not met", "not significant" or "not measured"."""
        judge = statistics.judge_at_least if self.against else statistics.judge_at_most
        return judge(self.estimate, self.bound)


@dataclass(frozen=True)
class Figure:
    """Something besides the seconds."""

    unit: str
    values: Mapping[str, tuple[float, ...]]
    """Variant -> one of each process."""


@dataclass(frozen=True)
class CaseResult:
    """One case."""

    name: str
    title: str
    unit: str
    overheads: Mapping[str, Overhead] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    failures: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    null: str = ""
    """The variant that is the baseline once more."""
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Variant -> by how much of the baseline it is slower, one of each round; only where there is a null test."""

    def pairs(self, variant: str) -> statistics.Pairs:
        """Return what pairs of rounds say of a variant, where there is a null test."""
        return statistics.compare_pairs(self.shares.get(variant, ()), self.shares.get(self.null, ()))


@dataclass(frozen=True)
class Results:
    """One run."""

    date: str
    seconds: float
    processes: int
    rounds: int
    quick: bool
    machine: Mapping[str, str]
    load: tuple[float, float]
    """Processes that wanted to run, on average over a minute, before and after."""
    cases: tuple[CaseResult, ...]

    def case(self, name: str) -> CaseResult | None:
        """Return a case by its name."""
        return next((case for case in self.cases if case.name == name), None)


def summarize(case: Case, measured: Sequence[Measured], failures: Sequence[str] = ()) -> CaseResult:
    """Return what the processes of a case say together."""
    overheads = {variant.name: _overhead(case, variant.name, measured) for variant in case.variants}
    figures = {name: Figure(unit, _figures(name, measured)) for name, unit in case.figures.items()}
    verdicts = [item for target in case.targets for item in _verdicts(target, overheads, figures, measured)]
    return CaseResult(
        case.name,
        case.title,
        case.unit,
        overheads,
        tuple(verdicts),
        tuple(item[-600:] for item in failures),
        figures,
        case.null,
        _shares(measured) if case.null else {},
    )


def _figures(name: str, measured: Sequence[Measured]) -> Mapping[str, tuple[float, ...]]:
    by_variant: dict[str, list[float]] = {}
    for process in measured:
        for variant, figures in process.figures.items():
            if figures.get(name):
                by_variant.setdefault(variant, []).append(median(figures[name]))
    return {variant: _rounded(values) for variant, values in by_variant.items()}


def _shares(measured: Sequence[Measured]) -> Mapping[str, tuple[float, ...]]:
    by_variant: dict[str, list[float]] = {}
    for process in measured:
        for variant, seconds in process.seconds.items():
            if variant != BASELINE and BASELINE in process.seconds:
                by_variant.setdefault(variant, []).extend(statistics.differences(seconds, process.seconds[BASELINE]))
    return {variant: _rounded(values) for variant, values in by_variant.items()}


def _overhead(case: Case, name: str, measured: Sequence[Measured]) -> Overhead:
    rounds = [process.seconds for process in measured if name in process.seconds]
    scale = UNITS[case.unit]
    least, typical = (
        tuple(
            scale
            * statistics.overhead(process[name], () if name == BASELINE else process.get(BASELINE, ()), steady=steady)
            for process in rounds
        )
        for steady in (case.steady, False)
    )
    reasons = {process.missing[name] for process in measured if name in process.missing}
    return Overhead(
        case.variant(name).text, _rounded(least), _rounded(typical), "" if least else "; ".join(sorted(reasons))
    )


def _verdicts(
    target: Target, overheads: Mapping[str, Overhead], figures: Mapping[str, Figure], measured: Sequence[Measured]
) -> list[Verdict]:
    verdicts = []
    if target.at_most is not None:
        values = overheads[target.ours].values
        if target.figure:
            values = figures[target.figure].values.get(target.ours, ())
        alone = not target.ratios
        verdicts.append(Verdict(target.title, target.ours, "", target.at_most, values, target.figure, alone))
    for name, bound in target.ratios.items():
        ratios = [
            statistics.ratio(process.seconds[name], process.seconds[target.ours], process.seconds.get(BASELINE, ()))
            for process in measured
            if name in process.seconds and target.ours in process.seconds
        ]
        values = _rounded([process for process in ratios if process is not None])
        verdicts.append(Verdict(target.title, target.ours, name, bound, values))
    return verdicts


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values)


def write(results: Results, path: Path) -> None:
    """Write a run as JSON: what was measured, nothing that follows from it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read(path: Path) -> Results:
    """Return the run of a JSON file.

    Raises:
        ValueError: It is no such file, or one of another form.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path.name} is no result of the benchmarks: {error}") from None
