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
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from verl_otel._internal.printable import show
from verl_otel.analysis.io import run_log
from verl_otel.analysis.io.run_log import Record
from verl_otel.cli import options, run_selection
from verl_otel.cli.logs import expression
from verl_otel.semconv import logs

POLL_SECONDS: Final = 0.5
"""Seconds between two looks at the files with ``--follow``."""
SHOWN_BEFORE: Final = 10
"""Records that are shown before those that follow."""
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
        return 0
    has_log = bool(run_log.find_files(places))
    reason = "no record of the run log matches" if has_log else "the run has no log (verl_logs.jsonl)"
    print(f"verl-otel: {reason}", file=sys.stderr)
    return 1


def make_filter(level: str | None, scopes: Iterable[str] | None, where: str | None) -> Callable[[Record], bool]:
    """Return a function that returns whether a record is shown.

    Raises:
        VerlOtelError: The condition cannot be read.
    """
    least = logs.LEVELS.get(level or "", 0)
    wanted = frozenset(scopes or ())
    condition = expression.parse(where) if where else None

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
        2026-11-24 22:16:38 INFO  rollout  step 12  reward_mean=0.25 samples=128
    """
    when = run_log.time_of(record)[:19].replace("T", " ") or "-"
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
