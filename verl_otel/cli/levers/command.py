# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rank what would make a run faster, with the predicted gain and its uncertainty.

The newest steps of the run, up to 64, are replayed with one thing changed: a tool that takes half of its time or no longer blocks its event
loop, twice as many replicas, weights that are sent in the background, and others. RUN is as for explain.

Examples:
  verl-otel levers
  verl-otel levers 20261121-093000-a3f2
  verl-otel levers --json RUN | jq '.levers[0]'

Exit code: 0 ranked, 1 the run contains nothing that can be replayed, 2 wrong usage.
"""

from __future__ import annotations

import argparse

from verl_otel.analysis.levers.ranking import find_levers
from verl_otel.cli import options, run_selection
from verl_otel.cli.formatting import print_json
from verl_otel.cli.levers import rendering


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser)
    options.add_otlp(parser)
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Read, replay, print. Returns 1 when the run has nothing to replay."""
    explanation = run_selection.explain(arguments.folders, "levers", otlp=arguments.otlp)
    levers = find_levers(explanation.recent_steps)
    if arguments.json:
        print_json(rendering.to_json(explanation, levers))
    else:
        print(rendering.render(explanation, levers))
    return 0 if levers.levers else 1
