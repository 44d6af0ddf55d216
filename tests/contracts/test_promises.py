# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page of promises: every row once, in a known state, and each test that it names is there."""

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "reference" / "promises.md"
NUMBER = 163
STATES = ("works", "works differently", "not ours")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.read_text("utf-8").splitlines()
    if re.match(r"\| \d", line)
]
TESTS = sorted({name for *_, where in ROWS for name in re.findall(r"`(tests/[^`]+)`", where)})
pytestmark = pytest.mark.sources


def expand(numbers):
    """The numbers of "1, 3-5"."""
    for part in numbers.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def test_every_row_is_there_once():
    """No row is left out, and none has two answers."""
    assert sorted(number for row in ROWS for number in expand(row[0])) == list(range(1, NUMBER + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_what_its_state_demands(row):
    """What works names a test; everything else says why in words."""
    _, promise, state, where = row
    assert promise
    assert state in STATES
    assert ("`tests/" in where) == (state == "works")
    assert where.endswith((".", "`"))


@pytest.mark.parametrize("name", TESTS)
def test_a_named_test_is_there(name):
    """A promise without its test is a claim."""
    path, _, function = name.partition("::")
    tree = ast.parse((TOP / path).read_text("utf-8"))
    assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
