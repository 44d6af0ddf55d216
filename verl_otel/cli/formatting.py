# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Formats names, durations and runs for users, independently of the output format."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Union

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis.document import Document
from verl_otel.analysis.io import run_status
from verl_otel.analysis.model import Explanation, UnfinishedProcess
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.cli.documents.base import to_plain
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.run_state import RunState

if TYPE_CHECKING:
    from verl_otel.analysis import model
    from verl_otel.cli.documents import explain, report

    AnyStep = Union[model.Step, explain.Step, report.Step]

DOCUMENTS: Final = "https://github.com/verl-otel/verl-otel/blob/main/"
"""Where the pages are: an installation has none."""
SENTENCE: Final = 2_000
"""Maximum number of characters of one sentence."""
MOST_FAILED: Final = 5
"""Maximum number of failed steps that are listed; the others are counted."""

WIDTH: Final = 120
"""Characters of a line of a text."""
MIN_WIDTH: Final = 40
"""Lines are not divided further for a terminal that is narrower."""
BRIEF_LINES: Final = 40
"""Lines of ``explain --brief``."""
VERDICT_LINES: Final = 3
"""Causes of a step, and late ranks, that are shown."""

DAY: Final = 86400
MAX_DAYS: Final = 1000
"""An age of more days is not written in days."""


_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|m|h|d|[KMGT]iB)\b|%)")
_NO_BREAK: Final = "\u00a0"


def wrap(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return the lines of a text. A number and its unit are not divided, nor is a word, such as an address, which may be longer than a line.

    Args:
        text: The text.
        width: Characters of a line, on a terminal that has as many, also if the lines are indented by two.
        first: What the first line begins with.
        rest: What the other lines begin with.
    """
    lines = textwrap.wrap(
        _UNIT.sub(_NO_BREAK, text),
        min(width, _columns() - 2),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _columns() -> int:
    """Return the columns of the terminal; where the output goes elsewhere, as many as any line has."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return max(MIN_WIDTH, shutil.get_terminal_size().columns) if is_terminal else sys.maxsize


def print_text(text: str) -> None:
    """Print a text for people. What a terminal has no room for is divided between words, and goes on indented."""
    columns = _columns()
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        print("\n".join(wrap(line, columns, rest=f"{indent}  ")) if len(line) > columns else line)


def age(value: float) -> str:
    """Format the age of a file in seconds, from two days on in days.

    Example:
        age(2592000) == "30 d"
    """
    return f"{value / DAY:.3g} d" if 2 * DAY <= value < MAX_DAYS * DAY else seconds(max(0.0, value))


def show_bytes(count: float) -> str:
    """Return a size with a unit.

    Example:
        "34.1 MiB" of 35756441
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:  # noqa: PLR2004 - then the next unit is shorter
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def print_json(value: Any) -> None:
    """Print a document, or plain data, as JSON for scripts."""
    plain = to_plain(value) if isinstance(value, Document) else value
    print(json.dumps(plain, indent=1, allow_nan=False))


def align(rows: Sequence[Sequence[str]], right: Collection[int] | None = None) -> list[str]:
    """Return the lines of a table, each column as wide as its longest cell.

    Args:
        rows: Cells, the same number in each row.
        right: Columns that are aligned to the right; None: all.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if right is None or column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def show_settings(advice: str, *, has_verl: bool) -> str:
    """Return an advice with settings of verl, which are in brackets, in parentheses; an own loop has none."""
    return re.sub(r" \[([^]]*)\]", r" (\1)" if has_verl else "", advice)


def number(step: AnyStep) -> str:
    """Return the number of a step, and whether a later attempt went on from weights before it."""
    return f"{'?' if step.number is None else step.number}{' (superseded)' if step.repeated else ''}"


def headline(run: Explanation) -> Iterator[str]:
    """Yield the header lines: project, experiment and trainer of the run (empty if unknown), and its counts."""
    facts = run.manifest
    experiment = "/".join(str(facts[key]) for key in (attr.PROJECT, attr.EXPERIMENT) if facts.get(key))
    how = ", ".join(str(facts[key]) for key in (attr.ALGORITHM, attr.TRAINER_MODE) if facts.get(key))
    version = f"verl {facts[attr.VERL_VERSION]}" if facts.get(attr.VERL_VERSION) else ""
    yield show(" · ".join(part for part in (experiment, how, version) if part))
    count = run.counts
    ends = [
        f"{number:,} {what}" for number, what in ((count.cancelled, "cancelled"), (count.failed, "failed")) if number
    ]
    stopped = f", of which {' and '.join(ends)}" if ends else ""
    yield (
        f"{counted(len(run.steps), 'step')}, {counted(len(run.validations), 'validation')}, "
        f"{counted(count.trajectories, 'trajectory', 'trajectories')} ({count.trained:,} trained on)"
        f"{stopped}, "
        f"{counted(count.llm_calls, 'LLM call')}, {counted(count.tool_calls, 'tool call')}, "
        f"{counted(count.processes, 'process', 'processes')}"
        + (f", {seconds((run.end_ns - run.start_ns) / 1e9)} from the start to the last record" if run.start_ns else "")
        + (f" in {run.steps[-1].attempt} attempts" if run.steps and run.steps[-1].attempt > 1 else "")
    )


def failed(run: Explanation) -> str:
    """Return the message about steps that failed or were interrupted, and about the exception that ended the program after them; empty without any."""
    steps = [step for step in run.steps if step.failed]
    texts = [
        f"step {number(step)} after {seconds(step.seconds)}{name_error(step.error, step.error_line, step.error_instance)}"
        f"{step.dead_child and f'; {step.dead_child}'}"
        for step in steps[:MOST_FAILED]
    ]
    more = [f"and {len(steps) - MOST_FAILED:,} more"] if len(steps) > MOST_FAILED else []
    word = "FAILED" if any(not step.interrupted for step in steps) else "INTERRUPTED"
    stopped = f"{word}: {', '.join(texts + more)}" if steps else ""
    status = run_status.read(run.manifest)
    last = run.steps[-1] if run.steps else None
    is_of_step = last is not None and last.failed and not last.interrupted
    if run.state == RunState.FAILED.word and status is not None and status.newest.error and not is_of_step:
        after = "before the first step" if last is None else f"after step {number(last)}"
        ended = f"FAILED {after}{name_error(status.newest.error, status.newest.error_line)}"
        stopped = f"{ended}; {stopped}" if stopped else ended
    return show(stopped, SENTENCE)


def name_error(error: str, line: str, instance: str = "") -> str:
    """Return an exception with where it was raised, after a colon; empty without one."""
    place, _, function = line.rpartition(" in ")
    where = f" in {function}" if function else ""
    where += f" ({place.rpartition('/')[2]})" if place else ""
    where += f" on {instance}" if instance else ""
    return f": {error}{where}" if error else ""


def end_of(step: AnyStep) -> str:
    """Return how a step ended, ``FAILED`` or ``INTERRUPTED``; empty if it came to its end."""
    return ("INTERRUPTED" if step.interrupted else "FAILED") if step.failed else ""


def orphans(run: Explanation | explain.Explain | report.Report) -> str:
    """Return the message about spans without a parent; empty if there are none."""
    count = run.orphans
    if not count:
        return ""
    verb = "has" if count == 1 else "have"
    if run.state == RunState.RUNNING.word:
        return f"{counted(count, 'span')} {verb} a parent that is not written yet"
    why = "a process was killed in its last second, or its files are missing"
    return f"{counted(count, 'span')} {verb} a parent in no file: {why}"


def dead(unfinished: UnfinishedProcess) -> str:
    """Return the message about a dead process with open spans."""
    held = [work for work in unfinished.work if work.span.name == TRAJECTORY]
    doing = counted(len(held), "open trajectory", "open trajectories") if held else unfinished.work[-1].span.name
    return f"{unfinished.process.label} stopped writing {seconds(unfinished.silent)} before the others, with {doing}."
