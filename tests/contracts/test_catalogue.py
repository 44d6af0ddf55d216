# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The catalogue: what is emitted is in it, its Prometheus names are the golden ones."""

import ast
from pathlib import Path

import pytest

from verl_otel.model import Instrument
from verl_otel.prometheus_names import label_name, metric_name
from verl_otel.semconv import metric_names
from verl_otel.semconv.metric_names import METRICS

pytestmark = pytest.mark.sources

TOP = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("golden_names.txt")


def table():
    """One line per metric: its Prometheus name, type, labels."""
    lines = []
    for row in METRICS.values():
        labels = ",".join(map(label_name, row.labels))
        name = metric_name(Instrument(row.name, row.kind, row.unit, ""))
        lines.append(f"{row.name} {row.kind} {name} {{{labels}}}")
    return "\n".join(sorted(lines)) + "\n"


def test_prometheus_names_are_the_golden_ones():
    """A name or label that changes breaks somebody's panels: it needs a new golden table and a recording rule."""
    assert table() == GOLDEN.read_text()


def name_of(argument):
    """Return the metric that an argument names: as a literal, or as a constant of `metric_names`."""
    if isinstance(argument, ast.Constant):
        return argument.value
    module, _, constant = ast.unparse(argument).rpartition(".")
    return getattr(metric_names, constant) if module == "metric_names" else None


@pytest.mark.full
def test_every_metric_in_the_code_is_in_the_catalogue():
    """Each name that is recorded to stands in the catalogue, with the kind that it is recorded as."""
    found = set()
    for path in (TOP / "verl_otel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            recorder, _, kind = ast.unparse(node.func).rpartition(".")
            if recorder not in ("", "series", "collection"):
                continue
            name = name_of(node.args[0])
            if name is not None and kind in ("histogram", "counter", "gauge", "observe"):
                found.add((kind, name))
    assert len(found) > 30
    for kind, name in found:
        assert name in METRICS, name
        assert kind in ("observe", METRICS[name].kind), name
