# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print the JSON Schema (draft 2020-12) of what a command prints with --json.

Without a name it lists the names. A key is removed, or gets another meaning, only together with a new schema_version.

Examples:
  verl-otel schema
  verl-otel schema explain
  verl-otel schema compare | jq '.properties.rows'

Exit code: 0 printed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
from typing import Final

from verl_otel.analysis.document import Document
from verl_otel.cli.documents import compare, explain, explain_log, levers, report, runs, tools
from verl_otel.cli.documents.base import make_schema
from verl_otel.cli.formatting import print_json

DOCUMENTS: Final[dict[str, type[Document]]] = {
    "report": report.Report,
    "explain": explain.Explain,
    "explain-log": explain_log.ExplainLog,
    "levers": levers.Levers,
    "compare": compare.Compare,
    "runs": runs.Runs,
    "runs-prune": runs.Pruned,
    "check": tools.Check,
    "discover": tools.Discover,
    "guards": tools.Guards,
}
"""By command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", choices=DOCUMENTS, metavar="NAME", help="command whose output is described")


def run(arguments: argparse.Namespace) -> int:
    """Print a schema, or the names of all."""
    if arguments.name is None:
        print("\n".join(DOCUMENTS))
    else:
        print_json(make_schema(arguments.name, DOCUMENTS[arguments.name]))
    return 0
