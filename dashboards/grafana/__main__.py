# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Take a screenshot of every board in a real Grafana (GRAFANA_HOME), over a real Prometheus that is filled with recorded runs.

Example:
  GRAFANA_HOME=grafana-13.0.0 python -m dashboards.grafana pictures --recorded runs/20261121-142154-8167 --scrape 1 --set window=30s
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards import loader
from dashboards.evaluation import recording
from dashboards.evaluation import server as prometheus_server
from dashboards.grafana import screenshots, server
from dashboards.grafana.client import Grafana, GrafanaError
from verl_otel.errors import VerlOtelError

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def main(arguments: Sequence[str] | None = None) -> int:
    """Take screenshots of the boards; return 1 if one lacks or shows an error, 2 if a program that is needed is not there."""
    parsed = _parse(arguments)
    try:
        home = server.find(os.environ)
        with screenshots.open_browser() as browser, tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "recorded.txt"
            period = recording.write(recording.read_all(parsed.recorded, parsed.samples), text, parsed.scrape)
            with (
                prometheus_server.serve(text, Path(folder), parsed.scrape) as prometheus,
                server.serve(home, prometheus.url.removeprefix("http://"), Path(folder)) as grafana,
            ):
                return _capture_all(parsed, browser, grafana, period)
    except (
        server.MissingGrafanaError,
        screenshots.MissingBrowserError,
        prometheus_server.MissingProgramError,
        FileNotFoundError,
    ) as error:
        print(f"grafana: {error}", file=sys.stderr)
        return 2
    except (VerlOtelError, GrafanaError) as error:
        print(f"grafana: {error}", file=sys.stderr)
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.grafana",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument(
        "--recorded",
        type=Path,
        action="append",
        required=True,
        metavar="RUN",
        help="a run directory, whose files fill the Prometheus; may be repeated",
    )
    parser.add_argument("--samples", type=Path, metavar="DIR", help="what a run lacks, from the samples in this folder")
    parser.add_argument(
        "--board", action="append", choices=[*loader.read()], metavar="NAME", help="this board only; may be repeated"
    )
    parser.add_argument("--scrape", type=float, default=10.0, metavar="SECONDS", help="scrape interval (%(default)g)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable; may be repeated (default: what the board chooses)",
    )
    return parser.parse_args(arguments)


def _capture_all(parsed: argparse.Namespace, browser: Browser, grafana: Grafana, period: tuple[float, float]) -> int:
    """Take a screenshot of every board that is selected, and print its problems."""
    boards = {name: board for name, board in loader.read().items() if not parsed.board or name in parsed.board}
    chosen = {name: value for name, _, value in (assignment.partition("=") for assignment in parsed.set)}
    parsed.folder.mkdir(parents=True, exist_ok=True)
    print(f"Grafana {grafana.read_version()}, {len(boards)} boards")
    missing = grafana.wait_for([board["uid"] for board in boards.values()])
    failed = 0
    for name, board in boards.items():
        if board["uid"] in missing:
            print(f"{name}: Grafana does not have it")
            failed += 1
            continue
        problems = grafana.check(board)
        address = screenshots.write_address(grafana.url, board, period, chosen)
        screenshot = screenshots.capture(browser, address, board, parsed.folder / f"{name}.png")
        problems += screenshot.errors
        print(f"{screenshot.path}: {len(screenshot.empty)} panels without data, {len(problems)} errors")
        for title in screenshot.empty:
            print(f"  no data: {title}")
        for problem in problems:
            print(f"  error: {problem}")
        failed += bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended, as with Ctrl-C
    sys.exit(main())
