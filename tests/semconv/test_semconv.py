# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The contract as data: rules that hold for every row of the catalogue."""

import itertools
import re

import pytest

from verl_otel import semconv
from verl_otel.semconv import attributes, buckets
from verl_otel.semconv.metric_names import METRICS
from verl_otel.semconv.spans import CLIENT, INTERNAL, SERVER, SPANS, TRACESTATE_TRAJECTORY, TRACESTATE_VALIDATION

ATTRIBUTES = {name: value for name, value in vars(attributes).items() if name.isupper()}
FAMILIES = {name: value for name, value in vars(buckets).items() if name.isupper()}
ROWS = tuple(METRICS.values())


def test_no_name_is_there_twice():
    """Names of metrics, verbs and attributes are unique."""
    assert len(set(ATTRIBUTES.values())) == len(ATTRIBUTES)
    assert len(SPANS) == len({row.verb for row in SPANS.values()})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_follows_the_rules(row):
    """Its name has our prefix or a convention's and neither unit nor `total`; it is complete; and its series are bounded."""
    assert re.fullmatch(r"(verl|gen_ai|hw|process|system)(\.[a-z][a-z0-9_]*)+", row.name)
    assert not row.name.endswith(("_total", ".total", ".seconds", "_seconds", "_bytes", ".bytes", ".count", ".ratio"))
    assert row.kind in {"histogram", "counter", "updown", "gauge"}
    assert re.fullmatch(r"[A-Z0-9].*\.", row.description)
    assert re.fullmatch(r"|s|By|1|W|J|Cel|Hz|\{[a-z]+\}", row.unit)
    known = set(ATTRIBUTES.values()) | {"exporter", "verl.model", "verl.engine", "verl.nodes", "verl.gpus"}
    assert set(row.labels) <= known
    assert len(set(row.labels)) == len(row.labels)
    ends = {label.rpartition(".")[2] for label in row.labels if label != "hw.id"}
    assert not ends & {"id", "uid", "step", "number", "index", "rank", "trace_id", "message"}, (
        "a label with ever new values"
    )
    assert bool(row.bounds) is (row.kind == "histogram")
    if row.kind == "histogram":
        assert row.unit
        assert all(number % (len(row.bounds) + 3) == 0 for number in row.series), "series of a part of a histogram"
        assert row.unit != "s" or row.bounds[-1] == 3600, "a duration reaches an hour"
        assert "worker" not in row.name, "what every rank records is a counter"


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_rise(family):
    """The bounds of each family rise, and are not many."""
    bounds = FAMILIES[family]
    assert all(low < high for low, high in itertools.pairwise(bounds))
    assert len(bounds) <= 15


def test_sample_generation_has_the_bounds_of_the_older_guides():
    """The generation of samples keeps the bounds that older panels ask for."""
    assert {0.1, 0.5, 1, 2, 5, 10} <= set(METRICS["verl.sample.generation"].bounds)


@pytest.mark.parametrize(("index", "gpus", "nodes", "processes"), [(0, 1, 1, 19), (1, 8, 1, 29), (2, 64, 8, 113)])
def test_the_number_of_series_is_bounded(index, gpus, nodes, processes):
    """A run has at most 3,050 series of its own and 42 for each GPU; beside them 25 for each GPU, 60 for each node, 3 for each process."""
    own = [row.series[index] for row in ROWS if row.name.startswith(("verl.", "gen_ai."))]
    hardware = [row.series[index] for row in ROWS if row.name.startswith(("hw.", "system."))]
    every = [row.series[index] for row in ROWS if row.name.startswith("process.")]
    assert len(own) + len(hardware) + len(every) == len(ROWS)
    assert sum(own) <= 3050 + 42 * gpus
    assert sum(hardware) <= 25 * gpus + 60 * nodes
    assert sum(every) == 3 * processes
    assert all(row.series[0] <= row.series[1] <= row.series[2] for row in ROWS)


@pytest.mark.parametrize("verb", SPANS)
def test_the_metric_of_a_verb_is_in_the_catalogue(verb):
    """The histogram of a verb is in the catalogue, in seconds, and has the labels that the verb gives it."""
    row = SPANS[verb]
    assert row.kind in {INTERNAL, SERVER, CLIENT}
    if row.duration:
        metric = METRICS[row.duration]
        assert (metric.kind, metric.unit) == ("histogram", "s")
        assert set(metric.labels) - {attributes.ERROR_TYPE, attributes.VALIDATE} == set(row.labels)


def test_the_roots_are_those_of_the_contract():
    """Steps, validations, warm-ups, trajectories, what the watcher finds and what a guard stops begin traces, and say in the trace state which kind they are."""
    roots = {verb: row.state for verb, row in SPANS.items() if row.root}
    assert roots.pop("trajectory") == TRACESTATE_TRAJECTORY == "verl=t"
    assert TRACESTATE_VALIDATION == "verl=tv"
    assert roots == dict.fromkeys(
        ("step", "validation", "warmup", "blocked", "paused", "stood", "stall", "crash", "guard_stop"), "verl=s"
    )


def test_the_catalogue_has_a_version():
    """The catalogue's version is a URL without a server."""
    assert re.fullmatch(r"urn:verl-otel:schema:\d+", semconv.SCHEMA_URL)
