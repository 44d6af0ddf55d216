# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Say what is slower in run B than in run A, what of that is more than noise, and what explains it.

Steps, phases, the time of a GPU by cause, and tokens are compared. A difference is called significant only when a test says so and it is
at least 3 %; the first step of each run is left out. The runs of several nodes are fetched into one folder by verl-otel collect first.

Examples:
  verl-otel compare RUN_A RUN_B
  verl-otel compare --md main pull-request >> "$GITHUB_STEP_SUMMARY"
  verl-otel compare A B --fail-if 'step>+5%' --fail-if 'tokens_per_second<-5%' --fail-if 'gpu idle>+10%'
  verl-otel compare --json A B | jq '.rows[] | select(.significant)'

Exit code: 0 no condition holds, 1 a condition of --fail-if holds (significant and beyond), 2 wrong usage, 3 a condition could not be judged
(too few whole steps: a run crashed, or was short).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from verl_otel.analysis import compare, significance
from verl_otel.cli import compare_json, compare_text, options, runs
from verl_otel.cli.conditions import Condition, parse

NOT_JUDGED: Final = 3
"""Exit code: neither that a condition holds nor that it does not is known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", type=Path, metavar="A", help="folder or id of the run to compare with")
    parser.add_argument("b", type=Path, metavar="B", help="folder or id of the run to judge")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for scripts")
    form.add_argument("--md", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        type=_condition,
        metavar="CONDITION",
        help="exit 1 if this is so, e.g. 'step>+5%%'; NAME is a row: step, a phase, tokens_per_second, gpu idle ...",
    )
    parser.add_argument(
        "--noise",
        type=_percent,
        default=significance.NOISE,
        metavar="PERCENT",
        help="by how much runs of the same thing differ from each other (2%%); more on a shared machine: measure it",
    )
    parser.add_argument(
        "--skip",
        type=options.count,
        default=compare.START_UP_STEPS,
        metavar="N",
        help="first steps that do not count (1)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read both runs, compare, print. Returns 1 when a condition holds, 3 when one could not be judged."""
    a, b = (runs.explain([each]) for each in (arguments.a, arguments.b))
    conditions: list[Condition] = arguments.fail_if
    known = dict.fromkeys([*compare.names(a), *compare.names(b)])
    found = compare.compare(a, b, asked=[each.name for each in conditions], noise=arguments.noise, skip=arguments.skip)
    if found.enough or len(known) > 1:  # else nothing was recorded that a name could be checked against
        for condition in conditions:
            if condition.name not in known:
                print(
                    f"verl-otel: --fail-if {condition.text!r}: {_suggest(condition.name, list(known))}", file=sys.stderr
                )
                return 2
    results = [(each, each.judge(found)) for each in conditions]
    if arguments.json:
        json.dump(compare_json.to_json(found, results), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print(compare_text.render(found, results, markdown=arguments.md))
    for condition, result in results:
        if not result.judged:
            print(f"verl-otel: --fail-if {condition.text!r} could not be judged: {result.reason}", file=sys.stderr)
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


def _suggest(name: str, known: list[str]) -> str:
    shown = [each for each in known if not each.startswith("path ")]
    return f"there is no row {name!r}; the rows are {', '.join(shown)}, and 'path KIND NAME' for parts of the critical path"
