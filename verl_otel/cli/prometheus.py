# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Add the targets of trainings to the prometheus.yml of your own Prometheus, or remove them.

`add` writes one job with service discovery into a file beside it (prometheus.verl-otel.yml), appends one line that names this file, and has Prometheus
(2.43 or newer) load it. All other lines stay as they are. Adding twice changes nothing. `remove` deletes both. If Prometheus refuses the new files, the
old ones are put back. By default the job reads the targets files of this machine's run directory; with --http-sd it asks `verl-otel discover --serve`,
which lists the targets of all nodes.

Exit code: 0 done, or nothing was to be done, 1 the file has been changed but Prometheus has not loaded it, 2 the file stays as it was.

Examples:
  verl-otel prometheus add
  verl-otel prometheus add --file /etc/prometheus/prometheus.yml --reload http://127.0.0.1:9090
  verl-otel prometheus add --http-sd http://127.0.0.1:9465/
  verl-otel prometheus remove --file /etc/prometheus/prometheus.yml
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from verl_otel import config
from verl_otel._internal.printable import show_lines
from verl_otel.cli import options
from verl_otel.errors import VerlOtelError
from verl_otel.session import prometheus_file, prometheus_job, prometheus_targets

FILE: Final = "/tmp/ray/session_latest/metrics/prometheus/prometheus.yml"  # noqa: S108 - Ray's place
"""The file of Ray, which is the default of ``rollout.prometheus.file``, too."""
RELOAD: Final = "http://127.0.0.1:9090"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", metavar="ACTION", choices=("add", "remove"), help="`add` the job, or `remove` it")
    parser.add_argument("--file", type=Path, default=Path(FILE), help=f"the file ({FILE})")
    parser.add_argument(
        "--reload",
        metavar="URL",
        default=RELOAD,
        help=f"the Prometheus that reads the file; 'none' asks none ({RELOAD})",
    )
    parser.add_argument("--http-sd", metavar="URL", help="discover by HTTP, not by the files of this machine")
    options.add_run_dir(parser)
    parser.add_argument("--all", action="store_true", help="remove all sources of the job, not only this one")


def run(arguments: argparse.Namespace) -> int:
    """Change the file. Returns 1 when Prometheus has not loaded it, 2 when it was not changed."""
    folder = config.read("run_dir", arguments.run_dir)
    source = arguments.http_sd or prometheus_job.make_pattern(folder / prometheus_targets.TARGETS_FOLDER)
    for option, url in (("--reload", arguments.reload), ("--http-sd", arguments.http_sd)):
        if url and url != "none" and not prometheus_job.is_url(url):
            raise VerlOtelError(f"{option} {url}: give a URL that begins with http:// or https://")
    if not arguments.file.exists():
        raise VerlOtelError(
            f"{arguments.file}: there is no such file; --file names the prometheus.yml of your Prometheus"
        )
    urls = [] if arguments.reload == "none" else [arguments.reload]
    if arguments.action == "add":
        outcome = prometheus_file.add_job(arguments.file, [source], urls)
        if outcome.state != "refused" and not arguments.http_sd:
            reader = prometheus_file.describe_reader(arguments.file, folder / prometheus_targets.TARGETS_FOLDER, urls)
            outcome = outcome._replace(text=outcome.text + reader)
    else:
        outcome = prometheus_file.remove_job(arguments.file, None if arguments.all else [source], urls)
    print(show_lines(outcome.text, longest=5_000))
    if outcome.state == "refused":
        return 2
    return int(outcome.answer is not None and outcome.answer.state != "loaded")
