# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the tables of a run as Parquet files, one per table.

The tables are steps, phases, path (the critical path by kind), trajectories (all of them), verdicts, gpu and scalars. Needs pyarrow:
pip install 'verl-otel[parquet]'.

Examples:
  verl-otel export parquet RUN --output tables
  duckdb -c "SELECT step, max(seconds) FROM 'tables/trajectories.parquet' GROUP BY step ORDER BY 2 DESC LIMIT 5"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_otel._internal.printable import counted, show
from verl_otel.analysis.run import TABLES
from verl_otel.cli import run_selection
from verl_otel.errors import VerlOtelError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the format."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder to write to, created if absent (<run id>.parquet)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the tables. Returns 1 when all are empty."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise VerlOtelError("Parquet needs pyarrow: pip install 'verl-otel[parquet]'") from None
    recorded = run_selection.open_run(arguments.folders, "export")
    folder: Path = arguments.output or Path(f"{recorded.id}.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for name in TABLES:
        table = recorded.to_arrow(name)
        counts[name] = table.num_rows
        with (folder / f"{name}.parquet").open("wb") as stream:
            parquet.write_table(table, stream, compression="zstd")
    rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"{show(folder, 2_000)}: {counted(len(counts), 'table')} ({rows})")
    return 0 if any(counts.values()) else 1
