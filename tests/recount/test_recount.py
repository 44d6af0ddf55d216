# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of numbers is right in every mode: what the product says equals an independent count."""

from collections import Counter

import pytest

from tests.builders import agreement
from tests.end_to_end import modes_page
from tests.recount import table, trainings
from tests.recount.rows import ABSENT, LATE, OWN_LOOPS, ROWS, UNCHECKED, find_unlike

EACH_TIME = ("sync", "own_asyncio", "own_threads", "own_failed")
"""What ``make test`` counts; ``make matrix`` counts every mode."""


def mark(mode, family=""):
    """The marks of the tests of a mode. What asks the boards needs a Prometheus: each time it is started for one mode only."""
    is_each_time = mode == "sync" if family.startswith("boards: ") else mode in EACH_TIME
    marks = [pytest.mark.smoke if is_each_time else pytest.mark.matrix]
    if mode not in OWN_LOOPS:
        marks.append(pytest.mark.verl)
    elif mode == "own_ray":
        marks.append(pytest.mark.ray)
    return marks


def make_modes():
    for mode in trainings.MODES:
        yield pytest.param(mode, marks=mark(mode))


def list_rows(mode):
    """The rows that a mode can have."""
    return [row for row in ROWS if (row.own if mode in OWN_LOOPS else row.bed)]


def make_cells():
    for mode in trainings.MODES:
        for row in list_rows(mode):
            yield pytest.param(mode, row, id=f"{mode}-{row.family}", marks=mark(mode, row.family))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function from a mode to its count and to what the product says, made once."""
    opened = {}

    def open_run(mode):
        if mode not in opened:
            opened[mode] = trainings.open_run(mode, lambda: tmp_path_factory.mktemp(mode))
        return opened[mode]

    return open_run


@pytest.fixture(scope="module")
def cells():
    """(family, mode) to what was found, of the numbers that are not wrong."""
    return {}


@pytest.mark.parametrize(("mode", "row"), list(make_cells()))
def test_the_number_is_what_was_counted(runs, cells, mode, row):
    """The product says what was counted, within the tolerance of the kind of number."""
    if (row.family, mode) in UNCHECKED:
        cells[row.family, mode] = UNCHECKED[row.family, mode]
        pytest.skip(f"not checked: {UNCHECKED[row.family, mode]}")
    shown, counted = row.read(runs(mode)[1]), None if (row.family, mode) in ABSENT else row.count(runs(mode)[0])
    unlike = find_unlike(shown, counted, LATE)
    assert not unlike, f"{row.family}: what the product says, and what was counted: {unlike!r}"
    cells[row.family, mode] = table.name_right(shown, counted)


@pytest.mark.parametrize("mode", list(make_modes()))
def test_commands_and_pages_agree(runs, cells, mode):
    """On causes, seconds and shares. The last test of a mode: what was found in it is kept for docs/reference/modes.md, if nothing was wrong."""
    _, product = runs(mode)
    agreement.check(product.folder, product.call)
    found = {row.family: cells.get((row.family, mode)) for row in list_rows(mode)}
    if all(found.values()):
        modes_page.keep_counts(mode, found)


def test_few_numbers_are_not_checked():
    """At most three in a mode, of rows and modes that there are."""
    assert {*UNCHECKED, *ABSENT} <= {(row.family, mode) for mode in trainings.MODES for row in list_rows(mode)}
    assert max(Counter(mode for _, mode in UNCHECKED).values()) <= 3
