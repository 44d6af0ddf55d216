# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Show the run log: the records of each step, of the user's own fields, of warnings, and of samples.

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a run have folders of
their own. It may also be a file, such as the one of verl's own file logger. Records of all processes are shown in the order of time. A run that is
active, or was killed while it wrote a line, can be shown, too.

A condition is a field, an operator (= != < <= > >=) and a value: a number, true, false, or a text, in quotes if it is not one word. Where --where is
repeated, a record is shown if all conditions hold. kl, loss, reward and score are short for kl_div, policy_loss, reward_mean and score_mean. A record
without the field does not match.

Examples:
  verl-otel logs
  verl-otel logs RUN --scope ppo --where 'kl > 0.1'
  verl-otel logs RUN --level warning --follow
  verl-otel logs RUN --scope rollout --last 20 --json | jq .reward_mean
  verl-otel logs my_project/my_experiment.jsonl --where 'actor/grad_norm > 5' --where 'step >= 100'

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
    parser.add_argument(
        "--where",
        action="append",
        metavar="CONDITION",
        help="show records for which this holds, such as 'kl > 0.1'; may be repeated",
    )
    options.add_run_dir(parser)
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


def make_filter(
    level: str | None, scopes: Iterable[str] | None, where: Iterable[str] | None
) -> Callable[[Record], bool]:
    """Return a function that returns whether a record is shown.

    Raises:
        VerlOtelError: A condition cannot be read.
    """
    least = logs.LEVELS.get(level or "", 0)
    wanted = frozenset(scopes or ())
    conditions = [parse_condition(text) for text in where or ()]

    def matches(record: Record) -> bool:
        return (
            logs.LEVELS.get(str(record.get(logs.LEVEL)), logs.INFO) >= least
            and (not wanted or record[logs.SCOPE] in wanted)
            and all(holds(record) for holds in conditions)
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


# -- Conditions on the fields of a record --

Condition = Callable[[Mapping[str, Any]], bool]

ALIASES: Final = {"kl": "kl_div", "loss": "policy_loss", "reward": "reward_mean", "score": "score_mean"}
"""Short names, for records without a field of this name."""
_CONDITION: Final = re.compile(
    r"""\s*([A-Za-z_][\w./@-]*)\s*(>=|<=|==|!=|>|<|=)\s*("[^"]*"|'[^']*'|[^\s()"'<>=!]+)\s*"""
)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def parse_condition(text: str) -> Condition:
    """Return a condition.

    Args:
        text: A field, an operator and a value, such as ``kl > 0.1``.

    Raises:
        VerlOtelError: It has another form.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise VerlOtelError(
            f"the condition {text[:200]!r} is not a field, an operator and a value, as in --where 'kl > 0.1'; "
            "repeat --where in place of 'and'; there is no 'or', no 'not', and there are no parentheses"
        )
    name, compare, value = match[1], _COMPARE[match[2]], _read_value(match[3])

    def holds(record: Mapping[str, Any]) -> bool:
        found = record.get(name, record.get(ALIASES.get(name, name)))
        if found in ("inf", "-inf"):  # the run log writes numbers that are not finite as texts
            found = float(found)
        elif found != found:
            found = "nan"
        try:
            return found is not None and bool(compare(found, value))
        except TypeError:  # a number and a text have no order
            return False

    return holds


def _read_value(text: str) -> object:
    """Return the number, the truth value or the text that is written. NaN is a text, so that it equals itself."""
    if text[0] in "\"'":
        return text[1:-1]
    try:
        return "nan" if math.isnan(number := float(text)) else number
    except ValueError:
        return {"true": True, "false": False}.get(text, text)
