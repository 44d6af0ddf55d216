# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a run has found, as data and as the JSON files under ``benchmarks/results/``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import statistics
from benchmarks.case import BASELINE, Case, Target
from benchmarks.processes import Measured
from benchmarks.statistics import Estimate

SCHEMA: Final = 1
"""Number of the form of the files; another one is refused."""
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
    """What was promised, and what came out."""

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
    """Whether the promise stands or falls with it: a time is a machine's, and only for orientation where a ratio is promised, too."""

    @property
    def estimate(self) -> Estimate | None:
        """The median over processes; None if nothing was measured."""
        return statistics.estimate(self.values) if self.values else None

    @property
    def word(self) -> str:
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
    clock: str
    overheads: Mapping[str, Overhead] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    failures: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    null: str = ""
    """The variant that is the baseline once more."""
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Variant -> by how much of the baseline it is slower, one of each process; only where there is a null test."""

    def pairs(self, variant: str) -> statistics.Pairs:
        """Return what interleaved pairs say of a variant, where there is a null test."""
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
        return next((each for each in self.cases if each.name == name), None)


def summarize(case: Case, measured: Sequence[Measured], failures: Sequence[str] = ()) -> CaseResult:
    """Return what the processes of a case say together."""
    overheads = {variant.name: _overhead(case, variant.name, measured) for variant in case.variants}
    figures = {name: Figure(unit, _figures(name, measured)) for name, unit in case.figures.items()}
    verdicts = [each for target in case.targets for each in _verdicts(target, overheads, figures, measured)]
    return CaseResult(
        case.name,
        case.title,
        case.unit,
        case.clock,
        overheads,
        tuple(verdicts),
        tuple(each[-600:] for each in failures),
        figures,
        case.null,
        _shares(measured) if case.null else {},
    )


def _figures(name: str, measured: Sequence[Measured]) -> Mapping[str, tuple[float, ...]]:
    found: dict[str, list[float]] = {}
    for each in measured:
        for variant, figures in each.figures.items():
            if figures.get(name):
                found.setdefault(variant, []).append(median(figures[name]))
    return {variant: _rounded(values) for variant, values in found.items()}


def _shares(measured: Sequence[Measured]) -> Mapping[str, tuple[float, ...]]:
    found: dict[str, list[float]] = {}
    for each in measured:
        for variant, seconds in each.seconds.items():
            if variant != BASELINE and BASELINE in each.seconds:
                found.setdefault(variant, []).append(statistics.difference(seconds, each.seconds[BASELINE]))
    return {variant: _rounded(values) for variant, values in found.items()}


def _overhead(case: Case, name: str, measured: Sequence[Measured]) -> Overhead:
    found = [each.seconds for each in measured if name in each.seconds]
    scale = UNITS[case.unit]
    least, typical = (
        tuple(
            scale * statistics.overhead(each[name], () if name == BASELINE else each.get(BASELINE, ()), steady=steady)
            for each in found
        )
        for steady in (case.steady, False)
    )
    reasons = {each.missing[name] for each in measured if name in each.missing}
    return Overhead(
        case.variant(name).text, _rounded(least), _rounded(typical), "" if least else "; ".join(sorted(reasons))
    )


def _verdicts(
    target: Target, overheads: Mapping[str, Overhead], figures: Mapping[str, Figure], measured: Sequence[Measured]
) -> list[Verdict]:
    found = []
    if target.at_most is not None:
        values = overheads[target.ours].values
        if target.figure:
            values = figures[target.figure].values.get(target.ours, ())
        alone = not target.ratios
        found.append(Verdict(target.title, target.ours, "", target.at_most, values, target.figure, alone))
    for name, bound in target.ratios.items():
        ratios = [
            statistics.ratio(each.seconds[name], each.seconds[target.ours], each.seconds.get(BASELINE, ()))
            for each in measured
            if name in each.seconds and target.ours in each.seconds
        ]
        values = _rounded([each for each in ratios if each is not None])
        found.append(Verdict(target.title, target.ours, name, bound, values))
    return found


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values)


def write(results: Results, path: Path) -> None:
    """Write a run as JSON; what can be computed from the rest is written, too, for whoever reads it without us."""
    said: dict[str, Any] = {"schema": SCHEMA, **asdict(results)}
    for case in said["cases"]:
        for overhead in case["overheads"].values():
            _add_estimate(overhead)
        for figure in case["figures"].values():
            figure["estimates"] = {name: _described(values) for name, values in figure["values"].items()}
        found = results.case(case["name"])
        if found is not None and found.null:
            case["pairs"] = {name: found.pairs(name)._asdict() for name in found.shares if name != found.null}
        for verdict, told in zip(results.case(case["name"]).verdicts, case["verdicts"], strict=True):  # type: ignore[union-attr]  # its own name
            _add_estimate(told)
            told["verdict"] = verdict.word
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said, indent=1, allow_nan=False) + "\n", "utf-8")


def _add_estimate(said: dict[str, Any]) -> None:
    if said["values"]:
        said["estimate"] = _described(said["values"])


def _described(values: Sequence[float]) -> dict[str, float]:
    return {key: float(f"{value:.5g}") for key, value in statistics.estimate(values)._asdict().items()}


def read(path: Path) -> Results:
    """Return the run of a JSON file.

    Raises:
        ValueError: It is no such file, or one of another form.
    """
    try:
        said = json.loads(path.read_text("utf-8"))
        if said["schema"] != SCHEMA:
            raise ValueError(f"{path.name} has form {said['schema']}, this is {SCHEMA}")
        return Results(
            said["date"],
            said["seconds"],
            said["processes"],
            said["rounds"],
            said["quick"],
            said["machine"],
            (said["load"][0], said["load"][1]),
            tuple(_read_case(each) for each in said["cases"]),
        )
    except (OSError, KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name} is no result of the benchmarks: {error!r}") from None


def _read_case(said: Mapping[str, Any]) -> CaseResult:
    overheads = {
        name: Overhead(each["text"], tuple(each["values"]), tuple(each["typical"]), each["missing"])
        for name, each in said["overheads"].items()
    }
    verdicts = tuple(
        Verdict(
            each["title"],
            each["ours"],
            each["against"],
            each["bound"],
            tuple(each["values"]),
            each["figure"],
            each["decides"],
        )
        for each in said["verdicts"]
    )
    figures = {
        name: Figure(each["unit"], {variant: tuple(values) for variant, values in each["values"].items()})
        for name, each in said["figures"].items()
    }
    return CaseResult(
        said["name"],
        said["title"],
        said["unit"],
        said["clock"],
        overheads,
        verdicts,
        tuple(said["failures"]),
        figures,
        said["null"],
        {variant: tuple(values) for variant, values in said["shares"].items()},
    )
