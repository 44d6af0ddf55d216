# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana boards, their provisioning, and the rules for Prometheus into a folder.

The boards are classic JSON, which Grafana 10 to 13 import manually or by provisioning.

Exit code: 0 written, 2 a file would be replaced (then nothing was written), or the folder cannot be written.

Examples:
  verl-otel boards export grafana
  verl-otel boards export grafana --profile math --force
  export PROMETHEUS_URL=http://127.0.0.1:9090 TEMPO_URL=http://127.0.0.1:3200
  export VERL_OTEL_BOARDS=$PWD/grafana/generated GF_PATHS_PROVISIONING=$PWD/grafana/provisioning
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from verl_otel._internal.printable import show
from verl_otel.cli import options, package_data
from verl_otel.health import rules_file

if TYPE_CHECKING:
    import argparse

FOLDER: Final = "dashboards"
THRESHOLDS: Final = Path("rules", rules_file.FILE)
KINDS: Final = ("generated", "provisioning", "rules")
"""Folders that users need; in a checkout the others hold the code that generates them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_profile(package_data.add_export(parser), "default")


def run(arguments: argparse.Namespace) -> int:
    """Copy the files, with the thresholds of the profile. Returns 0."""
    source = package_data.find_folder(FOLDER)
    names = [name for name in package_data.list_files(source) if name.parts[0] in KINDS]
    with tempfile.TemporaryDirectory() as folder:
        replaced = {}
        if arguments.profile is not None:
            thresholds = Path(folder, rules_file.FILE)
            thresholds.write_text(rules_file.render(arguments.profile), "utf-8")
            replaced[THRESHOLDS] = thresholds
        written = package_data.run_export(arguments, source, names, replaced)
    print(f"{written}: {sum(name.parts[0] == 'generated' for name in names)} boards in {show(arguments.folder)}")
    return 0
