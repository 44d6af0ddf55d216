# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What telemetry costs, measured: ours against what one would use instead, side by side in fresh processes.

Examples:
  python -m benchmarks run --quick                      # two minutes, three processes a case
  python -m benchmarks run --json benchmarks/results/headline.json
  python -m benchmarks run --only counter --only decorator-metrics --processes 15
  python -m benchmarks run --suite total --processes 3  # total CPU: of calls, hooks, idle and busy processes, the reader
  python -m benchmarks run --suite end_to_end           # real verl, as long as it needs
  python -m benchmarks table                            # of benchmarks/results/headline.json
  python -m benchmarks table --write                    # into README.md and docs/explanation/performance.md
  python -m benchmarks compare before.json after.json
  python -m benchmarks list

Exit code: 0 measured, 1 something promised is not met or was not measured (run --strict), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from benchmarks import comparison, machine, processes, results, table
from benchmarks.case import Case, load_cases
from benchmarks.statistics import MET

FULL: Final = (9, 99)
"""Processes of a case and rounds of a process: what the promises are made for."""
QUICK: Final = (3, 41)
"""Enough to see what is grossly wrong; their interval holds the median with 75 %."""
SUITES: Final = ("hot", "total", "end_to_end")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="measure and print the table"))
    page = commands.add_parser("table", help="print the table of a result file, or write it into the documents")
    page.add_argument("file", type=Path, nargs="?", default=results.HEADLINE, help="result file (headline.json)")
    page.add_argument("--write", action="store_true", help="write them into the documents")
    page.add_argument("--details", action="store_true", help="print every variant, not only what is promised")
    page.set_defaults(command=_table)
    pair = commands.add_parser("compare", help="say what differs between two result files, and what of that is noise")
    pair.add_argument("a", type=Path, metavar="A")
    pair.add_argument("b", type=Path, metavar="B")
    pair.set_defaults(command=_compare)
    commands.add_parser("list", help="list the cases").set_defaults(command=_list)
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer processes and rounds")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this case; may be given again")
    parser.add_argument("--suite", choices=SUITES, default=SUITES[0], help="which cases (hot)")
    parser.add_argument("--processes", type=int, metavar="N", help="fresh processes of a case (9; 3 with --quick)")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds of a process (99; 41 with --quick); jobs have fewer"
    )
    parser.add_argument("--minutes", type=float, default=0, help="begin no process after this time; 0: no limit (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every promise is met")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    cases = _choose(arguments)
    count, rounds = QUICK if arguments.quick else FULL
    measured = _measure(
        cases,
        arguments.processes or count,
        arguments.rounds or rounds,
        quick=arguments.quick,
        deadline=time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf"),
    )
    if arguments.json:
        results.write(measured, arguments.json)
    promised = any(case.verdicts for case in measured.cases)
    if promised:
        print(table.headline(measured))
    if not promised or any(case.figures or case.null for case in measured.cases):
        print(table.details(measured))
    met = all(verdict.outcome == MET for case in measured.cases for verdict in case.verdicts if verdict.decides)
    return int(arguments.strict and not met)


def _choose(arguments: argparse.Namespace) -> list[Case]:
    """Return the cases that are asked for.

    Raises:
        ValueError: There is no such case.
    """
    available = load_cases()
    unknown = [name for name in arguments.only if name not in available]
    if unknown:
        raise ValueError(f"no case {', '.join(unknown)}; there are: {', '.join(available)}")
    if arguments.only:
        return [available[name] for name in arguments.only]
    return [case for case in available.values() if case.suite == arguments.suite]


def _measure(cases: Sequence[Case], count: int, rounds: int, *, quick: bool, deadline: float) -> results.Results:
    begin, before = time.monotonic(), machine.load()

    def progress(line: str) -> None:
        print(f"[{time.monotonic() - begin:5.0f} s] {line}", file=sys.stderr, flush=True)

    outcomes = processes.measure_all(cases, processes=count, rounds=rounds, progress=progress, deadline=deadline)
    return results.Results(
        datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        round(time.monotonic() - begin, 1),
        count,
        rounds,
        quick,
        machine.describe(),
        (before, machine.load()),
        tuple(results.summarize(case, measured, failures) for case, measured, failures in outcomes),
    )


def _table(arguments: argparse.Namespace) -> int:
    measured = results.read(arguments.file)
    if arguments.write:
        for path in table.write_pages(measured):
            print(f"written: {path.relative_to(processes.TOP)}")
        return 0
    print(table.details(measured) if arguments.details else table.headline(measured))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    print(comparison.render(results.read(arguments.a), results.read(arguments.b)))
    return 0


def _list(_: argparse.Namespace) -> int:
    for case in load_cases().values():
        print(f"{case.name:24} {case.suite:10} {case.title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
