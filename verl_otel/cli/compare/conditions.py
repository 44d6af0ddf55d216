# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions on a comparison: ``NAME OP SIGNED-PERCENT``, for example ``step>+5%``."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from verl_otel.analysis.comparison import Comparison

_FORM: Final = re.compile(r"\s*(?P<name>[^<>=]*[^<>=\s])\s*(?P<sign>[<>])\s*(?P<percent>[+-]\s*\d+(\.\d+)?)\s*%\s*")
_HELP: Final = (
    "write NAME>+PERCENT% or NAME<-PERCENT%, e.g. 'step>+5%' (slower by more than 5 %) or 'tokens_per_second<-5%'"
)


class Result(NamedTuple):
    """Whether a condition holds."""

    holds: bool
    reason: str
    judged: bool = True
    """False: there are too few steps to judge it."""


class Condition(NamedTuple):
    """One condition."""

    text: str
    name: str
    """Name of a row of the comparison."""
    more: bool
    """True: holds when the row grew by more than the limit; False: when it shrank by more."""
    limit: float
    """Relative change, with its sign."""

    def judge(self, comparison: Comparison) -> Result:
        """Return whether it holds: the change must be significant and beyond the limit."""
        row = next((row for row in comparison.rows if row.name == self.name), None)
        if row is None:
            if not comparison.enough or self.name in comparison.untested:
                return Result(False, "too few steps to tell", judged=False)
            return Result(False, "neither run has any")
        change = row.difference.change
        beyond = change > self.limit if self.more else change < self.limit
        shown = f"{change:+.1%}" if math.isfinite(change) else "a value that A lacks"
        if not beyond:
            return Result(False, f"{shown} is within the limit")
        if not row.significant:
            return Result(False, f"{shown} is not significant")
        return Result(True, f"{shown} is significant and beyond the limit")


def parse(text: str) -> Condition:
    """Return a condition.

    Raises:
        ValueError: It is not one; the message describes the format.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no condition: {_HELP}")
    limit = float(match["percent"].replace(" ", "")) / 100
    more = match["sign"] == ">"
    if limit != 0 and more != (limit > 0):
        raise ValueError(f"{text!r} would hold for runs that did not change: {_HELP}")
    return Condition(text.strip(), " ".join(match["name"].split()).removeprefix("phase "), more, limit)
