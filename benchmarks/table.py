# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of the documents, made from one committed result file. They stand between two markers; a test compares them with the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.case import BASELINE
from benchmarks.processes import TOP
from benchmarks.results import CaseResult, Overhead, Results, Verdict
from benchmarks.statistics import MET, NOT_MEASURED, NOT_MET, NOT_SIGNIFICANT, Estimate, estimate

_ORDER: Final = (NOT_MET, NOT_SIGNIFICANT, NOT_MEASURED, MET)
"""Of several verdicts the gravest is the row's."""
_UNITS: Final = {"us": "µs"}
_MANY: Final = 100
"""From here on a figure needs no digits after the point."""


def begin(name: str) -> str:
    """Return the marker in front of a table."""
    return f"<!-- benchmarks: {name}, made by make bench-table: change it there -->"


END: Final = "<!-- benchmarks: end -->"


def number(value: float) -> str:
    """Return a figure with as many digits as it deserves."""
    if value >= _MANY:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.2g}"  # noqa: PLR2004 - two digits, or one after the point


def figure(found: Estimate | None, unit: str) -> str:
    """Return a median with its interval."""
    if found is None:
        return "-"
    return f"{number(found.value)} {_UNITS.get(unit, unit)} [{number(found.low)}..{number(found.high)}]"


def times(found: Estimate | None) -> str:
    """Return a ratio with its interval."""
    return "-" if found is None else f"{number(found.value)}x [{number(found.low)}..{number(found.high)}]"


def rows(case: CaseResult) -> Iterable[tuple[str, list[Verdict]]]:
    """Return the promises of a case, each with its verdicts, in their order."""
    found: dict[str, list[Verdict]] = {}
    for verdict in case.verdicts:
        found.setdefault(verdict.title, []).append(verdict)
    return found.items()


def headline(results: Results) -> str:
    """Return the table of what is promised: one row each."""
    lines = [
        "| | verl-otel adds | promised | others add, in times of that | in all |",
        "|---|---:|---:|---|---|",
    ]
    for case in results.cases:
        for title, verdicts in rows(case):
            unit = case.figures[verdicts[0].figure].unit if verdicts[0].figure else case.unit
            own = verdicts[0].estimate if verdicts[0].figure else case.overheads[verdicts[0].ours].estimate
            bounds = [
                f"≤ {number(each.bound)} {_UNITS.get(unit, unit)}: {each.word}" for each in verdicts if not each.against
            ]
            others = [
                f"{each.against}: {times(each.estimate)}, promised {number(each.bound)}x: {each.word}"
                for each in verdicts
                if each.against
            ]
            word = min((each.word for each in verdicts if each.decides), key=_ORDER.index)
            lines.append(
                f"| {title} | {figure(own, unit)} | {', '.join(bounds) or '-'} | {'<br>'.join(others) or '-'} | {word} |"
            )
    return "\n".join([*lines, "", _conditions(results)])


def details(results: Results) -> str:
    """Return one table for each case: every variant, whether something is promised of it or not."""
    parts = [_conditions(results)]
    for case in results.cases:
        parts.append(
            f"\n### `{case.name}`: {case.title}\n\n| who | adds | in a usual round | how |\n|---|---:|---:|---|"
        )
        parts += [_detail(case, name, overhead) for name, overhead in case.overheads.items()]
        if case.figures:
            parts.append(_figures(case))
        if case.null:
            parts += ["", *(_pairs(case, name) for name in case.overheads if name not in {BASELINE, case.null})]
        if case.failures:
            parts.append(f"\n{len(case.failures)} of its processes failed.")
    return "\n".join(parts)


def _detail(case: CaseResult, name: str, overhead: Overhead) -> str:
    if overhead.missing:
        return f"| {name} | {NOT_MEASURED} | - | {overhead.missing} |"
    usual = sorted(overhead.typical)[len(overhead.typical) // 2] if overhead.typical else None
    said = f"{number(usual)} {_UNITS.get(case.unit, case.unit)}" if usual is not None else "-"
    word = f"({name}: what it takes)" if name == BASELINE else name
    return f"| {word} | {figure(overhead.estimate, case.unit)} | {said} | {overhead.text} |"


def _figures(case: CaseResult) -> str:
    """Return a table of what was found besides, as it was measured: nothing is subtracted."""
    lines = [f"\n| besides | {' | '.join(case.figures)} |", f"|---|{'---:|' * len(case.figures)}"]
    for name in case.overheads:
        found = [
            figure(estimate(each.values[name]), each.unit) if each.values.get(name) else "-"
            for each in case.figures.values()
        ]
        lines.append(f"| {name} | {' | '.join(found)} |")
    return "\n".join(lines)


def _pairs(case: CaseResult, name: str) -> str:
    """Return in words what pairs of runs say of a variant. An upper bound and what could be seen at all, never a point."""
    found = case.pairs(name)
    if found.most is None or found.resolution is None:
        return f"{name}: {found.number} pairs are too few for a bound; five are enough."
    if not found.fair:
        return (
            f"{name}: nothing can be said. Two runs without telemetry differ by {found.resolution:.1%}, always to the same side, "
            "so the order of the runs shows, or something changed meanwhile."
        )
    said = "" if found.word == NOT_SIGNIFICANT else f", and by {max(0.0, found.least or 0.0):.1%} at least"
    return (
        f"{name}: slower by {max(0.0, found.most):.1%} at most{said} ({found.number} pairs, 95 %). Two runs without telemetry differ by up to "
        f"{found.resolution:.1%}: nothing smaller can be seen here."
    )


def _conditions(results: Results) -> str:
    machine = results.machine
    counts = [len(each.values) for case in results.cases for each in case.overheads.values() if each.values]
    processes = (
        f"{min(counts)} to {max(counts)}" if counts and min(counts) != max(counts) else f"{max(counts, default=0)}"
    )
    return (
        f"{results.date}, commit {machine['commit']}, {machine['python']} ({machine['build']}), {machine['processor']}, {machine['cores']} "
        f"cores, load {results.load[0]:g} before and {results.load[1]:g} after. Medians over {processes} fresh processes [interval that holds the "
        "median with 95 %, where there are nine]."
    )


def replace(text: str, name: str, table: str) -> str:
    """Return a document with the table between its markers replaced.

    Raises:
        ValueError: The markers are not there.
    """
    before, marker, rest = text.partition(begin(name))
    _, end, after = rest.partition(END)
    if not marker or not end:
        raise ValueError(f"no markers of {name!r}: {begin(name)} ... {END}")
    return f"{before}{marker}\n{table}\n{END}{after}"


PAGES: Final = (
    (TOP / "README.md", "headline", headline),
    (TOP / "docs" / "guide" / "overhead.md", "headline", headline),
    (TOP / "docs" / "guide" / "overhead.md", "details", details),
)
"""Document, name between its markers, what makes the table."""


def write_pages(results: Results) -> Sequence[Path]:
    """Write the tables into the documents and return which changed."""
    changed = []
    for path, name, make in PAGES:
        old = path.read_text("utf-8")
        new = replace(old, name, make(results))
        if new != old:
            path.write_text(new, "utf-8")
            changed.append(path)
    return changed
