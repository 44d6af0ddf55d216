# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The catalogue: what is emitted is in it, its Prometheus names are the golden ones, hooks exist in the released verl."""

import ast
from pathlib import Path

import pytest

from verl_otel.integrations import ray as ray_integration
from verl_otel.integrations import source_inspection
from verl_otel.integrations import verl as verl_integration
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


@pytest.mark.full
@pytest.mark.parametrize("hook", [*verl_integration.HOOKS, *ray_integration.HOOKS], ids=lambda hook: hook.symbol)
def test_every_hook_exists_in_the_installed_host(hook):
    """verl, TransferQueue and Ray still have what is patched; read from their source."""
    root = source_inspection.find_root(hook.module.partition(".")[0])
    if root is None:
        pytest.skip(f"{hook.module} is not installed in this environment")
    if not hook.is_expected():
        pytest.skip(f"{hook.symbol} is of another release: since {hook.since or '-'}, until {hook.until or '-'}")
    assert source_inspection.has_symbol(root, hook.module, hook.symbol)
    assert hook.gives
