# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Compare two runs: what is slower in run B than in run A, what of that is significant, and what explains it.

Compares steps, phases, GPU time by cause, and tokens. A difference is significant if a statistical test confirms it and it is at least 3%.
The first step of each attempt is left out. For runs on several nodes, use verl-otel collect first.

Examples:
  verl-otel compare RUN_A RUN_B
  verl-otel compare --md main pull-request >> "$GITHUB_STEP_SUMMARY"
  verl-otel compare A B --fail-if 'step>+5%' --fail-if 'tokens_per_second<-5%' --fail-if 'gpu idle>+10%'
  verl-otel compare --json A B | jq '.rows[] | select(.significant)'

Exit code: 0 no condition holds, 1 a condition of --fail-if holds (significant, and beyond its limit), 2 wrong usage, 3 a condition
cannot be judged (too few complete steps: a run crashed or was short).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import comparison, significance
from verl_otel.analysis.comparison import LEVEL, SMALLEST_CHANGE, Comparison
from verl_otel.cli import options, run_selection
from verl_otel.cli.documents.compare import Compare, Row, make_compare
from verl_otel.cli.formatting import SENTENCE, align, print_json, print_text
from verl_otel.cli.wording import doing, figure
from verl_otel.semconv.kinds import WORK

NOT_JUDGED: Final = 3
"""Exit code: a condition could not be judged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", type=Path, metavar="A", help="folder or id of the baseline run")
    parser.add_argument("b", type=Path, metavar="B", help="folder or id of the run that is compared with it")
    options.add_run_dir(parser)
    form = parser.add_mutually_exclusive_group()
    options.add_json(form)
    form.add_argument("--md", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        type=_parse_condition,
        metavar="CONDITION",
        help="exit with 1 if this holds, e.g. 'step>+5%%'; NAME is a row: step, a phase, tokens_per_second, gpu idle ...",
    )
    parser.add_argument(
        "--noise",
        type=_percent,
        default=significance.NOISE,
        metavar="PERCENT",
        help="difference between runs of the same code (2%%); measure it on a shared machine",
    )
    parser.add_argument(
        "--skip",
        type=options.count,
        default=comparison.START_UP_STEPS,
        metavar="N",
        help="number of first steps of each attempt to leave out (1)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read both runs, compare, print. Returns 1 when a condition holds, 3 when one could not be judged."""
    a, b = (run_selection.explain([folder], "compare") for folder in (arguments.a, arguments.b))
    conditions: list[Condition] = arguments.fail_if
    row_names = dict.fromkeys([*comparison.names(a), *comparison.names(b)])
    compared = comparison.compare(
        a, b, asked=[condition.name for condition in conditions], noise=arguments.noise, skip=arguments.skip
    )
    if compared.enough or len(row_names) > 1:  # otherwise there are no recorded names to check against
        for condition in conditions:
            if condition.name not in row_names:
                print(
                    show(
                        f"verl-otel: --fail-if {condition.text!r}: {_suggest(condition.name, list(row_names))}",
                        SENTENCE,
                    ),
                    file=sys.stderr,
                )
                return 2
    results = [(condition.text, condition.judge(compared)) for condition in conditions]
    document = make_compare(compared, results, run_selection.name_run(a), run_selection.name_run(b))
    if arguments.json:
        print_json(document)
    elif arguments.md:
        print(render(document, markdown=True))
    else:
        print_text(render(document, markdown=False))
        print(f"\nNext: {document.next[0]}")
    for result in document.conditions:
        if not result.judged:
            text = f"verl-otel: --fail-if {result.condition!r} could not be judged: {result.reason}"
            print(show(text, SENTENCE), file=sys.stderr)
    if any(result.holds for result in document.conditions):
        return 1
    return 0 if all(result.judged for result in document.conditions) else NOT_JUDGED


def _parse_condition(text: str) -> Condition:
    try:
        return parse_condition(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:  # noqa: PLR2004 - per cent
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give a number from 0 to 100, e.g. 2%")
    return value / 100


def _suggest(name: str, row_names: list[str]) -> str:
    shown = [row_name for row_name in row_names if not row_name.startswith("path ")]
    return f"there is no row {name!r}; the rows are {', '.join(shown)}, and 'path KIND NAME' for parts of the critical path"


# -- Conditions on a comparison: ``NAME OP SIGNED-PERCENT``, for example ``step>+5%`` --

_FORM: Final = re.compile(r"\s*(?P<name>[^<>=]*[^<>=\s])\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\s*\d+(\.\d+)?)\s*%\s*")
_HELP: Final = (
    "write NAME>+PERCENT% or NAME<-PERCENT%, e.g. 'step>+5%' (slower by more than 5%) or 'tokens_per_second<-5%'"
)


class Result(NamedTuple):
    """Whether a condition holds."""

    holds: bool
    reason: str
    judged: bool = True
    """False: there are too few steps to judge it."""


class Condition(NamedTuple):
    """One condition."""

    text: str
    name: str
    """Name of a row of the comparison."""
    more: bool
    """True: holds when the row grew by more than the limit; False: when it shrank by more."""
    limit: float
    """Relative change, with its sign."""

    def judge(self, comparison: Comparison) -> Result:
        """Return whether it holds: the change must be significant and beyond the limit."""
        row = next((row for row in comparison.rows if row.name == self.name), None)
        if row is None:
            if not comparison.enough or self.name in comparison.untested:
                return Result(False, "too few steps to tell", judged=False)
            return Result(False, "neither run has any")
        change = row.difference.change
        beyond = change > self.limit if self.more else change < self.limit
        shown = f"{change:+.1%}" if math.isfinite(change) else "a value that A lacks"
        if not beyond:
            return Result(False, f"{shown} is within the limit")
        if not row.significant:
            return Result(False, f"{shown} is not significant")
        return Result(True, f"{shown} is significant and beyond the limit")


def parse_condition(text: str) -> Condition:
    """Return a condition.

    Raises:
        ValueError: It is not one; the message describes the format.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no condition: {_HELP}")
    limit = float(match["percent"].replace(" ", "")) / 100
    more = match["sign"] == ">"
    if limit != 0 and more != (limit > 0):
        raise ValueError(f"{text!r} would hold for runs that did not change: {_HELP}")
    return Condition(text.strip(), " ".join(match["name"].split()).removeprefix("phase "), more, limit)


# -- The text, for a terminal or as Markdown --

EXPLAINED_SHARE: Final = 0.1
"""Contributions below this share of a difference are summed, and so are those that are not significant."""


def render(compared: Compare, *, markdown: bool = False) -> str:
    """Return a comparison as text."""
    parts = ["\n".join(_head(compared, markdown=markdown))]
    mark = "- " if markdown else "  "
    held = [f"{mark}{line}" for line in list_held(compared)]
    parts += ["\n".join(["Steps that something delayed", *held])] if held else []
    if compared.rows:
        parts.append(_table(compared, markdown=markdown))
        parts.append(_legend(compared))
    resources = _render_resources(compared, markdown=markdown)
    if resources:
        parts.append(resources)
    if compared.notes:
        parts.append("\n".join(["Take note", *(f"{mark}{show(note)}" for note in compared.notes)]))
    lines = []
    for each in compared.conditions:
        state = "HOLDS" if each.holds else "does not hold" if each.judged else "could not be judged"
        lines.append(f"{mark}{show(each.condition)}: {state}, {each.reason}")
    if lines:
        parts.append("\n".join(["Conditions", *lines]))
    return "\n\n".join(parts)


def _head(compared: Compare, *, markdown: bool) -> Iterator[str]:
    title = (
        f"A {show(compared.a)} ({counted(compared.steps.a, 'step')}) · "
        f"B {show(compared.b)} ({counted(compared.steps.b, 'step')})"
    )
    yield f"### {title}\n" if markdown else title
    yield from list_sentences(compared)


def list_sentences(compared: Compare) -> Iterator[str]:
    """Yield whether a step of B takes more time or less than one of A, and what explains it."""
    if not compared.enough:
        yield (
            f"Too few steps to tell anything: {min(compared.steps.a, compared.steps.b)} in the shorter run{_after(compared.skipped)}, "
            f"{significance.FEWEST} are needed, 6 or more tell a change of a fifth."
        )
        return
    step = next(row for row in compared.rows if row.name == "step")
    before, after = step.a.typical, step.b.typical
    assumed = f"assuming that runs alike differ by {figure(100 * compared.noise)}%"
    if compared.noise == significance.NOISE:
        assumed += "; on a shared machine measure it: --noise"
    if step.significant:
        word = "more" if after > before else "less"
        change = f"{abs(step.change):.0%} {word} time"
        yield f"A step of B takes {change}: a typical one took {seconds(before)} in A, {seconds(after)} in B ({assumed})."
        yield from _explain(compared, after - before, before)
    else:
        yield (
            f"Not significant: a typical step took {seconds(before)} in A, {seconds(after)} in B ({_change(step)}). "
            f"Only a change of {step.detectable:.0%} or more would have been noticed ({assumed})."
        )
        others = [row.name for row in compared.rows if row.significant]
        if others:
            yield f"But these differ significantly: {', '.join(map(show, others))}."


def list_held(compared: Compare) -> Iterator[str]:
    """Yield how many steps of each run took longer than usual, and why; nothing if none did."""
    sides = {"A": compared.held.a, "B": compared.held.b}
    if any(held.verdict for held in sides.values()):
        for name, held in sides.items():
            yield f"{name}: {held.text}{'' if held.verdict is None else f'. {held.verdict}'}"


def _after(skipped: int) -> str:
    return f" after the first {'step' if skipped == 1 else f'{skipped} steps'}" if skipped else ""


def _explain(compared: Compare, more: float, before: float) -> Iterator[str]:
    """Yield the significant contributions to the difference of a step, in percentage points."""
    if not compared.explanation:
        yield "What explains it is not known: a run has steps without a critical path."
        return
    large = [
        contribution
        for contribution in compared.explanation
        if contribution.significant and abs(contribution.seconds) >= EXPLAINED_SHARE * abs(more)
    ]
    for contribution in large:
        yield f"  {_points(contribution.seconds / before)} {_name_latency(contribution.kind)}{_names(contribution)}"
    rest = more - sum(contribution.seconds for contribution in large)
    yield f"  {_points(rest / before)} everything else on the critical path"


def _points(share: float) -> str:
    return f"{100 * share:+6.1f} percentage points:"


def _name_latency(kind: str) -> str:
    work = WORK.get(kind)
    return kind if work is None else work.latency or work.words


def _names(contribution: comparison.Contribution) -> str:
    """Return the largest parts of a contribution."""
    names = contribution.names
    large = [part for part in names if part.name and abs(part.b - part.a) >= 0.25 * abs(contribution.seconds)][:2]
    shown = [
        f"{doing('tool', part.name) if contribution.kind == 'tool' else part.name}: {seconds(part.a)} -> {seconds(part.b)}"
        for part in large
    ] or [f"{seconds(sum(part.a for part in names))} -> {seconds(sum(part.b for part in names))}"]
    return show(f" ({', '.join(shown)})")


def _table(compared: Compare, *, markdown: bool) -> str:
    cells = [["", "A", "B", "change", ""]]
    for row in compared.rows:
        scale, suffix = _scale(row)
        suffix = suffix if compared.has_gpu else suffix.replace("GPU", "device")
        samples = [_sample(sample, scale, suffix) for sample in (row.a, row.b)]
        cells.append([show(row.name), *samples, _change(row), _judgement(row)])
    return _lay_out(cells, markdown=markdown)


def _scale(row: Row) -> tuple[int, str]:
    """Return the unit of all numbers of a row, and by what they are multiplied: they are there to be compared."""
    largest = max(row.a.typical, row.b.typical)
    if row.unit.startswith("s"):
        return (1, " s") if largest >= 1 else (1000, " ms")
    return (1000, " GPU ms/token") if row.unit.startswith("GPU") else (1, " tokens/s")


def _sample(sample: significance.Sample, scale: int, suffix: str) -> str:
    """Return the typical value, which is tested, with the middle half of the steps."""
    return f"{figure(scale * sample.typical)}{suffix} ({figure(scale * sample.low)}-{figure(scale * sample.high)})"


def _change(row: Row) -> str:
    return "new" if math.isinf(row.change) else f"{row.change:+.1%}"


def _judgement(row: Row) -> str:
    if row.significant:
        return f"significant (p {'< 0.001' if row.p < 0.001 else f'= {row.p:.3f}'})"  # noqa: PLR2004 - three digits
    return "not significant"


def _legend(compared: Compare) -> str:
    return (
        f"Mean without the fastest and slowest fifth (and where the middle half lies) of {_count(compared)} steps each"
        f"{_after(compared.skipped)}{_device_rows(compared)}.\n{_token_rows(compared)}"
        f"Change: of these means. Significant: at least {SMALLEST_CHANGE:.0%}, and p < {LEVEL} adjusted for "
        f"{counted(len(compared.rows), 'row')}."
    )


def _device_rows(compared: Compare) -> str:
    if not any(row.name.startswith("gpu ") for row in compared.rows):
        return ""
    device = "GPU" if compared.has_gpu else "device (CPU)"
    return f"; gpu rows: seconds of one {device} until the next step"


def _token_rows(compared: Compare) -> str:
    """Return which tokens those of two rows are, and what they are divided by."""
    if not any(row.name == "tokens_per_second" for row in compared.rows):
        return ""
    device = "GPU" if compared.has_gpu else "device"
    return (
        "Tokens: those that the model wrote and that were trained on, per second of their step; "
        f"{device} seconds: those of all {device}s until the next step.\n"
    )


def _count(compared: Compare) -> str:
    least, most = sorted((compared.steps.a, compared.steps.b))
    return f"{least}" if least == most else f"the same {least}"


# -- The resources of two runs: GPUs, tokens per second, utilisation, memory, and how throughput scales with the number of GPUs --

_GIB: Final = 1 << 30
_ROWS: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "gpus": ("GPUs", lambda value: f"{value:.0f}"),
    "trained_tokens_per_second": ("trained tokens, per second of a step", lambda value: f"{figure(value)}/s"),
    "rollout_tokens_per_second": ("generated tokens, per second of the run", lambda value: f"{figure(value)}/s"),
    "gpu_utilization": ("GPU utilisation", lambda value: f"{value:.0%}"),
    "gpu_memory": ("memory of a GPU, mean", lambda value: f"{figure(value / _GIB)} GiB"),
    "gpu_memory_highest": ("memory of a GPU, highest", lambda value: f"{figure(value / _GIB)} GiB"),
}
"""Name and form of each value of `Resources`."""


def _render_resources(compared: Compare, *, markdown: bool) -> str:
    """Return the resources of both runs as a table; empty if nothing but their number of GPUs is known."""
    before, after = compared.resources.a, compared.resources.b
    cells = [["Resources", "A", "B", "change", ""]]
    for field, (name, form) in _ROWS.items():
        a, b = getattr(before, field), getattr(after, field)
        if a is not None or b is not None:
            shown = [form(value) if value is not None else "unknown" for value in (a, b)]
            change = f"{b / a - 1:+.1%}" if a and b is not None else ""
            cells.append([name if compared.has_gpu else name.replace("GPUs", "devices"), *shown, change, ""])
    if len(cells) <= 2:  # noqa: PLR2004 - the head, and the number of GPUs
        return ""
    lines = [_lay_out(cells, markdown=markdown), *(_scaling(compared) if compared.enough else [])]
    return "\n".join(lines)


def _scaling(compared: Compare) -> list[str]:
    scaling = compared.scaling
    if scaling is None:
        return []
    shares = {"trained tokens": scaling.trained_tokens, "generated tokens": scaling.rollout_tokens}
    known = [f"{share:.0%} for {name}" for name, share in shares.items() if share is not None]
    if not known:
        return []
    unit = "GPUs" if compared.has_gpu else "devices"
    return [
        "",
        (
            f"Scaling efficiency from {compared.resources.a.gpus} to {compared.resources.b.gpus} {unit}, "
            f"tokens per second and {unit.removesuffix('s')}: {', '.join(known)} (100% is linear)."
        ),
    ]


# -- The tables: name, A, B, change, remark --


def _lay_out(cells: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Return a table of five columns as text; the first row is its head."""
    if markdown:
        lines = [
            " | ".join(line).join(("| ", " |"))
            for line in [[part.replace("|", "\\|") for part in row] for row in cells]
        ]
        return "\n".join([lines[0], "|---|---:|---:|---:|---|", *lines[1:]])
    return "\n".join(f"  {line}" for line in align(cells, right=(1, 2, 3)))
