# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What commands print of an explanation that a test has made."""

from verl_otel.analysis import findings
from verl_otel.analysis.levers.ranking import find_levers
from verl_otel.cli import explain as explain_command
from verl_otel.cli import report as report_command
from verl_otel.cli.documents.explain import make_explain
from verl_otel.cli.documents.levers import make_levers
from verl_otel.cli.documents.report import make_report


def explain(run):
    """``verl-otel explain``."""
    document = make_explain(run, findings.choose_steps(run, 3))
    return explain_command.render(document, make_levers(run, find_levers(run.recent_steps)))


def explain_step(run, steps):
    """``verl-otel explain --step``."""
    return explain_command.render(make_explain(run, steps, whole=True))


def report(run):
    """``verl-otel report``."""
    return report_command.render(make_report(run))
