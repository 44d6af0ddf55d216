# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page on troubleshooting has an entry for each check that can fail or has a remark."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "how-to" / "troubleshooting.md").read_text("utf-8")
ENTRIES = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## Checks")[2], re.MULTILINE)


def subjects():
    """Return the subjects of all findings in the source that are not only ok; of an f-string its beginning."""
    found = set()
    for path in sorted((TOP / "verl_otel" / "cli").glob("check*.py")):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding" and len(call.args) > 1:
                state, subject = call.args[:2]
                if isinstance(state, ast.Constant) and state.value == "ok":
                    continue
                if isinstance(subject, ast.JoinedStr):
                    subject = subject.values[0]
                if isinstance(subject, ast.Constant):
                    found.add(subject.value.strip())
    return found | {"node"}  # its subject is a variable


def test_each_check_has_an_entry():
    """The subject of each finding is on the page; no entry is about a check that was removed."""
    assert sorted(ENTRIES) == sorted(subjects())
