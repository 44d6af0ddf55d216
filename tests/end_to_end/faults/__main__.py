# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Train with planted faults, and write the page on them.

Every training that ended leaves a line in ``seed-SEED.jsonl`` (``seed-SEED-MODE.jsonl`` in other modes than ``sync``) or ``healthy-MODE.jsonl``; a
second call continues after the last one. When a detector was changed its training can be read again from its files with ``--again``.

Usage: python -m tests.end_to_end.faults OUT [--seed N] [--mode MODE] [--trainings N] [--only N,N] [--again] [--page]
       python -m tests.end_to_end.faults OUT --healthy [--mode MODE] [--steps N] [--again] [--page]
"""

import argparse
import json
import sys
from pathlib import Path

from tests.end_to_end import bed_run
from tests.end_to_end.faults import evidence, kinds, page
from tests.end_to_end.faults.plan import MODES, TRAININGS, make_healthy, make_plan


def read_results(path):
    """Return the results of a series."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--trainings",
        type=int,
        default=len(TRAININGS) + 1,
        help="a round in mode sync has 15: 14 plant each kind once, one plants two in a step",
    )
    parser.add_argument("--only", default="", help="numbers of the trainings to run, separated by commas")
    parser.add_argument("--healthy", action="store_true", help="plant nothing, and count what is reported all the same")
    parser.add_argument("--mode", default="sync", choices=MODES, help="those after fully_async only without a fault")
    parser.add_argument("--steps", type=int, default=340, help="of trainings without a fault, together")
    parser.add_argument(
        "--again", action="store_true", help="read what was trained before with the present code, and train nothing"
    )
    parser.add_argument(
        "--page", action="store_true", help="keep the results, and write the page of the documentation from them"
    )
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.healthy and arguments.mode not in kinds.MODES:
        parser.error(f"no faults are planted in mode {arguments.mode}")
    mode = "" if arguments.mode == "sync" else f"-{arguments.mode}"
    name = f"healthy-{arguments.mode}" if arguments.healthy else f"seed-{arguments.seed}{mode}"
    path = out / f"{name}.jsonl"
    results = {result["training"]: result for result in read_results(path)}
    wanted = {int(number) for number in filter(None, arguments.only.split(","))}
    plan = (
        make_healthy(arguments.mode, arguments.steps)
        if arguments.healthy
        else make_plan(arguments.seed, arguments.trainings, arguments.mode)
    )
    for training in plan:
        if wanted and training.number not in wanted:
            continue
        known = results.get(training.number)
        if arguments.again and known is not None:
            bed = bed_run.Training(out / name / f"training-{training.number}")
            results[training.number] = {**known, **evidence.collect(bed, training), "reached": known["reached"]}
        elif not arguments.again and known is None:
            results[training.number] = evidence.run(out / name, training)
        path.write_text("".join(json.dumps(results[number]) + "\n" for number in sorted(results)))
    text = page.write(page.read(path))
    (out / "faults.md").write_text(text)
    if arguments.page:
        page.keep(path)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
