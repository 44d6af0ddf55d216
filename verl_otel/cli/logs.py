# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Show the run log: the records of each step, of the user's own fields, of warnings, and of samples.

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a run have folders of
their own. It may also be a file, such as the one of verl's own file logger. Records of all processes are shown in the order of time. A run that is
active, or was killed while it wrote a line, can be shown, too.

A condition compares fields with numbers and words, and is joined by and, or, not and parentheses. kl, loss, reward and score are short for kl_div,
policy_loss, reward_mean and score_mean. A record without the field does not match.

Examples:
  verl-otel logs
  verl-otel logs RUN --scope ppo --where 'kl > 0.1'
  verl-otel logs RUN --level warning --follow
  verl-otel logs RUN --scope rollout --last 20 --json | jq .reward_mean
  verl-otel logs my_project/my_experiment.jsonl --where 'actor/grad_norm > 5 and step >= 100'

Exit code: 0 shown, 1 no record matches, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import re
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel import config
from verl_otel._internal.printable import show
from verl_otel.analysis.io import run_log
from verl_otel.analysis.io.run_log import Record
from verl_otel.cli import options, run_selection
from verl_otel.cli.formatting import SENTENCE
from verl_otel.errors import VerlOtelError
from verl_otel.semconv import logs

POLL_SECONDS: Final = 0.5
"""Seconds between two looks at the files with ``--follow``."""
SHOWN_BEFORE: Final = 10
"""Records that are shown before those that follow."""
NAMED_FIELDS: Final = 40
"""Fields that are named if no record matches."""
_HIDDEN: Final = (*logs.RESERVED, "role", "rank")
_MAX_VALUE: Final = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="folder or id of the run, or a file; several for several nodes",
    )
    parser.add_argument(
        "--level",
        type=str.upper,
        choices=tuple(logs.LEVELS),
        metavar="LEVEL",
        help="show this level and above: debug, info, warning, error, critical",
    )
    parser.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help="show this scope: training, rollout, ppo, timing, validation, sample, worker, log, or one of yours; may be repeated",
    )
    parser.add_argument("--where", metavar="CONDITION", help="show records for which a condition holds")
    parser.add_argument("--last", type=options.positive, metavar="N", help="show the last N records")
    parser.add_argument("--follow", action="store_true", help="go on showing new records, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Show the records. Returns 1 when none matches."""
    matches = make_filter(arguments.level, arguments.scope, arguments.where)
    places = run_selection.find_places(arguments.folders, "logs", files=True)
    render = json.dumps if arguments.json else render_line
    last = arguments.last or (SHOWN_BEFORE if arguments.follow else None)
    tails: dict[Path, run_log.Tail[Record]] = {}
    if arguments.follow:  # before the past is read, so that nothing is missed between the two
        tails = {path: run_log.Tail(path, run_log.parse, skip=True) for path in run_log.find_files(places)}
    records: Iterable[Record] = filter(matches, run_log.read(places))
    shown = _print(deque(records, maxlen=last) if last else records, render)
    if arguments.follow:
        _follow(places, tails, matches, render)
    if shown:
        if not arguments.json:  # beside the records, which other programs may read
            print(f"Next: {_find_next(places)}", file=sys.stderr)
        return 0
    has_log = bool(run_log.find_files(places))
    reason = "no record of the run log matches" if has_log else "the run has no log (verl_logs.jsonl)"
    if has_log and arguments.scope:
        reason += (
            f"; scopes of the run: {', '.join(sorted({show(record[logs.SCOPE]) for record in run_log.read(places)}))}"
        )
    if has_log and arguments.where:
        reason += _name_fields(places, make_filter(arguments.level, arguments.scope, None))
    print(f"verl-otel: {reason}", file=sys.stderr)
    return 1


def _find_next(places: list[Path]) -> str:
    """Return the command that explains the run of these records."""
    base = Path(config.read("run_dir"))
    names = [place.name if place.parent == base else str(place) for place in places]
    return show(shlex.join(["verl-otel", "explain", *names]), 1000)


def _name_fields(places: list[Path], matches: Callable[[Record], bool]) -> str:
    """Return the names of the fields that a condition can use."""
    found = {name for record in filter(matches, run_log.read(places)) for name in record}
    names = sorted(found, key=lambda name: (name not in logs.RESERVED, name))
    more = f" and {len(names) - NAMED_FIELDS} more" if len(names) > NAMED_FIELDS else ""
    return f"; fields of the records: {show(', '.join(names[:NAMED_FIELDS]), SENTENCE)}{more}" if names else ""


def make_filter(level: str | None, scopes: Iterable[str] | None, where: str | None) -> Callable[[Record], bool]:
    """Return a function that returns whether a record is shown.

    Raises:
        VerlOtelError: The condition cannot be read.
    """
    least = logs.LEVELS.get(level or "", 0)
    wanted = frozenset(scopes or ())
    condition = parse_condition(where) if where else None

    def matches(record: Record) -> bool:
        return (
            logs.LEVELS.get(str(record.get(logs.LEVEL)), logs.INFO) >= least
            and (not wanted or record[logs.SCOPE] in wanted)
            and (condition is None or condition(record))
        )

    return matches


def _print(records: Iterable[Record], render: Callable[[Record], str]) -> int:
    shown = 0
    for record in records:
        print(render(record))
        shown += 1
    return shown


def _follow(
    places: list[Path],
    tails: dict[Path, run_log.Tail[Record]],
    matches: Callable[[Record], bool],
    render: Callable[[Record], str],
) -> None:
    while True:
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)
        _print(sorted(filter(matches, _read_new(places, tails)), key=run_log.time_of), render)


def _read_new(places: list[Path], tails: dict[Path, run_log.Tail[Record]]) -> Iterator[Record]:
    """Yield what was appended since the last call, to files that are new as well."""
    for path in run_log.find_files(places):
        if path not in tails and not run_log.is_rotated(path):
            tails[path] = run_log.Tail(path, run_log.parse)
    for path, tail in tails.items():
        if not run_log.is_rotated(path):
            yield from tail.read()


def render_line(record: Record) -> str:
    """Return a record as a line of text.

    Example:
        2026-11-24 22:16:38Z INFO  rollout  step 12  reward_mean=0.25 samples=128
    """
    when = run_log.time_of(record)[:19].replace("T", " ")
    when = f"{when}Z" if when else "-"  # UTC, as in the other outputs and the names of runs
    number = record.get(logs.STEP)
    step = f"step {number}" if number is not None else "-"
    role = record.get("role", "")
    origin = (
        f" [{role}{'' if record.get('rank') is None else ' ' + str(record['rank'])}]"
        if role not in ("", "trainer")
        else ""
    )
    fields = " ".join(f"{name}={_show(value)}" for name, value in record.items() if name not in _HIDDEN)
    level = str(record.get(logs.LEVEL, "INFO"))
    return show(f"{when} {level:<7} {record[logs.SCOPE]:<10} {step:<9}{origin} {fields}", 4_000)


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text[:_MAX_VALUE]) if " " in text and isinstance(value, str) else text[:_MAX_VALUE]


# -- Conditions on the fields of a record: comparisons with ``and``, ``or``, ``not`` and parentheses. No text is evaluated as code --

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


def parse_condition(text: str) -> Condition:
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
        return lambda fields: _find_field(fields, token, None if is_field else token)

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


def _find_field(fields: Mapping[str, Any], name: str, default: Any = None) -> Any:
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
