# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explain why steps were slow: verdict, critical path, GPU time.

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a
run have folders of their own. Runs that are active or were killed can be read, too.

Examples:
  verl-otel explain
  verl-otel explain 20261121-093000-a3f2 --steps 5
  verl-otel explain --step 7 ~/.local/state/verl-otel/runs/20261121-093000-a3f2
  verl-otel explain node-1/RUN node-2/RUN
  verl-otel explain --brief RUN
  verl-otel explain --json RUN | jq '.steps[0].verdicts'

Exit code: 0 explained, 1 the run contains nothing to explain, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys

from verl_otel._internal.printable import counted
from verl_otel.analysis.model import Explanation
from verl_otel.cli import options, run_selection
from verl_otel.cli.explain import render_brief, render_json, render_text
from verl_otel.cli.formatting import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser)
    options.add_otlp(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--step", type=options.count, metavar="N", help="explain this step, with its complete critical path"
    )
    which.add_argument(
        "--steps", type=options.positive, default=3, metavar="K", help="how many of the slowest steps to explain (3)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for scripts")
    form.add_argument("--brief", action="store_true", help="print at most 40 lines, with ids as evidence")


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse, say. Returns 1 when the run has nothing to explain."""
    asked = None if arguments.step is None else frozenset({arguments.step})
    explanation = run_selection.explain(arguments.folders, "explain", otlp=arguments.otlp, steps=asked)
    if asked:
        chosen = [step for step in explanation.steps if step.number in asked]
        if not chosen:
            print(f"verl-otel: step {arguments.step} is not in the run: {_known(explanation)}", file=sys.stderr)
            return 2
    else:
        chosen = render_text.choose(explanation, arguments.steps)
    if arguments.json:
        print_json(render_json.to_json(explanation, chosen))
    elif arguments.brief:
        print(render_brief.render(explanation, chosen))
    else:
        print(
            render_text.render_step(explanation, chosen)
            if asked
            else render_text.render(explanation, steps=arguments.steps)
        )
    if explanation.steps or explanation.events or explanation.completeness.unfinished:
        return 0
    print(f"verl-otel: {_nothing(explanation)}", file=sys.stderr)
    return 1


def _known(explanation: Explanation) -> str:
    numbers = sorted(step.number for step in explanation.steps if step.number is not None)
    if not numbers:
        return "none of its steps has ended"
    if len(numbers) == 1:
        return f"it has one step, {numbers[0]}"
    return f"it has {len(numbers):,} steps, {numbers[0]} to {numbers[-1]}"


def _nothing(explanation: Explanation) -> str:
    if explanation.counts.trajectories:
        found = counted(explanation.counts.trajectories, "trajectory", "trajectories")
        return f"no step to explain, only {found}: verl-otel report shows more"
    return "nothing to explain: no step was recorded. verl-otel check says whether training is hooked"
