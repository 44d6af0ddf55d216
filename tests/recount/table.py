# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of families and modes, from trainings that were kept.

RECOUNT_RUNS=FOLDER python -m tests.recount.table [--wrong] [MODE ...]      the table, or each number that is wrong
"""

import sys
import traceback

from tests.recount import trainings
from tests.recount.rows import ROWS, UNCHECKED, agree


def judge(row, oracle, product):
    """Return (right, wrong or absent, told, counted) of one cell."""
    counted = row.count(oracle)
    told = row.read(product)
    if counted is None and told is None:
        return "absent", told, counted
    return "right" if agree(told, counted) else "wrong", told, counted


def main(arguments):
    names = [name for name in arguments if not name.startswith("--")] or list(trainings.MODES)
    cells = {}
    for name in names:
        oracle, product = trainings.open_run(name, None)
        is_own = name.startswith("own_") and name != "own_fit"
        for row in ROWS:
            if (row.family, name) in UNCHECKED or not (row.own if is_own else row.bed):
                cells[row.family, name] = "?" if (row.family, name) in UNCHECKED else "-"
                continue
            try:
                state, told, counted = judge(row, oracle, product)
            except Exception:
                state, told, counted = "error", traceback.format_exc().splitlines()[-1], ""
            cells[row.family, name] = {"right": "R", "wrong": "W", "absent": "-", "error": "E"}[state]
            if state in ("wrong", "error") and "--wrong" in arguments:
                print(f"{name}: {row.family}: told {told!r}, counted {counted!r}"[:900])
    if "--wrong" not in arguments:
        print(f"| family | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for row in ROWS:
            print(f"| {row.family} | {' | '.join(cells[row.family, name] for name in names)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
