# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The READMEs of the examples: each is in the index, is short, and its links and files exist."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PAGES = sorted(EXAMPLES.glob("*/README.md"))
MOST_LINES = 40


def test_the_index_lists_every_example():
    """Each folder has one row, and each row a folder."""
    rows = re.findall(r"^\| \[(\w+)\]\(([^)]+)\) \|", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and list(path.glob("*.py")))
    assert sorted(name for name, _ in rows) == folders
    assert all(link == f"{name}/README.md" and (EXAMPLES / link).is_file() for name, link in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_readme_names_files_that_exist(page):
    """Scripts and configurations that a README names are in its folder, and it is a few lines long."""
    text = page.read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    exported = {"local.yaml", "otel/local.yaml", "otel/traces-to-file.yaml"}  # written by `verl-otel collector export`
    named = {name.removeprefix("$PWD/") for name in re.findall(r"[$\w./-]+\.(?:py|yaml)\b", text)} - exported
    assert named
    assert not [name for name in named if not (page.parent / name).exists()]
