# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of numbers is right in every mode: what the product says equals an independent count."""

import pytest

from tests.builders import agreement
from tests.recount import trainings
from tests.recount.rows import ABSENT, LATE, OWN_LOOPS, PENDING, ROWS, UNCHECKED, UNSTEADY, find_unlike

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


def make_cells():
    for mode in trainings.MODES:
        is_own = mode in OWN_LOOPS
        for row in (row for row in ROWS if (row.own if is_own else row.bed)):
            marks = mark(mode, row.family)
            pending = PENDING.get((row.family, mode)) or PENDING.get((row.family, "*"))
            unsteady = UNSTEADY.get((row.family, mode)) or (not is_own and UNSTEADY.get((row.family, "*")))
            if (row.family, mode) in {*ABSENT, *UNCHECKED}:
                marks_of_cell = marks
            elif pending:
                marks_of_cell = [*marks, pytest.mark.xfail(reason=pending, strict=True)]
            elif unsteady:
                marks_of_cell = [*marks, pytest.mark.xfail(reason=unsteady, strict=False)]
            else:
                marks_of_cell = marks
            yield pytest.param(mode, row, id=f"{mode}-{row.family}", marks=marks_of_cell)


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
    if (row.family, mode) in ABSENT:
        assert row.read(product) is None
        return
    unlike = find_unlike(row.read(product), row.count(oracle), LATE)
    assert not unlike, f"{row.family}: what the product says, and what was counted: {unlike!r}"


@pytest.mark.parametrize("mode", list(make_modes()))
def test_commands_and_pages_agree(runs, mode):
    """On causes, seconds and shares."""
    _, product = runs(mode)
    agreement.check(product.folder, product.call)
