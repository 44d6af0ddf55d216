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

RIGHT, ABSENT_HERE, NOT_CHECKED = "R", "-", "?"


def name_right(shown, counted):
    """Return the state of a number that is what was counted: a mode need not have it."""
    return ABSENT_HERE if shown is None and counted is None else RIGHT


def make_lines(modes, cells):
    """Return the lines of the table.

    Args:
        modes: Its columns.
        cells: (family, mode) to a state, or to the reason for which the number is not checked.
    """
    states = {key: state if len(state) == 1 else NOT_CHECKED for key, state in cells.items()}
    rows = [[row.family, *(states.get((row.family, mode), ABSENT_HERE) for mode in modes)] for row in ROWS]
    return [f"| {' | '.join(row)} |" for row in (["number", *modes], ["---"] * (1 + len(modes)), *rows)]


def judge(row, mode, oracle, product):
    """Return the state of one cell, and what disagrees."""
    counted = None if (row.family, mode) in ABSENT else row.count(oracle)
    shown = row.read(product)
    unlike = find_unlike(shown, counted)
    return ("W", unlike) if unlike else (name_right(shown, counted), None)


def main(arguments):
    kept = Path(os.environ[trainings.KEPT])
    asked_for = [name for name in arguments if not name.startswith("--")] or list(trainings.MODES)
    names = [name for name in asked_for if (kept / name / "returncode").exists()]  # it trains none
    cells = {}
    for name in names:
        oracle, product = trainings.open_run(name, None)
        for row in ROWS:
            if not (row.own if name in OWN_LOOPS else row.bed) or (row.family, name) in UNCHECKED:
                cells[row.family, name] = UNCHECKED.get((row.family, name), ABSENT_HERE)
                continue
            try:
                cells[row.family, name], unlike = judge(row, name, oracle, product)
            except Exception:
                cells[row.family, name], unlike = "E", traceback.format_exc().splitlines()[-1]
            if unlike and "--wrong" in arguments:
                print(f"{name}: {row.family}: {unlike!r}"[:900])
    if "--wrong" not in arguments:
        print("\n".join(make_lines(names, cells)))


if __name__ == "__main__":
    main(sys.argv[1:])
