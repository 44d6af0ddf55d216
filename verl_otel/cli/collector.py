# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the OpenTelemetry Collector's configurations into a folder.

They come with verl-otel: one machine, an agent per node with a gateway per cluster, what goes on top of them, a prometheus.yml and a
compose.yaml, and the Go modules that the programs are built from. README.md in the folder says which file is for what. Exit code 0:
they are there. 2: a file would be replaced, or the folder cannot be written; nothing was.

Examples:
  verl-otel collector export otel
  verl-otel collector export otel && sh otel/build.sh otelcol prometheus
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from verl_otel.cli import shipped

if TYPE_CHECKING:
    import argparse

FOLDER: Final = "collector"

add_arguments = shipped.add_export


def run(arguments: argparse.Namespace) -> int:
    """Copy the files. Returns 0."""
    source = shipped.find_folder(FOLDER)
    written = shipped.run_export(arguments, source, shipped.list_files(source))
    print(f"{written}: see {arguments.folder / 'README.md'}")
    return 0
