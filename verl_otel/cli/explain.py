# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Say in words why steps were slow: what held them, what they waited for, what the GPUs did meanwhile.

Without a folder the newest run is taken; the id of a run is enough, too. Give several folders when the nodes of a run have folders of
their own. Files of a run that is still going, or was killed, are read as far as they go.

Examples:
  verl-otel explain
  verl-otel explain 20261121-093000-a3f2 --steps 5
  verl-otel explain --step 7 ~/.local/state/verl-otel/runs/20261121-093000-a3f2
  verl-otel explain node-1/RUN node-2/RUN
  verl-otel explain --json RUN | jq '.steps[0].verdicts'

Exit code: 0 explained, 1 the run holds nothing to explain, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from verl_otel.analysis.facts import Explanation
from verl_otel.cli import explain_json, explain_text, options, runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="RUN", help="folder or id of the run; several for several nodes"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="N", help="this step, with its whole critical path")
    which.add_argument("--steps", type=options.positive, default=3, metavar="K", help="how many of the worst steps (3)")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse, say. Returns 1 when the run has nothing to explain."""
    asked = None if arguments.step is None else frozenset({arguments.step})
    found = runs.explain(arguments.folders, steps=asked)
    if asked:
        chosen = [step for step in found.steps if step.number in asked]
        if not chosen:
            print(f"verl-otel: step {arguments.step} is not in the run: {_known(found)}", file=sys.stderr)
            return 2
    else:
        chosen = explain_text.choose(found, arguments.steps)
    if arguments.json:
        json.dump(explain_json.to_json(found, chosen), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print(explain_text.render_step(found, chosen) if asked else explain_text.render(found, steps=arguments.steps))
    if found.steps or found.events or getattr(found.gaps, "unfinished", ()):
        return 0
    print(f"verl-otel: {_nothing(found)}", file=sys.stderr)
    return 1


def _known(found: Explanation) -> str:
    numbers = sorted(step.number for step in found.steps if step.number is not None)
    if not numbers:
        return "none of its steps has ended"
    return f"it has {len(numbers):,} steps, {numbers[0]} to {numbers[-1]}"


def _nothing(found: Explanation) -> str:
    if found.counts.trajectories:
        return f"no step to explain, only {found.counts.trajectories:,} trajectories: verl-otel report shows them"
    return "nothing to explain: no step was recorded. verl-otel check says whether training is hooked"
