# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Train with planted faults, and write the page on them.

Every training that ended leaves a line in ``results-SEED.jsonl``; a second call continues after the last one. Before a detector is changed
its training can be read again from its files with ``--again``.

Usage: python -m tests.end_to_end.faults OUT [--seed N] [--trainings N] [--only N,N] [--again] [--page]
"""

import argparse
import json
import sys
from pathlib import Path

from tests.end_to_end import bed_run
from tests.end_to_end.faults import evidence, page
from tests.end_to_end.faults.plan import TRAININGS, make_plan


def read_results(path):
    """Return the results of a series."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--trainings", type=int, default=len(TRAININGS), help="a round, which plants each kind once, has 14"
    )
    parser.add_argument("--only", default="", help="numbers of the trainings to run, separated by commas")
    parser.add_argument(
        "--again", action="store_true", help="read what was trained before with the present code, and train nothing"
    )
    parser.add_argument(
        "--page", action="store_true", help="keep the results, and write the page of the documentation from them"
    )
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"results-{arguments.seed}.jsonl"
    results = {result["training"]: result for result in read_results(path)}
    wanted = {int(number) for number in filter(None, arguments.only.split(","))}
    for training in make_plan(arguments.seed, arguments.trainings):
        if wanted and training.number not in wanted:
            continue
        known = results.get(training.number)
        if arguments.again and known is not None:
            bed = bed_run.Training(out / f"training-{training.number}")
            results[training.number] = {**known, **evidence.collect(bed, training), "reached": known["reached"]}
        elif not arguments.again and known is None:
            results[training.number] = evidence.run(out, training)
        path.write_text("".join(json.dumps(results[number]) + "\n" for number in sorted(results)))
    text = page.write([{"seed": str(arguments.seed), **result} for result in results.values()])
    (out / "faults.md").write_text(text)
    if arguments.page:
        page.keep(arguments.seed, path)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
