# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""List what serves /metrics in the running trainings, and check each.

Processes of verl-otel and the engines of rollout, reward and teacher replicas: those of this machine from the targets files in
the run directory, those of all nodes from the Ray cluster. Exit code 0: each answers. 1: one does not, or there is none. With --serve
nothing is checked: the list is served to Prometheus as HTTP service discovery, fresh at every request, until the command is stopped.

Examples:
  verl-otel discover
  verl-otel discover --address 10.0.0.1:6379 --run 20261121-093000-a3f2 --json
  verl-otel discover --serve
  verl-otel discover --serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --basic-auth-file users.txt

For prometheus.yml, beside --serve:
  scrape_configs:
    - job_name: verl
      http_sd_configs: [{url: "http://127.0.0.1:9465/"}]
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from verl_otel import config
from verl_otel.cli import probe, service_discovery
from verl_otel.cli.access import Access
from verl_otel.errors import VerlOtelError
from verl_otel.session import targets
from verl_otel.session.targets import Entries, Entry

PORT: Final = 9465


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--run", metavar="ID", help="this run only")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="head of the Ray cluster (default: RAY_ADDRESS, or the one on this machine)",
    )
    parser.add_argument("--local", action="store_true", help="this machine only: Ray is not asked")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder that holds one folder per run")
    parser.add_argument("--timeout", type=float, default=2.0, metavar="SECONDS", help="time for each target (2)")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    group = parser.add_argument_group("HTTP service discovery")
    group.add_argument("--serve", action="store_true", help="serve the list to Prometheus until stopped")
    group.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    group.add_argument("--port", type=int, default=PORT, help=f"port; 0 takes a free one ({PORT})")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain: serve HTTPS")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate")
    group.add_argument(
        "--basic-auth-file", type=Path, metavar="FILE", help="who may ask: lines user:password, kept from other users"
    )


def run(arguments: argparse.Namespace) -> int:
    """List and check, or serve. Returns 1 when a target does not answer or there is none."""
    if arguments.local and arguments.address:
        raise VerlOtelError("--local and --address exclude each other")
    folder = config.load(run_dir=arguments.run_dir).run_dir / targets.FOLDER
    find = functools.partial(find_entries, folder, arguments.address, arguments.run, local=arguments.local)
    if arguments.serve:
        access = Access(arguments.tls_cert, arguments.tls_key, arguments.basic_auth_file)
        return service_discovery.serve((arguments.host, arguments.port), access, functools.partial(find, linger=True))
    answers = probe.probe_all(find(), arguments.timeout)
    if arguments.json:
        found = [{**each.entry, "state": each.state, "detail": each.text} for each in answers]
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        print(
            "\n".join(_lines(answers)) or f"no targets in {folder}{'' if arguments.local else ' nor in a Ray cluster'}"
        )
    return int(not answers or any(each.state != "ok" for each in answers))


def find_entries(
    folder: Path, address: str | None, run_id: str | None, *, local: bool = False, linger: bool = False
) -> Entries:
    """Return the targets of this machine and of the Ray cluster, each once, ordered by run and instance.

    With ``linger`` trainers of this machine that died stay for a while; see `targets.LINGER`.

    Raises:
        ClusterError: A Ray cluster was named, or is here, and does not answer.
    """
    found: dict[tuple[str, str], Entry] = {}
    for entry in [*([] if local else _read_cluster(address)), *targets.read_folder(folder, linger=linger)]:
        labels = entry.get("labels", {})
        if entry["targets"] and run_id in (None, labels.get("verl_run_id")):
            found[str(entry["targets"][0]), str(labels.get("instance", ""))] = entry
    return sorted(found.values(), key=lambda each: (_label(each, "verl_run_id"), _label(each, "instance")))


def _read_cluster(address: str | None) -> Entries:
    from verl_otel.integrations.ray import discovery

    try:
        cluster = discovery.find_cluster(address)
    except discovery.NoClusterError as error:
        if address:
            raise
        service_discovery.say_once(f"verl-otel: {error}; only the targets of this machine are listed")
        return []
    return [entry for note in discovery.read_notes(cluster) for entry in note.entries]


def _label(entry: Entry, name: str) -> str:
    return str(entry.get("labels", {}).get(name, ""))


def _lines(answers: Sequence[probe.Answer]) -> list[str]:
    rows = [(each.state, each.address, _label(each.entry, "instance"), each.text) for each in answers]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    bad = sum(each.state != "ok" for each in answers)
    return (
        [*lines, f"\n{bad} of {len(rows)} targets do not answer." if bad else f"\nAll {len(rows)} targets answer."]
        if rows
        else []
    )
