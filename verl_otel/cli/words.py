# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How names, durations and runs are written for people. Knows nothing of terminals or HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from verl_otel.analysis.facts import Explanation, Step
from verl_otel.semconv import attributes as attr

LONGEST: Final = 300
"""Characters of one name that are shown."""
SENTENCE: Final = 2_000
"""Characters of one sentence that are shown."""
MOST_FAILED: Final = 5
"""How many failed steps are named; the others are counted."""
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def show(text: object, limit: int = LONGEST) -> str:
    r"""Return a name as it may be shown: bounded, and what would be invisible or turn other text around is written out.

    Args:
        text: A name, or a sentence with names in it.
        limit: Characters that are shown at most.

    Example:
        show("a" + chr(0x202E) + "b") == r"a\u202eb"
    """
    value = str(text)
    value = value if len(value) <= limit else value[: limit - 1] + "…"
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value)


def shown_lines(text: object, limit: int = 20_000) -> str:
    """Return a text of many lines, such as a stack, as it may be shown."""
    value = str(text)
    return "\n".join(show(line) for line in value[:limit].split("\n"))


def seconds(value: float) -> str:
    """Return a duration that is short and easy to compare.

    Example:
        seconds(0.0312) == "31 ms"; seconds(75) == "1 m 15 s"
    """
    if not math.isfinite(value):
        return "an unknown time"
    if value < 0.9995:  # noqa: PLR2004 - below what rounds to a second
        return f"{value * 1000:.0f} ms"
    if value < 60:  # noqa: PLR2004 - a minute
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"


def number(step: Step) -> str:
    """Return the number of a step."""
    return "?" if step.number is None else str(step.number)


def headline(run: Explanation) -> Iterator[str]:
    """Yield what the page begins with: who the run is (empty where it does not say), and what there is of it."""
    facts = run.manifest
    who = "/".join(str(facts[key]) for key in (attr.PROJECT, attr.EXPERIMENT) if facts.get(key))
    how = ", ".join(str(facts[key]) for key in (attr.ALGORITHM, attr.TRAINER_MODE) if facts.get(key))
    version = f"verl {facts[attr.VERL_VERSION]}" if facts.get(attr.VERL_VERSION) else ""
    yield show(" · ".join(part for part in (who, how, version) if part))
    count = run.counts
    yield (
        f"{len(run.steps):,} steps, {len(run.validations):,} validations, {count.trajectories:,} trajectories "
        f"({count.trained:,} trained on), {count.llm_calls:,} LLM calls, {count.tool_calls:,} tool calls, "
        f"{count.processes:,} processes" + (f", {seconds((run.end_ns - run.start_ns) / 1e9)}" if run.start_ns else "")
    )


def failed(run: Explanation) -> str:
    """Return the sentence on steps that an exception ended; empty where none did."""
    found = [step for step in run.steps if step.failed]
    told = [
        f"step {number(step)} after {seconds(step.seconds)}{f': {step.error}' if step.error else ''}"
        for step in found[:MOST_FAILED]
    ]
    more = [f"and {len(found) - MOST_FAILED:,} more"] if len(found) > MOST_FAILED else []
    return show(f"FAILED: {', '.join(told + more)}", SENTENCE) if found else ""


def dead(each: Any) -> str:
    """Return the sentence on a process that fell silent with work open: it is dead."""
    held = [work for work in each.work if work.span.name == "verl.trajectory"]
    doing = f"{len(held)} open trajectories" if held else each.work[-1].span.name
    return f"{each.process.label} fell silent {seconds(each.silent)} before the rest, with {doing}."
