# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of the documents, made from one committed result file. They stand between two markers; a test compares them with the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.case import BASELINE, OURS
from benchmarks.cases import training
from benchmarks.processes import TOP
from benchmarks.results import HEADLINE, CaseResult, Overhead, Results, Verdict, read
from benchmarks.statistics import MET, NOT_MEASURED, NOT_MET, NOT_SIGNIFICANT, Estimate, estimate

_ORDER: Final = (NOT_MET, NOT_SIGNIFICANT, NOT_MEASURED, MET)
"""Of several verdicts the gravest is the row's."""
_UNITS: Final = {"us": "µs"}
_MANY: Final = 100
"""From here on a figure needs no digits after the point."""

END_TO_END: Final = HEADLINE.with_name("end_to_end.json")
"""Result file of trainings with real verl."""
TOTAL: Final = HEADLINE.with_name("total.json")
"""Result file of total CPU."""
SENT: Final = (f"{OURS}, otlp", "opentelemetry, otlp", "")
SUMMARY: Final[Mapping[str, str]] = {
    "decorated call, metrics only, for the caller": "decorator-metrics",
    "decorated call, span and metrics, for the caller": "decorator-span",
    "decorated call, telemetry off": "off-span",
    "import": "import",
}
"""Rows of the table of README.md: title and case."""
CONTENDERS: Final = (OURS, "opentelemetry", "prometheus_client")
"""Columns of that table."""
SUMMARY_TOTAL: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "timed call with four labels, total CPU": ("total-metrics", CONTENDERS),
    "call with span, histogram and four attributes, sent, total CPU": ("total-span", SENT),
}
"""Rows of that table on what all threads spend: title, case, and its variants."""


def begin(name: str) -> str:
    """Return the marker in front of a table."""
    return f"<!-- benchmarks: {name}, made by make bench SUITE=table: change it there -->"


END: Final = "<!-- benchmarks: end -->"


def number(value: float) -> str:
    """Return a figure with as many digits as it deserves."""
    if value >= _MANY:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.2g}"  # noqa: PLR2004 - two digits, or one after the point


def figure(estimated: Estimate | None, unit: str) -> str:
    """Return a median with its interval."""
    if estimated is None:
        return "-"
    return f"{number(estimated.value)} {_UNITS.get(unit, unit)} [{number(estimated.low)}..{number(estimated.high)}]"


def times(ratio: Estimate | None) -> str:
    """Return a ratio with its interval."""
    return "-" if ratio is None else f"{number(ratio.value)}x [{number(ratio.low)}..{number(ratio.high)}]"


def rows(case: CaseResult) -> Iterable[tuple[str, list[Verdict]]]:
    """Return the promises of a case, each with its verdicts, in their order."""
    by_title: dict[str, list[Verdict]] = {}
    for verdict in case.verdicts:
        by_title.setdefault(verdict.title, []).append(verdict)
    return by_title.items()


def headline(results: Results) -> str:
    """Return the table of the budgets, one row each."""
    lines = ["| | verl-otel adds | promised | others add, in times of that | in all |", "|---|---:|---:|---|---|"]
    for case in results.cases:
        for title, verdicts in rows(case):
            unit = case.figures[verdicts[0].figure].unit if verdicts[0].figure else case.unit
            own = verdicts[0].estimate if verdicts[0].figure else case.overheads[verdicts[0].ours].estimate
            bounds = [
                f"≤ {number(verdict.bound)} {_UNITS.get(unit, unit)}: {verdict.outcome}"
                for verdict in verdicts
                if not verdict.against
            ]
            others = [
                f"{verdict.against}: {times(verdict.estimate)}, promised {number(verdict.bound)}x: {verdict.outcome}"
                for verdict in verdicts
                if verdict.against
            ]
            outcome = min((verdict.outcome for verdict in verdicts if verdict.decides), key=_ORDER.index)
            lines.append(
                f"| {title} | {figure(own, unit)} | {', '.join(bounds) or '-'} | {'<br>'.join(others) or '-'} | {outcome} |"
            )
    return "\n".join([*lines, "", _conditions(results)])


def summary(results: Results, trainings: Results | None = None, totals: Results | None = None) -> str:
    """Return the table of README.md: what verl-otel and the alternatives add to a call, and the share of a training step.

    Args:
        results: Results of the hot paths.
        trainings: Results of trainings with real verl; those of `END_TO_END` if absent.
        totals: Results of total CPU; those of `TOTAL` if absent.
    """
    cases = {case.name: case for case in (*results.cases, *(totals or read(TOTAL)).cases)}
    lines = ["| added cost | verl-otel | OpenTelemetry SDK | `prometheus_client` |", "|---|---:|---:|---:|"]
    lines += [
        f"| {title} | {' | '.join(_cost(cases.get(name), contender) for contender in columns)} |"
        for title, (name, columns) in {
            **{title: (name, CONTENDERS) for title, name in SUMMARY.items()},
            **SUMMARY_TOTAL,
        }.items()
    ]
    (case,) = (trainings or read(END_TO_END)).cases
    share = estimate(case.figures[training.ALL].values[OURS])
    step = case.overheads[BASELINE].estimate
    if step is not None:
        most, length = case.pairs(OURS).most, duration(step.value, case.unit)
        bound = "" if most is None else f"at most {100 * max(0.0, most):.2f} % slower, with 95 %; "
        lines.append(
            f"| step of real verl ({length} on the CPU test bed) | {bound}CPU of all processes: {share.value:.2g} % of a core | - | - |"
        )
    return "\n".join(lines)


def _cost(case: CaseResult | None, name: str) -> str:
    overhead = case.overheads.get(name) if case is not None else None
    if case is None or overhead is None or overhead.estimate is None:
        return "-"
    return duration(overhead.estimate.value, case.unit)


def duration(value: float, unit: str) -> str:
    """Return a time in the unit in which it has the fewest digits.

    Args:
        value: The time.
        unit: ``ns``, ``us``, ``ms`` or ``s``.
    """
    units = ("ns", "us", "ms", "s")
    place = units.index(unit)
    while value >= 1000 and place < len(units) - 1:  # noqa: PLR2004 - of the next unit
        value, place = value / 1000, place + 1
    return f"{number(value)} {_UNITS.get(units[place], units[place])}"


def details(results: Results) -> str:
    """Return one table for each case with every variant, with or without a budget."""
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
    typical = sorted(overhead.typical)[len(overhead.typical) // 2] if overhead.typical else None
    typical_text = f"{number(typical)} {_UNITS.get(case.unit, case.unit)}" if typical is not None else "-"
    label = f"({name}: what it takes)" if name == BASELINE else name
    return f"| {label} | {figure(overhead.estimate, case.unit)} | {typical_text} | {overhead.text} |"


def _figures(case: CaseResult) -> str:
    """Return a table of what was found besides, as it was measured: nothing is subtracted."""
    lines = [f"\n| besides | {' | '.join(case.figures)} |", f"|---|{'---:|' * len(case.figures)}"]
    for name in case.overheads:
        cells = [
            figure(estimate(measured_figure.values[name]), measured_figure.unit)
            if measured_figure.values.get(name)
            else "-"
            for measured_figure in case.figures.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _pairs(case: CaseResult, name: str) -> str:
    """Return in words what pairs of runs say of a variant. An upper bound and what could be seen at all, never a point."""
    pairs = case.pairs(name)
    if pairs.most is None or pairs.resolution is None:
        return f"{name}: {pairs.number} pairs are too few for a bound; five are enough."
    if not pairs.fair:
        return (
            f"{name}: no result. Two runs without telemetry differ by {pairs.resolution:.2%}, always to the same side, "
            "so the order of the runs shows, or something changed meanwhile."
        )
    lower_bound = "" if pairs.outcome == NOT_SIGNIFICANT else f", and by {max(0.0, pairs.least or 0.0):.2%} at least"
    return (
        f"{name}: slower by {max(0.0, pairs.most):.2%} at most{lower_bound} ({pairs.number} pairs, 95 %). Two runs without telemetry differ by up to "
        f"{pairs.resolution:.2%}: nothing smaller can be seen here."
    )


def _conditions(results: Results) -> str:
    machine = results.machine
    counts = [len(overhead.values) for case in results.cases for overhead in case.overheads.values() if overhead.values]
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


def total(_results: Results) -> str:
    """Return the tables of total CPU, which have a result file of their own."""
    return details(read(TOTAL))


def real(_results: Results) -> str:
    """Return the table of trainings with real verl, which have a result file of their own."""
    return details(read(END_TO_END))


PAGES: Final = (
    (TOP / "README.md", "summary", summary),
    (TOP / "docs" / "explanation" / "performance.md", "total", total),
    (TOP / "docs" / "explanation" / "performance.md", "headline", headline),
    (TOP / "docs" / "explanation" / "performance.md", "trainings", real),
    (TOP / "docs" / "explanation" / "performance.md", "details", details),
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
