# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Export a run for another program: Perfetto (a timeline of everything), Parquet (tables), TensorBoard (scalars).

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a
run have folders of their own. Runs that are active or were killed can be exported, too.

Examples:
  verl-otel export perfetto
  verl-otel export perfetto 20261121-093000-a3f2 --steps 10-20 --output steps.pftrace
  verl-otel export parquet RUN --output tables
  verl-otel export tensorboard RUN --follow

Exit code: 0 written, 1 the run contains nothing to export, 2 wrong usage, or the file cannot be written.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Final

from verl_otel.cli import add_command, options

FORMATS: Final = {  # each with the module that implements it
    "perfetto": "verl_otel.cli.export.perfetto",
    "parquet": "verl_otel.cli.export.parquet",
    "tensorboard": "verl_otel.cli.export.tensorboard",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    formats = parser.add_subparsers(dest="format", metavar="FORMAT", required=True)
    for name, path in FORMATS.items():
        module = import_module(path)
        command = add_command(formats, name, module)
        options.add_runs(command)
        module.add_arguments(command)
        command.set_defaults(write=module.run)


def run(arguments: argparse.Namespace) -> int:
    """Write the export. Returns 1 when the run has nothing to export."""
    return int(arguments.write(arguments))
