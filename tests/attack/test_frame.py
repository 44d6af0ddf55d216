# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The frame of the attack suite: every module takes part, and the counts reach the summary."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.attack

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(HERE.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_module_is_left_out_unless_asked_for(path):
    """A module without the marker would run in ``make test``, which has no minutes for it."""
    assert "pytestmark" in path.read_text("utf-8")
    assert "pytest.mark.attack" in path.read_text("utf-8")


TWO_TESTS = """
def test_one(attack_counts):
    attack_counts("mutated lines", 10_000, 0)

def test_two(attack_counts):
    attack_counts("mutated lines", 200, 3)
    assert False
"""


def test_counts_are_printed(clean_python, tmp_path):
    """Counts of the same name are added up, those of a failed test among them."""
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text("utf-8"))
    (tmp_path / "test_two.py").write_text(TWO_TESTS)
    done = clean_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", cwd=tmp_path, code=1)
    assert "10,200 mutated lines: 3 failed" in done.stdout
    assert "10,200 attempts in all" in done.stdout
