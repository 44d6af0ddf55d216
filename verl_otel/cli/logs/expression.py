# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions on the fields of a record: comparisons with ``and``, ``or``, ``not`` and parentheses. No text is evaluated as code."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from verl_otel.errors import VerlOtelError

Condition = Callable[[Mapping[str, Any]], bool]
Operand = Callable[[Mapping[str, Any]], Any]

ALIASES: Final = {"kl": "kl_div", "loss": "policy_loss", "reward": "reward_mean", "score": "score_mean"}
"""Short names, for records without a field of this name."""
MAX_LENGTH: Final = 1_000
MAX_DEPTH: Final = 32
"""Nesting depth of parentheses and ``not``."""
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<compare>>=|<=|==|!=|>|<|=)|(?P<mark>[()])|(?P<word>[A-Za-z_][\w./@-]*))"
)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONSTANTS: Final = {"true": True, "false": False, "nan": math.nan, "inf": math.inf}


def parse(text: str) -> Condition:
    """Return a condition.

    Args:
        text: For example ``kl > 0.1 and (scope == ppo or actor/grad_norm >= 5)``. A word that is compared with is the value of the field of that
            name, or the word itself if the record has no such field.

    Raises:
        VerlOtelError: It is not a condition. The message names the place.
    """
    if len(text) > MAX_LENGTH:
        raise VerlOtelError(f"the condition has more than {MAX_LENGTH} characters")
    parser = _Parser(text)
    condition = parser.read_or(0)
    parser.expect_end()
    return condition


class _Parser:
    """A recursive-descent parser.

    Args:
        text: The condition.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise self._error(place)
            self._tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            place = match.end()
        self._next = 0

    def read_or(self, depth: int) -> Condition:
        """Read conditions that are joined by ``or``."""
        left = self._read_and(depth)
        while self._accept("or"):
            left = _either(left, self._read_and(depth))
        return left

    def _read_and(self, depth: int) -> Condition:
        left = self._read_not(depth)
        while self._accept("and"):
            left = _both(left, self._read_not(depth))
        return left

    def _read_not(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise VerlOtelError(f"the condition is nested more than {MAX_DEPTH} levels deep")
        if self._accept("not"):
            inner = self._read_not(depth + 1)
            return lambda fields: not inner(fields)
        if self._accept("("):
            inner = self.read_or(depth + 1)
            if not self._accept(")"):
                raise self._error(self._place())
            return inner
        return self._read_comparison()

    def _read_comparison(self) -> Condition:
        left = self._read_operand(is_field=True)
        if self._next >= len(self._tokens) or self._tokens[self._next][0] != "compare":
            return lambda fields: bool(left(fields))
        compare = _COMPARE[self._take()[1]]
        right = self._read_operand(is_field=False)
        return lambda fields: _holds(compare, left(fields), right(fields))

    def _read_operand(self, *, is_field: bool) -> Operand:
        kind, token, place = self._take()
        if kind == "number":
            number = float(token)
            return lambda _: number
        if kind == "text":
            return lambda _: token[1:-1]
        if kind != "word" or token in ("and", "or", "not"):
            raise self._error(place)
        if token.lower() in _CONSTANTS:
            constant = _CONSTANTS[token.lower()]
            return lambda _: constant
        return lambda fields: find(fields, token, None if is_field else token)

    def _take(self) -> tuple[str, str, int]:
        if self._next >= len(self._tokens):
            raise self._error(len(self._text))
        self._next += 1
        return self._tokens[self._next - 1]

    def _accept(self, token: str) -> bool:
        matches = (
            self._next < len(self._tokens)
            and self._tokens[self._next][1] == token
            and self._tokens[self._next][0] != "text"
        )
        self._next += matches
        return matches

    def expect_end(self) -> None:
        """Check that nothing is left."""
        if self._next < len(self._tokens):
            raise self._error(self._place())

    def _place(self) -> int:
        return self._tokens[self._next][2] if self._next < len(self._tokens) else len(self._text)

    def _error(self, place: int) -> VerlOtelError:
        rest = self._text[place:].strip()[:40]
        where = f"at {rest!r}" if rest else "at its end"
        return VerlOtelError(
            f"the condition {self._text[:200]!r} cannot be read {where}; example: kl > 0.1 and step >= 20"
        )


def _either(left: Condition, right: Condition) -> Condition:
    return lambda fields: left(fields) or right(fields)


def _both(left: Condition, right: Condition) -> Condition:
    return lambda fields: left(fields) and right(fields)


def find(fields: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return a field of a record by its name or its short name. Text that stands for a number that is not finite becomes that number."""
    value = fields.get(name)
    if value is None and name in ALIASES:
        value = fields.get(ALIASES[name])
    if value is None:
        return default
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return value


def _holds(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    """Compare two values. A record without the field, or with one of another kind, does not match."""
    if left is None or right is None:
        return False
    if isinstance(right, float) and math.isnan(right) and compare in (operator.eq, operator.ne):
        is_nan = isinstance(left, float) and math.isnan(left)
        return is_nan is (compare is operator.eq)
    if isinstance(left, str) != isinstance(right, str) and compare not in (operator.eq, operator.ne):
        return False
    try:
        return bool(compare(left, right))
    except TypeError:
        return False
