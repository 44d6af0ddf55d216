# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Compare two runs: what is slower in run B than in run A, what of that is significant, and what explains it.

Compares steps, phases, GPU time by cause, and tokens. A difference is significant if a statistical test confirms it and it is at least 3 %.
The first step of each run is left out. For runs on several nodes, use verl-otel collect first.

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
import sys
from pathlib import Path
from typing import Final

from verl_otel._internal.printable import show
from verl_otel.analysis import comparison, significance
from verl_otel.cli import options, run_selection
from verl_otel.cli.compare import render_json, render_text
from verl_otel.cli.compare.conditions import Condition, parse
from verl_otel.cli.formatting import SENTENCE, print_json

NOT_JUDGED: Final = 3
"""Exit code: a condition could not be judged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", type=Path, metavar="A", help="folder or id of the baseline run")
    parser.add_argument("b", type=Path, metavar="B", help="folder or id of the run that is compared with it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for scripts")
    form.add_argument("--md", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        type=_condition,
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
        help="number of first steps to leave out (1)",
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
    results = [(condition, condition.judge(compared)) for condition in conditions]
    if arguments.json:
        print_json(render_json.to_json(compared, results))
    else:
        print(render_text.render(compared, results, markdown=arguments.md))
    for condition, result in results:
        if not result.judged:
            text = f"verl-otel: --fail-if {condition.text!r} could not be judged: {result.reason}"
            print(show(text, SENTENCE), file=sys.stderr)
    if any(result.holds for _, result in results):
        return 1
    return 0 if all(result.judged for _, result in results) else NOT_JUDGED


def _condition(text: str) -> Condition:
    try:
        return parse(text)
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
