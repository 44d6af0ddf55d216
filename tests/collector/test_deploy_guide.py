# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The guide to deploying says what is there: every variable, every folder, every name by which SDK and Collector know each other."""

import re

from tests.collector.tiers import COLLECTOR
from verl_otel.semconv import attributes, spans

DEPLOY = COLLECTOR / "deploy"
GUIDE = (COLLECTOR.parent / "docs" / "how-to" / "deploy.md").read_text("utf-8")
TIERS = ("local.yaml", "agent.yaml", "gateway.yaml")


def rows(title):
    """Return what is in backticks in the first column of the tables of a section."""
    section = GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_variable_is_told_once():
    """Each OTELCOL variable below deploy/ is in this table or in the README's, and not in both."""
    readme = set(
        re.findall(r"`(OTELCOL_\w+)`", (COLLECTOR / "README.md").read_text("utf-8").partition("## Variables")[2])
    )
    here = rows("Variables")
    # What the two scripts for Slurm say to each other.
    inside = {"OTELCOL_FIRST_PORT", "OTELCOL_FIRST_NODE", "OTELCOL_CREDENTIALS"}
    used = {
        name
        for path in DEPLOY.rglob("*")
        if path.suffix in (".yaml", ".sh", ".sbatch", ".service", ".env")
        for name in re.findall(r"\bOTELCOL(?:_[A-Z_]+[A-Z])?\b", path.read_text("utf-8"))
    }
    assert used - inside - readme == here - {"GOMEMLIMIT"}
    assert not readme & here


def test_every_folder_of_kubernetes_is_told():
    """Each folder with a kustomization is in the table, and none that is not there."""
    folders = {str(path.parent.relative_to(DEPLOY / "kubernetes")) for path in DEPLOY.rglob("kustomization.yaml")}
    assert rows("Kubernetes") == folders


def test_what_a_collector_knows_of_the_sdk():
    """The names of ours in the configurations are those of the table, and the SDK has each of them: an old Collector serves a new SDK."""
    text = "\n".join((COLLECTOR / name).read_text("utf-8") for name in TIERS)
    settings = "\n".join(line.partition("  #")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
    known = {name.replace("[.]", ".") for name in re.findall(r"\bverl(?:(?:\.|\[\.\])[a-z]+)+", settings)}
    assert set(re.findall(r'trace_state\["verl"\] == "(\w)"', settings)) == {spans.TRACESTATE_STEP.partition("=")[2]}
    assert known | {spans.TRACESTATE_STEP} == rows("Upgrades")
    ours = {value for value in vars(attributes).values() if isinstance(value, str)} | {
        row.name for row in spans.SPANS.values()
    }
    assert known <= ours
