# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of numbers is right in every mode: what the product says equals an independent count."""

import pytest

from tests.recount import trainings
from tests.recount.rows import OWN_LOOPS, PENDING, ROWS, UNCHECKED, find_unlike

EACH_TIME = ("sync", "own_asyncio", "own_threads")
"""What ``make test`` counts; ``make matrix`` counts every mode."""


def make_cells():
    for mode in trainings.MODES:
        marks = [pytest.mark.smoke if mode in EACH_TIME else pytest.mark.matrix]
        marks += (
            []
            if mode in ("own_asyncio", "own_threads")
            else [pytest.mark.ray if mode == "own_ray" else pytest.mark.verl]
        )
        for row in ROWS:
            reason = PENDING.get((row.family, mode)) or PENDING.get((row.family, "*"))
            cell_marks = [*marks, pytest.mark.xfail(reason=reason, strict=True)] if reason else marks
            if row.own if mode in OWN_LOOPS else row.bed:
                yield pytest.param(mode, row, id=f"{mode}-{row.family}", marks=cell_marks)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function from a mode to its count and to what the product says, made once."""
    opened = {}

    def open_run(mode):
        if mode not in opened:
            opened[mode] = trainings.open_run(mode, lambda: tmp_path_factory.mktemp(mode))
        return opened[mode]

    return open_run


@pytest.mark.parametrize(("mode", "row"), list(make_cells()))
def test_the_number_is_what_was_counted(runs, mode, row):
    """The product says what was counted, within the tolerance of the kind of number."""
    if (row.family, mode) in UNCHECKED:
        pytest.skip(f"not checked: {UNCHECKED[row.family, mode]}")
    oracle, product = runs(mode)
    unlike = find_unlike(row.read(product), row.count(oracle))
    assert not unlike, f"{row.family}: what the product says, and what was counted: {unlike!r}"
