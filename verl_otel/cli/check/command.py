# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Check whether telemetry works here, and say what to do if not.

Checks the settings, the plug-in, the hooks in verl and Ray, an OpenTelemetry provider, and each exporter. Nothing is trained, and nothing is
sent except an empty request to the OTLP endpoint. With --cluster every node is asked for versions, resources, its clock, and whether it reaches the
endpoint of `verl-otel stack --cluster`. With --stack Prometheus is asked for rules and targets, engines for their statistics, and Grafana for its data
source and boards; STACK_PROMETHEUS and STACK_GRAFANA set their addresses, as for `verl-otel stack`.

Exit code: 0 everything works, 1 something does not.

Examples:
  verl-otel check
  verl-otel check --cluster            also ask every node of the running Ray cluster
  verl-otel check --stack --json       also ask Prometheus, engines and Grafana
  VERL_OTEL_EXPORTERS=otlp verl-otel check --json
"""

from __future__ import annotations

import argparse

from verl_otel._internal.printable import show
from verl_otel.cli.check import checks
from verl_otel.cli.check.cluster import Finding
from verl_otel.cli.formatting import SENTENCE, print_json

_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parser.add_argument("--cluster", action="store_true", help="also ask every node of the running Ray cluster")
    parser.add_argument("--stack", action="store_true", help="also ask Prometheus, engines and Grafana")


def run(arguments: argparse.Namespace) -> int:
    """Run every check and return 1 if one failed."""
    findings = checks.run_all(cluster=arguments.cluster, stack=arguments.stack)
    if arguments.json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            print(_line(finding))
        failed = sum(finding.state == "fail" for finding in findings)
        print(f"\n{failed} of {len(findings)} checks failed." if failed else f"\nAll {len(findings)} checks passed.")
    return int(any(finding.state == "fail" for finding in findings))


def _line(finding: Finding) -> str:
    advice = f"\n       -> {show(finding.advice, SENTENCE)}" if finding.advice else ""
    return f"{_MARKS[finding.state]} {show(finding.subject)}: {show(finding.text, SENTENCE)}{advice}"
