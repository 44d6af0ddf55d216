# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Say in plain words what works here and what does not.

Looks at the settings, the plug-in, verl's and Ray's hooks, an OpenTelemetry provider, and whether each exporter can do its work.
Nothing is trained and nothing is sent but an empty request to the OTLP endpoint. Exit code 0: fine. 1: something will not work; each
such line says what to do.

Examples:
  verl-otel check
  verl-otel check --cluster            also ask every node of the running Ray cluster
  VERL_OTEL_EXPORTERS=otlp verl-otel check --json
"""

from __future__ import annotations

import argparse
import json
import sys

from verl_otel.cli import checks
from verl_otel.cli.cluster import Finding

_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parser.add_argument("--cluster", action="store_true", help="also ask every node of the running Ray cluster")


def run(arguments: argparse.Namespace) -> int:
    """Run every check and return 1 if one failed."""
    findings = checks.run_all(cluster=arguments.cluster)
    if arguments.json:
        json.dump([finding._asdict() for finding in findings], sys.stdout, indent=1)
        print()
    else:
        for finding in findings:
            print(_line(finding))
        failed = sum(finding.state == "fail" for finding in findings)
        print(f"\n{failed} of {len(findings)} checks failed." if failed else f"\nAll {len(findings)} checks passed.")
    return int(any(finding.state == "fail" for finding in findings))


def _line(finding: Finding) -> str:
    advice = f"\n       -> {finding.advice}" if finding.advice else ""
    return f"{_MARKS[finding.state]} {finding.subject}: {finding.text}{advice}"
