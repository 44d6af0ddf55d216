# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions on records: what holds, what is refused, and that nothing is evaluated as code."""

import pytest

from verl_otel.cli.logs import parse_condition
from verl_otel.errors import VerlOtelError

RECORD = {
    "scope": "ppo",
    "step": 12,
    "kl_div": 0.2,
    "grad_norm": "nan",
    "actor/pg_loss": -0.1,
    "name": "a b",
    "done": True,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("kl > 0.1", True),
        ("kl_div>=0.2 and step<13", True),
        ("kl > 0.1 and step > 20", False),
        ("kl > 9 or (step = 12 and not kl > 1)", True),
        ("actor/pg_loss < 0", True),
        ("scope == ppo", True),
        ('name = "a b"', True),
        ("scope != 'ppo'", False),
        ("grad_norm == nan", True),
        ("kl == nan", False),
        ("grad_norm > 1", False),
        ("missing > 1", False),
        ("missing != 1", False),
        ("not missing > 1", True),
        ("scope > 1", False),
        ("done", True),
        ("missing", False),
        ("done == true", True),
        ("kl > -1e-3", True),
    ],
)
def test_what_holds(text, holds):
    """Comparisons, short names, and, or, not and parentheses; a missing field matches no comparison."""
    assert parse_condition(text)(RECORD) is holds


@pytest.mark.parametrize(
    "text",
    [
        "kl >",
        "> 1",
        "kl > 1 and",
        "(kl > 1",
        "kl > 1)",
        "kl ! 1",
        "a b",
        "__import__('os')",
        "kl > 1; x",
        "not",
        "kl > and",
        "",
    ],
)
def test_what_is_refused(text):
    """A text that is no condition is refused with an example."""
    with pytest.raises(VerlOtelError, match=r"example: kl > 0\.1"):
        parse_condition(text)


@pytest.mark.parametrize("text", ["(" * 100 + "a" + ")" * 100, "not " * 100 + "a", "a or " * 1000 + "a"])
def test_what_is_too_large(text):
    """Depth and length are bounded."""
    with pytest.raises(VerlOtelError, match="more than"):
        parse_condition(text)
