# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders a comparison as text, for a terminal or as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from verl_otel._internal.printable import counted, show
from verl_otel.analysis import significance
from verl_otel.analysis.comparison import LEVEL, SMALLEST_CHANGE, Comparison, Contribution, Row
from verl_otel.analysis.significance import Sample
from verl_otel.cli.compare import render_resources
from verl_otel.cli.compare.conditions import Condition, Result
from verl_otel.cli.compare.layout import lay_out
from verl_otel.cli.explain.wording import KINDS, doing, figure
from verl_otel.cli.formatting import seconds

EXPLAINED_SHARE: Final = 0.1
"""Contributions below this share of a difference are summed."""
_LATENCY: Final = {
    "tool": "tool latency",
    "server": "LLM servers",
    "llm": "LLM calls outside their servers",
    "queue": "the engines' queues",
    "prefill": "prefill",
    "decode": "decoding",
    "worker": "the workers' methods",
    "call": "transport to the workers and back",
    "phase": "the trainer's own code",
    "step": "the trainer between phases",
    "trajectory": "the agent loop's own code and waiting time",
    "start": "waiting for room in the agent loop",
    "poll": "rollouts that had ended unnoticed",
}


def render(comparison: Comparison, results: Sequence[tuple[Condition, Result]], *, markdown: bool = False) -> str:
    """Return a comparison as text."""
    parts = ["\n".join(_head(comparison, markdown=markdown))]
    if comparison.rows:
        parts.append(_table(comparison, markdown=markdown))
        parts.append(_legend(comparison))
    resources = render_resources.render(comparison, markdown=markdown)
    if resources:
        parts.append(resources)
    if comparison.notes:
        parts.append(
            "\n".join(["Take note", *(f"{'- ' if markdown else '  '}{show(note)}" for note in comparison.notes)])
        )
    if results:
        lines = [f"{'- ' if markdown else '  '}{_condition(*result)}" for result in results]
        parts.append("\n".join(["Conditions", *lines]))
    return "\n\n".join(parts)


def _head(comparison: Comparison, *, markdown: bool) -> Iterator[str]:
    counts = comparison.counts
    title = (
        f"A {show(comparison.a)} ({counted(counts[0], 'step')}) · B {show(comparison.b)} ({counted(counts[1], 'step')})"
    )
    yield f"### {title}\n" if markdown else title
    if not comparison.enough:
        yield (
            f"Too few steps to tell anything: {min(counts)} in the shorter run{_after(comparison.skipped)}, "
            f"{significance.FEWEST} are needed, 6 or more tell a change of a fifth."
        )
        return
    step = next(row for row in comparison.rows if row.name == "step")
    before, after = step.difference.a.typical, step.difference.b.typical
    assumed = f"assuming that runs alike differ by {figure(100 * comparison.noise)}%"
    if comparison.noise == significance.NOISE:
        assumed += "; on a shared machine measure it: --noise"
    if step.significant:
        word = "slower" if after > before else "faster"
        yield f"B is {abs(step.difference.change):.0%} {word}: a typical step took {seconds(before)} in A, {seconds(after)} in B ({assumed})."
        yield from _explain(comparison, after - before, before)
    else:
        yield (
            f"Not significant: a typical step took {seconds(before)} in A, {seconds(after)} in B ({_change(step)}). "
            f"Only a change of {step.detectable:.0%} or more would have been noticed ({assumed})."
        )
        others = [row.name for row in comparison.rows if row.significant]
        if others:
            yield f"But these differ significantly: {', '.join(map(show, others))}."


def _after(skipped: int) -> str:
    return f" after the first {'step' if skipped == 1 else f'{skipped} steps'}" if skipped else ""


def _explain(comparison: Comparison, more: float, before: float) -> Iterator[str]:
    """Yield the contributions to the difference of a step, in percentage points."""
    if not comparison.contributions:
        yield "What explains it is not known: a run has steps without a critical path."
        return
    large = [
        contribution
        for contribution in comparison.contributions
        if abs(contribution.seconds) >= EXPLAINED_SHARE * abs(more)
    ]
    for contribution in large:
        yield f"  {_points(contribution.seconds / before)} {_LATENCY.get(contribution.kind, KINDS.get(contribution.kind, contribution.kind))}{_names(contribution)}"
    rest = more - sum(contribution.seconds for contribution in large)
    yield f"  {_points(rest / before)} everything else on the critical path"


def _points(share: float) -> str:
    return f"{100 * share:+6.1f} points:"


def _names(contribution: Contribution) -> str:
    """Return the largest parts of a contribution."""
    large = [
        part for part in contribution.names if part[0] and abs(part[2] - part[1]) >= 0.25 * abs(contribution.seconds)
    ][:2]
    shown = [
        f"{doing('tool', name) if contribution.kind == 'tool' else name}: {seconds(a)} -> {seconds(b)}"
        for name, a, b in large
    ]
    if not shown:
        shown = [
            f"{seconds(sum(part[1] for part in contribution.names))} -> {seconds(sum(part[2] for part in contribution.names))}"
        ]
    return show(f" ({', '.join(shown)})")


def _table(comparison: Comparison, *, markdown: bool) -> str:
    cells = [["", "A", "B", "change", ""]]
    for row in comparison.rows:
        scale, suffix = _scale(row)
        suffix = suffix if comparison.has_gpu else suffix.replace("GPU", "device")
        samples = [_sample(sample, scale, suffix) for sample in (row.difference.a, row.difference.b)]
        cells.append([show(row.name), *samples, _change(row), _judgement(row)])
    return lay_out(cells, markdown=markdown)


def _scale(row: Row) -> tuple[int, str]:
    """Return the unit of all numbers of a row, and by what they are multiplied: they are there to be compared."""
    if row.unit.startswith("s"):
        return (1, " s") if max(row.difference.a.median, row.difference.b.median) >= 1 else (1000, " ms")
    return (1000, " GPU ms") if row.unit.startswith("GPU") else (1, "/s")


def _sample(sample: Sample, scale: int, suffix: str) -> str:
    """Return the median with the middle half of the steps."""
    return f"{figure(scale * sample.median)}{suffix} ({figure(scale * sample.low)}-{figure(scale * sample.high)})"


def _change(row: Row) -> str:
    change = row.difference.change
    return "new" if math.isinf(change) else f"{change:+.1%}"


def _judgement(row: Row) -> str:
    if row.significant:
        return f"significant (p {'< 0.001' if row.p < 0.001 else f'= {row.p:.3f}'})"  # noqa: PLR2004 - three digits
    return "not significant"


def _legend(comparison: Comparison) -> str:
    return (
        f"Median (middle half) of {_count(comparison)} steps each{_after(comparison.skipped)}{_device_rows(comparison)}.\n"
        f"Change: of the mean without the fastest and slowest fifth. Significant: at least {SMALLEST_CHANGE:.0%}, and p < {LEVEL} adjusted for "
        f"{counted(len(comparison.rows), 'row')}."
    )


def _device_rows(comparison: Comparison) -> str:
    if not any(row.name.startswith("gpu ") for row in comparison.rows):
        return ""
    device = "GPU" if comparison.has_gpu else "device (CPU)"
    return f"; gpu rows: seconds of one {device} until the next step"


def _count(comparison: Comparison) -> str:
    least, most = sorted(comparison.counts)
    return f"{least}" if least == most else f"the same {least}"


def _condition(condition: Condition, result: Result) -> str:
    state = "HOLDS" if result.holds else "does not hold" if result.judged else "could not be judged"
    return f"{show(condition.text)}: {state}, {result.reason}"
