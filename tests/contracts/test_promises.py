# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of promises and of guarantees: every row once, in a known state, and each test that they name is there."""

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "reference" / "promises.md"
NUMBER = 163
LINES = """
0:6, 20 | 0:47 | 0:54 | 0:106 | 1:12, 16 | 1:43 | 1:73 | 1:102 | 2:95, 102 | 2:126 | 3:63 | 3:79 | 3:98-102 | 3:125 | 3:140 | 3:143 | 3:153 | 3:199
3:204 | 3:211 | 4:97 | 4:134 | 4:144 | 4:162-168 | 4:180-182 | 4:211
"""
"""Guide and lines of what has no number."""
STATES = ("works", "works differently", "not ours")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.read_text("utf-8").splitlines()
    if re.match(r"\| \d", line)
]
GUARANTEES = (TOP / "docs" / "explanation" / "guarantees.md").read_text("utf-8")
GUARANTEED = [
    line for line in GUARANTEES.splitlines() if line.startswith("| ") and not line.startswith("| guarantee |")
]
NAMED = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
TESTS = sorted(
    {name for *_, where in ROWS for name in re.findall(r"`(tests/[^`]+)`", where)} | {*NAMED.findall(GUARANTEES)}
)
pytestmark = pytest.mark.sources


def expand(numbers):
    """The numbers of "1, 3-5"."""
    for part in numbers.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def test_every_row_is_there_once():
    """No row is left out, and none has two answers."""
    numbered = [row[0] for row in ROWS if ":" not in row[0]]
    assert sorted(number for numbers in numbered for number in expand(numbers)) == list(range(1, NUMBER + 1))


def test_every_line_without_a_number_is_there_once():
    """In the order of the guides."""
    assert [row[0] for row in ROWS if ":" in row[0]] == re.split(r"\s*[|\n]\s*", LINES.strip())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_what_its_state_demands(row):
    """What works names a test; everything else says why in words."""
    _, promise, state, where = row
    assert promise
    assert state in STATES
    assert ("`tests/" in where) == (state == "works")
    assert where.endswith((".", "`"))


@pytest.mark.parametrize("row", GUARANTEED, ids=lambda row: row.split("|")[1].strip())
def test_every_guarantee_has_a_bound_and_a_test(row):
    """A row has three cells, none of them empty, and the last names a test."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 3
    assert all(cells)
    assert NAMED.search(cells[2])


@pytest.mark.parametrize("name", TESTS)
def test_a_named_test_is_there(name):
    """A promise or a guarantee without its test is a claim."""
    path, _, function = name.partition("::")
    tree = ast.parse((TOP / path).read_text("utf-8"))
    assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
