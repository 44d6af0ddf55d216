# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana boards, and how Grafana finds them, into a folder.

Classic JSON: Grafana 10 to 13 import it by hand or find it by provisioning. Rules and alerts for Prometheus are beside it. Exit code 0: they
are there. 2: a file would be replaced, or the folder cannot be written; nothing was.

Examples:
  verl-otel boards export grafana
  export PROMETHEUS_URL=http://127.0.0.1:9090 TEMPO_URL=http://127.0.0.1:3200
  export VERL_OTEL_BOARDS=$PWD/grafana/generated GF_PATHS_PROVISIONING=$PWD/grafana/provisioning
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from verl_otel.cli import shipped

if TYPE_CHECKING:
    import argparse

FOLDER: Final = "dashboards"
KINDS: Final = ("generated", "provisioning", "rules")
"""Folders that users need; in a checkout the others hold the code that makes them."""

add_arguments = shipped.add_export


def run(arguments: argparse.Namespace) -> int:
    """Copy the files. Returns 0."""
    source = shipped.find_folder(FOLDER)
    names = [name for name in shipped.list_files(source) if name.parts[0] in KINDS]
    written = shipped.run_export(arguments, source, names)
    print(f"{written}: {sum(name.parts[0] == 'generated' for name in names)} boards in {arguments.folder}")
    return 0
