# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print where the time of a run went: steps, phases, slowest trajectories, rewards, missing data.

RUN_DIR is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a
run have folders of their own. Runs that are active or were killed can be read, too.

Examples:
  verl-otel report
  verl-otel report ~/.local/state/verl-otel/runs/20261121-093000-a3f2
  verl-otel report node-1/RUN node-2/RUN
  verl-otel report --json RUN | jq '.steps[0].phases'
  verl-otel report RUN --html run.html
  verl-otel report --otlp traces.jsonl

Exit code: 0 reported, 1 the run contains nothing to report, 2 wrong usage, or the page cannot be written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_otel._internal.printable import show
from verl_otel.cli import options, page, run_selection
from verl_otel.cli.formatting import SENTENCE, print_json
from verl_otel.cli.report import render_json, render_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser, "RUN_DIR")
    options.add_otlp(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for scripts")
    form.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page that needs no service")
    parser.add_argument(
        "--slowest", type=options.count, default=5, metavar="N", help="how many slow trajectories to show (5)"
    )
    parser.add_argument(
        "--steps",
        type=options.positive,
        default=20,
        metavar="N",
        help="how many steps to show; of more, the slowest (20)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse, print. Returns 1 when the run has no step, trajectory or open work to speak of."""
    explanation = run_selection.explain(arguments.folders, "report", otlp=arguments.otlp)
    if arguments.html is not None:
        page.write(explanation, arguments.html)
        print(f"{show(arguments.html, SENTENCE)}: open it in a browser; it needs nothing else")
    elif arguments.json:
        print_json(render_json.to_json(explanation))
    else:
        print(render_text.render(explanation, slowest=arguments.slowest, steps=arguments.steps))
    return 0 if explanation.steps or explanation.counts.trajectories or explanation.completeness.unfinished else 1
