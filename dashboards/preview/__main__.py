# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Render boards as images without Grafana, with the data of a real Prometheus.

Examples:
  python -m dashboards.preview pictures --url http://127.0.0.1:9090
  python -m dashboards.preview pictures --recorded runs/20261121-142154-8167 --scrape 1 --set window=10s
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dashboards import loader
from dashboards.preview import interpolation, page, recording, server
from dashboards.preview.client import Prometheus, QueryError


def main(arguments: Sequence[str] | None = None) -> int:
    """Render all boards or the given ones; return 1 if Prometheus rejected a query, 2 if it is missing."""
    parsed = _parse(arguments)
    try:
        with _source(parsed) as (prometheus, period):
            return _draw(parsed, prometheus, period)
    except (QueryError, server.MissingProgramError, FileNotFoundError) as error:
        print(f"preview: {error}", file=sys.stderr)
        return 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.preview",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--url", default="http://127.0.0.1:9090", help="the Prometheus (%(default)s)")
    parser.add_argument(
        "--recorded",
        type=Path,
        action="append",
        metavar="RUN",
        help="instead of --url: a Prometheus of its own, filled from the files of this run directory; may be repeated",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="DIR",
        help="beside --recorded: what a run lacks, from the samples in this folder",
    )
    parser.add_argument("--board", action="append", metavar="NAME", help="this board only; may be repeated")
    parser.add_argument(
        "--run", action="append", metavar="ID", help="this run; may be repeated (default: the youngest)"
    )
    parser.add_argument("--start", type=float, metavar="UNIX", help="begin of the time range (an hour before its end)")
    parser.add_argument(
        "--end", type=float, metavar="UNIX", help="end of the time range (now, or the end of the recording)"
    )
    parser.add_argument("--scrape", type=float, default=10.0, metavar="SECONDS", help="scrape interval (%(default)g)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="set another variable; may be repeated"
    )
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _source(parsed: argparse.Namespace) -> Iterator[tuple[Prometheus, interpolation.Period]]:
    """Yield the Prometheus to query, and the time range."""
    if not parsed.recorded:
        end = parsed.end or time.time()
        yield Prometheus(parsed.url), interpolation.Period(parsed.start or end - 3600, end, parsed.scrape)
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "recorded.txt"
        first, last = recording.write(recording.read_all(parsed.recorded, parsed.samples), text, parsed.scrape)
        period = interpolation.Period(parsed.start or first, parsed.end or last, parsed.scrape)
        with server.serve(text, Path(folder), parsed.scrape) as prometheus:
            yield prometheus, period


def _draw(parsed: argparse.Namespace, prometheus: Prometheus, period: interpolation.Period) -> int:
    chosen = {name: (value,) for name, _, value in (assignment.partition("=") for assignment in parsed.set)}
    if parsed.run:
        chosen["run"] = tuple(parsed.run)
    parsed.folder.mkdir(parents=True, exist_ok=True)
    refused = 0
    for name, board in loader.read().items():
        if parsed.board and name not in parsed.board:
            continue
        values = interpolation.evaluate(board, prometheus, period, chosen)
        drawn_panels = page.draw(board, values, prometheus, parsed.folder / f"{name}.png")
        print(
            f"{drawn_panels.path}: {len(drawn_panels.empty)} panels without data, {len(drawn_panels.refused)} refused"
        )
        for title in drawn_panels.empty:
            print(f"  no data: {title}")
        for title in drawn_panels.refused:
            print(f"  refused: {title}")
        refused += len(drawn_panels.refused)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
