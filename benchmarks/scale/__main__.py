# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Simulate a run on a thousand GPUs in parts, and write the table "what grows with what".

Examples:
  python -m benchmarks.scale                     # measure all parts, write results and table
  python -m benchmarks.scale --part worker       # print one part
  python -m benchmarks.scale --table             # write the table from the committed results
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.processes import TOP
from benchmarks.scale import table
from benchmarks.scale.probes import PROBES
from benchmarks.table import replace

RESULTS: Final = TOP / "benchmarks" / "results" / "scale.json"
PAGE: Final = TOP / "docs" / "how-to" / "scale.md"
NAME: Final = "scale"


def measure(part: str) -> dict[str, float]:
    """Run a part in a process of its own.

    Raises:
        RuntimeError: It failed; the message is the end of its errors.
    """
    command = [sys.executable, "-m", "benchmarks.scale.probes", part]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{part}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def write_table(results: dict[str, Any], page: Path = PAGE) -> None:
    """Replace the table in the guide."""
    page.write_text(replace(page.read_text("utf-8"), NAME, table.render(results)), "utf-8")


def main(argv: list[str] | None = None) -> None:
    """Measure, and write results and table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=tuple(PROBES), help="measure this part only, and print its figures")
    parser.add_argument("--table", action="store_true", help="measure nothing, and write the table again")
    arguments = parser.parse_args(argv)
    if arguments.part:
        print(json.dumps(measure(arguments.part), indent=1))
        return
    if not arguments.table:
        before = machine.load()
        parts = {part: measure(part) for part in PROBES}
        results = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "machine": machine.describe(),
            "load": (before, machine.load()),
            "parts": parts,
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    write_table(json.loads(RESULTS.read_text("utf-8")))


if __name__ == "__main__":
    main()
