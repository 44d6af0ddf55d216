# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Levers pulled in real trainings on the CPU bed: what `verl-otel levers` predicts, and what then happens.

Every training (`levers_plan`) that has ended leaves a line in ``trainings.jsonl``; a second call continues after the last one.

Usage: python -m tests.end_to_end.levers OUT [--most N] [--only NAME]
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean

from tests.end_to_end import bed_run
from tests.end_to_end.levers_plan import STEPS, TRAININGS, find_plants
from verl_otel.analysis import reader
from verl_otel.analysis.levers.ranking import find_levers

LONGEST = 860
"""Seconds after which the trainings of one call count as hung."""
SHORTEST = 250
"""Seconds that a training takes: it is not begun with less left."""


def find_options(training):
    """Return what a training is started with."""
    overrides = ["trainer.test_freq=-1", "trainer.total_epochs=10", *training.overrides]
    return {
        "overrides": overrides,
        "mode": training.mode,
        "steps": training.steps,
        "CPU_BED_PLANT": find_plants(training),
    }


def read_section(explanation, first, last):
    """Return the periods of the steps of a section but its first one, and what is predicted from them."""
    numbers = range(first, last + 1)
    steps = [step for step in explanation.steps if step.number in numbers[1:]]
    found = find_levers([step for step in explanation.recent_steps if step.number in numbers])
    return {
        "periods": [round((step.next_ns - step.start_ns) / 1e9, 4) for step in steps],
        "levers": [
            [lever.kind, lever.subject, *(None if value is None else round(value, 4) for value in (lever.seconds, lever.low, lever.high))]
            for lever in found.levers
        ],
        "limits": [list(limit) for limit in found.limits],
    }  # fmt: skip


def train(out, name):
    """Train once and return the sections."""
    training, folder = TRAININGS[name], out / name.replace(" ", "-")
    run = bed_run.train(
        folder, tool=True, VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_DIR=folder / "runs", **find_options(training)
    )
    explanation = reader.read([run.folder])[0]
    sections = {section: read_section(explanation, *training.find_steps(section)) for section in training.sections}
    return {"training": name, "code": run.returncode, "seconds": round(run.seconds), "sections": sections}


def read_results(path):
    """Return the sections of all trainings that have ended, by training and section."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {
        (result["training"], name): section
        for result in map(json.loads, lines)
        for name, section in result["sections"].items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=len(TRAININGS), help="trainings in this call")
    parser.add_argument("--only", choices=TRAININGS, help="the training with this name")
    arguments = parser.parse_args()
    out, begin = arguments.out.absolute(), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "trainings.jsonl"
    done = {training for training, _ in read_results(path)}
    missing = [name for name in TRAININGS if name not in done and arguments.only in (None, name)]
    for name in missing[: arguments.most]:
        bed_run.DEADLINE = LONGEST - (time.monotonic() - begin)
        if bed_run.DEADLINE < SHORTEST:
            break
        result = train(out, name)
        means = {section: round(fmean(each["periods"] or [0]), 2) for section, each in result["sections"].items()}
        print(f"{name}: exit code {result['code']} after {result['seconds']} s; seconds a step: {means}", flush=True)
        if result["code"] or any(len(each["periods"]) != STEPS - 1 for each in result["sections"].values()):
            return 1
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
