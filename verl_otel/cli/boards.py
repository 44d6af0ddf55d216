# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana boards, their provisioning, and the rules for Prometheus into a folder.

The boards are classic JSON, which Grafana 10 to 13 import manually or by provisioning.

Exit code: 0 written, 2 a file would be replaced, or the folder cannot be written; then nothing was.

Examples:
  verl-otel boards export grafana
  export PROMETHEUS_URL=http://127.0.0.1:9090 TEMPO_URL=http://127.0.0.1:3200
  export VERL_OTEL_BOARDS=$PWD/grafana/generated GF_PATHS_PROVISIONING=$PWD/grafana/provisioning
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from verl_otel._internal.printable import show
from verl_otel.cli import package_data

if TYPE_CHECKING:
    import argparse

FOLDER: Final = "dashboards"
KINDS: Final = ("generated", "provisioning", "rules")
"""Folders that users need; in a checkout the others hold the code that generates them."""

add_arguments = package_data.add_export


def run(arguments: argparse.Namespace) -> int:
    """Copy the files. Returns 0."""
    source = package_data.find_folder(FOLDER)
    names = [name for name in package_data.list_files(source) if name.parts[0] in KINDS]
    written = package_data.run_export(arguments, source, names)
    print(f"{written}: {sum(name.parts[0] == 'generated' for name in names)} boards in {show(arguments.folder)}")
    return 0
