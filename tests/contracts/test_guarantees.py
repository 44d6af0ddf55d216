# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page of guarantees: each has a bound and names a test, which is there."""

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
GUARANTEES = (TOP / "docs" / "explanation" / "guarantees.md").read_text("utf-8")
GUARANTEED = [
    line for line in GUARANTEES.splitlines() if line.startswith("| ") and not line.startswith("| guarantee |")
]
NAMED = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
pytestmark = pytest.mark.sources


@pytest.mark.parametrize("row", GUARANTEED, ids=lambda row: row.split("|")[1].strip())
def test_every_guarantee_has_a_bound_and_a_test(row):
    """A row has three cells, none of them empty, and the last names a test."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 3
    assert all(cells)
    assert NAMED.search(cells[2])


@pytest.mark.parametrize("name", sorted({*NAMED.findall(GUARANTEES)}))
def test_a_named_test_is_there(name):
    """A guarantee without its test is a claim."""
    path, _, function = name.partition("::")
    tree = ast.parse((TOP / path).read_text("utf-8"))
    assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
