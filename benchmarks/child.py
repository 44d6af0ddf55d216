# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a fresh process does: it builds the variants of one case, measures them in rounds, and writes a JSON file.

Started by `benchmarks.processes`. Nothing but JSON goes between the processes.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import rounds
from benchmarks.case import Operation, Unavailable, load_cases


def measure_case(name: str, count: int, wanted: tuple[str, ...] = (), first: int = 0) -> dict[str, Any]:
    """Build the variants of a case and measure them.

    Args:
        name: The case.
        count: Rounds.
        wanted: Variants; all of them if empty.
        first: Number of the variant that begins.

    Returns:
        Seconds of one operation by variant and round, other figures likewise, and why a variant is missing.
    """
    case = load_cases()[name]
    operations: dict[str, Operation] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        turn = first % len(case.variants)
        for variant in (*case.variants[turn:], *case.variants[:turn]):  # no variant is always built first
            if wanted and variant.name not in wanted:
                continue
            try:
                operations[variant.name] = variant.build()
            except Unavailable as reason:
                missing[variant.name] = str(reason)
            except ModuleNotFoundError as reason:
                if (reason.name or "").startswith(("verl_otel", "benchmarks")):
                    raise  # ours is broken, which is not the same as a contender that is not installed
                missing[variant.name] = f"{reason.name} is not installed"
            else:
                stack.callback(operations[variant.name].close)
        number = min(count, case.rounds or count)
        return {
            "seconds": rounds.measure(operations, number) if operations else {},
            "missing": missing,
            "figures": {variant: dict(operation.figures()) for variant, operation in operations.items()},
        }


def main(argv: list[str] | None = None) -> None:
    """Measure one case and write what was found."""
    parser = argparse.ArgumentParser(description="Measure one case in this process.")
    parser.add_argument("case")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # what a contender has to say is not what is measured
    warnings.simplefilter("ignore")
    result: Mapping[str, Any] = measure_case(
        arguments.case, arguments.rounds, tuple(arguments.variant), arguments.first
    )
    arguments.out.write_text(json.dumps(result, allow_nan=False), "utf-8")


if __name__ == "__main__":
    main()
