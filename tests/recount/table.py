# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of families and modes, from trainings that were kept.

RECOUNT_RUNS=FOLDER python -m tests.recount.table [--wrong] [MODE ...]      the table, or each number that is wrong
"""

import os
import sys
import traceback
from pathlib import Path

from tests.recount import trainings
from tests.recount.rows import ABSENT, OWN_LOOPS, ROWS, UNCHECKED, find_unlike
from verl_otel.semconv import metric_names


def judge(row, name, oracle, product):
    """Return whether one cell is right, wrong or absent, and what disagrees."""
    counted = row.count(oracle)
    told = row.read(product)
    if told is None and (counted is None or (row.family, name) in ABSENT):
        return "absent", None
    unlike = find_unlike(told, counted)
    return ("wrong", unlike) if unlike else ("right", None)


def main(arguments):
    kept = Path(os.environ[trainings.KEPT])
    asked_for = [name for name in arguments if not name.startswith("--")] or list(trainings.MODES)
    names = [name for name in asked_for if (kept / name / "returncode").exists()]  # it trains none
    cells, asked = {}, set()
    for name in names:
        oracle, product = trainings.open_run(name, None)
        for row in ROWS:
            if (row.family, name) in UNCHECKED or not (row.own if name in OWN_LOOPS else row.bed):
                cells[row.family, name] = "?" if (row.family, name) in UNCHECKED else "-"
                continue
            try:
                state, unlike = judge(row, name, oracle, product)
            except Exception:
                state, unlike = "error", traceback.format_exc().splitlines()[-1]
            cells[row.family, name] = {"right": "R", "wrong": "W", "absent": "-", "error": "E"}[state]
            if state in ("wrong", "error") and "--wrong" in arguments:
                print(f"{name}: {row.family}: {unlike!r}"[:900])
        asked |= product.asked
    if "--names" in arguments:
        print("\n".join(name for name in metric_names.METRICS if name not in asked))
    elif "--wrong" not in arguments:
        print(f"| family | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for row in ROWS:
            print(f"| {row.family} | {' | '.join(cells[row.family, name] for name in names)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
