# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names of metrics, spans and attributes are written in `verl_otel.semconv`; integrations and boards take them from there."""

import ast
import re
from pathlib import Path

import pytest

from verl_otel.model import Instrument
from verl_otel.prometheus_names import label_name, metric_name
from verl_otel.semconv import attributes
from verl_otel.semconv.metric_names import METRICS
from verl_otel.semconv.spans import SPANS

pytestmark = pytest.mark.sources

TOP = Path(__file__).resolve().parents[2]
SOURCES = [
    *sorted((TOP / "verl_otel" / "integrations").rglob("*.py")),
    *sorted((TOP / "dashboards").rglob("*.py")),
    TOP / "collector" / "deploy" / "generate.py",
]
ATTRIBUTES = {value for name, value in vars(attributes).items() if name.isupper() and "." in value}
NAMES = {
    *METRICS,
    *(metric_name(Instrument(row.name, row.kind, row.unit, "")) for row in METRICS.values()),
    *ATTRIBUTES,
    *map(label_name, ATTRIBUTES),
    *(row.name.strip() for row in SPANS.values() if row.name),
}
OWN = re.compile(r"(?<![\w./:-])verl[._][a-z][\w.]*")
WORD = re.compile(r"(?<![\w./:-])[a-z][\w.]*\w")
MODULE = re.compile(
    r"verl(_otel)?\.(checkpoint_engine|experimental|exporting|integrations|single_controller|tools|trainer|utils|workers)\b"
)
ALLOWED = {
    "execute_tool": "also a value of `gen_ai.operation.name`, as OpenTelemetry has it",
    "verl_otel": "the package's own name: a namespace of Ray's store, a key of a sample's tags",
    "verl_otel_": "the key of a batch's `meta_info`, which is no telemetry",
    "verl_otel_arrived": "a context variable",
    "verl.otel": "the part of a version that says who answers for RL-Insight",
}


def literals(source):
    """Yield the line and the text of every string in a source, but for docstrings."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def find_names(source):
    """Return the names of telemetry that a source spells out, by line."""
    found = []
    for line, text in literals(source):
        words = {word for word in WORD.findall(text) if re.sub("_(bucket|count|sum)$", "", word) in NAMES}
        words |= {word for word in OWN.findall(text) if not MODULE.match(word)}
        found += [(line, word) for word in sorted(words - set(ALLOWED))]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(TOP)))
def test_names_are_taken_from_the_catalogue(path):
    """No string outside of docstrings holds the name of a metric, a span or an attribute, in either spelling."""
    assert not find_names(path.read_text("utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        'gauge("verl.run.state").set(1)',
        'query(f"rate(verl_step_duration_seconds_count{selector}[5m])")',
        "labels = {'hw.id': 1}",
        'span = "verl.trajectory"',
        'legend = "{{verl_run_id}}"',
        'query("verl_somebody_elses_name")',
    ],
)
def test_a_spelled_out_name_is_found(source):
    """The check sees names in plain strings and in f-strings, known or not."""
    assert find_names(source)
