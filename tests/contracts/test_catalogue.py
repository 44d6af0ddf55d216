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
from verl_otel.semconv.buckets import LONG
from verl_otel.semconv.metric_names import METRICS
from verl_otel.semconv.spans import SPANS

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


def test_every_metric_of_a_verb_is_in_the_catalogue():
    """The histogram of each span is in the catalogue, with the labels that the span's row names."""
    for row in SPANS.values():
        if row.duration:
            assert set(METRICS[row.duration].labels) - {"error.type"} == set(row.labels)


def test_rules_of_the_contract_hold_for_every_row():
    """No unit in a name, no ids as labels, durations to an hour, per-rank metrics without buckets, bounds rising."""
    for row in METRICS.values():
        words = row.name.split(".")
        assert not {"seconds", "bytes", "total", "ratio", "s"} & set(words), row.name
        assert not [
            label
            for label in row.labels
            if label != "hw.id" and label.rpartition(".")[2] in ("id", "uid", "step", "number", "index")
        ]
        assert len(row.series) == 3
        if row.kind == "histogram":
            assert list(row.bounds) == sorted(set(row.bounds)), row.name
            assert row.unit != "s" or row.bounds[-1] >= 3600, row.name
            assert "worker" not in row.name
        else:
            assert not row.bounds
    assert {0.1, 0.5, 1, 2, 5, 10} <= set(LONG) == set(METRICS["verl.sample.generation"].bounds)


def test_series_stay_within_the_bound():
    """By the catalogue's own column a run has at most 2,010 series of its own and 41 more per rank."""
    own = [row for row in METRICS.values() if row.name.startswith(("verl.", "gen_ai."))]
    for column, ranks in enumerate((1, 8, 64)):
        assert sum(row.series[column] for row in own) <= 2010 + 41 * ranks


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
