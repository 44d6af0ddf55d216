# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the OpenTelemetry Collector's configurations into a folder.

Configurations for one machine, for agents and gateways, overlays, a prometheus.yml, a compose.yaml, deployments, and the Go modules from which the programs are
built. README.md in the folder describes each file.

Exit code: 0 written, 2 a file would be replaced (then nothing was written), or the folder cannot be written.

Examples:
  verl-otel collector export otel
  verl-otel collector export otel && sh otel/build.sh otelcol prometheus
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from verl_otel._internal.printable import show
from verl_otel.cli import package_data

if TYPE_CHECKING:
    import argparse

FOLDER: Final = "collector"

add_arguments = package_data.add_export


def run(arguments: argparse.Namespace) -> int:
    """Copy the files. Returns 0."""
    source = package_data.find_folder(FOLDER)
    written = package_data.run_export(arguments, source, package_data.list_files(source))
    print(f"{written}: see {show(arguments.folder / 'README.md')}")
    return 0
