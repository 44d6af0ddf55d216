# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""List every process of the active trainings that serves /metrics, and check each.

These are processes with verl-otel and the engines of rollout, reward and teacher replicas. Those of this machine come from the targets files in
the run directory, those of all nodes from the Ray cluster. An engine whose own statistics are off is listed with the setting of verl that
switches them on. With --serve nothing is checked: the list is served to Prometheus as HTTP service discovery, up to date at every request, until
the command is stopped.

Exit code: 0 each process answers, 1 one does not, or there is none.

Examples:
  verl-otel discover
  verl-otel discover --address 10.0.0.1:6379 --run 20261121-093000-a3f2 --json
  verl-otel discover --serve
  verl-otel discover --serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --basic-auth-file users.txt

For prometheus.yml, with --serve:
  scrape_configs:
    - job_name: verl
      http_sd_configs: [{url: "http://127.0.0.1:9465/"}]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from verl_otel import config
from verl_otel._internal.printable import show
from verl_otel.cli import missing_run, options
from verl_otel.cli.discover import service_discovery, target_probe
from verl_otel.cli.discover.http_auth import HttpAuth
from verl_otel.cli.formatting import SENTENCE, align, print_json
from verl_otel.cli.run_folders import list_runs
from verl_otel.errors import VerlOtelError
from verl_otel.session import prometheus_targets
from verl_otel.session.prometheus_targets import Entries, Entry

PORT: Final = 9465
_ANSWERS: Final = ("ok", "statistics off")
"""States of a responding target."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--run", metavar="ID", help="list this run only")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="head of the Ray cluster (default: RAY_ADDRESS, or the one on this machine)",
    )
    parser.add_argument("--local", action="store_true", help="list this machine only, without Ray")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder that holds one folder per run")
    parser.add_argument(
        "--timeout", type=options.timeout, default=2.0, metavar="SECONDS", help="time-out for each target (2)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    group = parser.add_argument_group("HTTP service discovery")
    group.add_argument("--serve", action="store_true", help="serve the list to Prometheus until stopped")
    group.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    group.add_argument("--port", type=options.port, default=PORT, help=f"port; 0 takes a free one ({PORT})")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain: serve HTTPS")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate")
    group.add_argument(
        "--basic-auth-file",
        type=Path,
        metavar="FILE",
        help="allowed users: lines user:password; not readable by others",
    )


def run(arguments: argparse.Namespace) -> int:
    """List and check, or serve. Returns 1 when a target does not answer or there is none."""
    if arguments.local and arguments.address:
        raise VerlOtelError("--local and --address exclude each other")
    folder = config.read("run_dir", arguments.run_dir) / prometheus_targets.FOLDER
    find = functools.partial(find_entries, folder, arguments.address, arguments.run, local=arguments.local)
    if arguments.serve:
        access = HttpAuth(arguments.tls_cert, arguments.tls_key, arguments.basic_auth_file)
        return service_discovery.serve((arguments.host, arguments.port), access, functools.partial(find, linger=True))
    answers = target_probe.probe_all(find(), arguments.timeout)
    if arguments.json:
        rows = [{**answer.entry, "state": answer.state, "detail": answer.text} for answer in answers]
        print_json(rows)
    else:
        print("\n".join(_lines(answers)) or _describe_none(folder, arguments.run, local=arguments.local))
    return int(not answers or any(answer.state not in _ANSWERS for answer in answers))


def _describe_none(folder: Path, run_id: str | None, *, local: bool) -> str:
    """Return the message for no targets: where they were searched for, and what makes them."""
    if run_id is not None and not (folder.parent / run_id).is_dir():
        return show(missing_run.describe_name(run_id, folder.parent, list_runs(folder.parent)), SENTENCE)
    of_run = "" if run_id is None else f" of run {show(run_id)}"
    return (
        f"no targets{of_run} in {show(folder)}{'' if local else ' nor in a Ray cluster'}: running processes are listed "
        "whose VERL_OTEL_EXPORTERS has prometheus"
    )


def find_entries(
    folder: Path, address: str | None, run_id: str | None, *, local: bool = False, linger: bool = False
) -> Entries:
    """Return the targets of this machine and of the Ray cluster without duplicates, ordered by run and instance.

    With ``linger`` trainers of this machine that died stay for a while; see `targets.LINGER`.

    Raises:
        ClusterError: A Ray cluster was given or found, and does not answer.
    """
    entries: dict[tuple[str, str], Entry] = {}
    for entry in [*([] if local else _read_cluster(address)), *prometheus_targets.read_folder(folder, linger=linger)]:
        labels = entry.get("labels", {})
        if entry["targets"] and run_id in (None, labels.get("verl_run_id")):
            entries[str(entry["targets"][0]), str(labels.get("instance", ""))] = entry
    return sorted(entries.values(), key=lambda entry: (_label(entry, "verl_run_id"), _label(entry, "instance")))


def _read_cluster(address: str | None) -> Entries:
    from verl_otel.integrations.ray import discovery

    try:
        cluster = discovery.find_cluster(address)
    except discovery.NoClusterError as error:
        if address:
            raise
        service_discovery.print_once(f"verl-otel: {error}; only the targets of this machine are listed")
        return []
    return [entry for note in discovery.read_notes(cluster) for entry in note.entries]


def _label(entry: Entry, name: str) -> str:
    return str(entry.get("labels", {}).get(name, ""))


def _lines(answers: Sequence[target_probe.Answer]) -> list[str]:
    rows = [
        tuple(map(show, (answer.state, answer.address, _label(answer.entry, "instance"), answer.text)))
        for answer in answers
    ]
    if not rows:
        return []
    lines = align(rows, right=())
    bad = sum(answer.state not in _ANSWERS for answer in answers)
    off = sum(answer.state == "statistics off" for answer in answers)
    summary = f"{bad} of {len(rows)} targets do not answer" if bad else f"All {len(rows)} targets answer"
    rest = f"; of {off} {'engine' if off == 1 else 'engines'} the statistics are off" if off else ""
    return [*lines, f"\n{summary}{rest}."]
