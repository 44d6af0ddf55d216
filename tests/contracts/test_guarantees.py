# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page of guarantees: every test that it names exists, and every guarantee names one."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "explanation" / "guarantees.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| guarantee |")]


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path}::{name}" for path, name in NAMED])
def test_a_named_test_exists(path, name):
    """A guarantee that no test checks is none."""
    tree = ast.parse((TOP / path).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_guarantee_has_a_bound_and_a_test(row):
    """A row has three cells, none of them empty, and the last names a test."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 3
    assert all(cells)
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", cells[2])
