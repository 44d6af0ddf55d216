# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print where the time of a run went: steps, phases, slowest trajectories, reward, what is missing.

Without a folder the newest run is taken; the id of a run is enough, too. Give several folders when the nodes of a run have folders of
their own. Files of a run that is still going, or was killed, are read as far as they go.

Examples:
  verl-otel report
  verl-otel report ~/.local/state/verl-otel/runs/20261121-093000-a3f2
  verl-otel report node-1/RUN node-2/RUN
  verl-otel report --json RUN | jq '.steps[0].phases'
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from verl_otel import config
from verl_otel.analysis import gaps, load, tail, timeline
from verl_otel.cli import report_json, report_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="RUN_DIR", help="folder or id of the run; several for several nodes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parser.add_argument("--slowest", type=int, default=5, metavar="N", help="how many slow trajectories to show (5)")
    parser.add_argument(
        "--steps", type=int, default=20, metavar="N", help="how many steps to show, the slowest kept (20)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse, print. Returns 1 when the run has no step, trajectory or open work to speak of."""
    folders = [_find(folder) for folder in arguments.folders] or [_newest()]
    loaded = load.read_run(folders)
    built = timeline.build(loaded)
    found = gaps.find(loaded)
    verdicts = tail.judge(built)
    if arguments.json:
        json.dump(report_json.to_json(loaded, built, found, verdicts), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print(report_text.render(loaded, built, found, verdicts, slowest=arguments.slowest, steps=arguments.steps))
    return 0 if built.steps or built.trajectories or loaded.open_spans else 1


def _find(folder: Path) -> Path:
    """Return a run's folder, which may be said by the run's id alone."""
    if folder.exists() or len(folder.parts) != 1:
        return folder
    known = config.load().run_dir / folder
    return known if known.exists() else folder


def _newest() -> Path:
    """Return the folder of the newest run.

    Raises:
        FileNotFoundError: There is none.
    """
    base = config.load().run_dir
    runs = {path.parent for pattern in ("*/run.json", "*/traces-*") for path in base.glob(pattern)}
    if not runs:
        raise FileNotFoundError(f"no run in {base}: train with VERL_OTEL_ENABLED=1 first, or give a folder")
    return max(runs, key=lambda path: path.stat().st_mtime)
