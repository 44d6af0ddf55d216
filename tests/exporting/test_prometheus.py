# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a scrape says: both formats, every kind, exemplars, any text, and names that collide."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.builders.exporting_records import NOW, RESOURCE, labels, make_histogram, make_point, steady
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.prometheus import PointCollector
from verl_otel.model import Exemplar, Resource


def expose(points, resource=RESOURCE):
    """Return the text and the OpenMetrics text of some points."""
    state, registry = MetricState(), CollectorRegistry(auto_describe=False)
    state.update(points)
    registry.register(PointCollector(state, resource))
    return generate_text(registry).decode(), generate_openmetrics(registry).decode()


def samples_of(families):
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


def assert_sound(points, resource=RESOURCE):
    """Both texts parse, and neither has a series twice. Returns the samples."""
    text, openmetrics = expose(points, resource)
    for written in (text, openmetrics):
        names = Counter(line.rpartition(" ")[0] for line in written.split("\n") if line and not line.startswith("#"))
        assert not [name for name, count in names.items() if count > 1]
    list(parse_text(text))
    return samples_of(parse_openmetrics(openmetrics))


def test_every_kind_has_its_form():
    """A counter, a gauge, an up-down counter and a histogram stand in both formats with their types and values."""
    points = [
        make_point("verl.training.steps", "counter", 7, "{step}"),
        make_point("verl.average_reward", "gauge", -1.0),
        make_point("verl.gpu.memory.used", "updown", 5.0, "By", (("device", "cuda:0"),)),
        make_point("verl.step.duration", "histogram", make_histogram(0.5, 0.5, 20.0), "s"),
    ]
    text, openmetrics = expose(points)
    expected = {
        ("verl_training_steps_total", ()): 7.0,
        ("verl_average_reward", ()): -1.0,
        ("verl_gpu_memory_used_bytes", (("device", "cuda:0"),)): 5.0,
        ("verl_step_duration_seconds_bucket", (("le", "0.1"),)): 0.0,
        ("verl_step_duration_seconds_bucket", (("le", "1.0"),)): 2.0,
        ("verl_step_duration_seconds_bucket", (("le", "10.0"),)): 2.0,
        ("verl_step_duration_seconds_bucket", (("le", "+Inf"),)): 3.0,
        ("verl_step_duration_seconds_count", ()): 3.0,
        ("verl_step_duration_seconds_sum", ()): 21.0,
    }
    for families in (list(parse_text(text)), list(parse_openmetrics(openmetrics))):
        found = samples_of(families)
        assert {key: value for key, value in found.items() if key[0] != "target_info"} == expected
        assert [family.type for family in families if family.name.startswith("verl_average")] == ["gauge"]
    for kind in ("counter", "gauge", "gauge", "histogram"):
        assert f" {kind}\n" in text


def test_help_and_type_stand_once():
    """A family with several label sets has one HELP and one TYPE line."""
    points = [make_point("verl.a", "counter", 1, labels=[("x", str(number))]) for number in range(5)]
    for text in expose(points):
        assert text.count("# HELP verl_a") == text.count("# TYPE verl_a") == 1
        assert text.count("verl_a_total{") == 5


def test_a_gauge_that_is_nan_or_infinite_is_shown():
    """NaN and the infinities of a training scalar are shown as what they are."""
    values = {"verl.nan": math.nan, "verl.inf": math.inf, "verl.minus": -math.inf}
    found = assert_sound([make_point(name, value=value) for name, value in values.items()])
    assert math.isnan(found["verl_nan", ()])
    assert (found["verl_inf", ()], found["verl_minus", ()]) == (math.inf, -math.inf)


def test_no_resource_costs_the_scrape():
    """Resource attributes that are too long or too many for the limits of the scrape jobs that we ship are cut and left out."""
    values = {f"user.{number}": "\u20ac" * 1000 for number in range(100)}
    text, _ = expose([], Resource({"service.name": "verl", "x" * 1000: "y", **values}))
    (family,) = parse_text(text)
    labels = family.samples[0].labels
    assert labels["service_name"] == "verl"
    assert len(labels) == 30
    assert max(len(value.encode()) for value in labels.values()) <= 256
    assert max(map(len, labels)) <= 128


def test_target_info_says_what_a_collector_says():
    """Several values, and true and false, are JSON, as they are on the way through a Collector: a join finds both."""
    ((_, labels),) = assert_sound([], Resource({"verl.gpu.ids": ("0", "1"), "verl.flag": True, "verl.none": ()}))
    assert dict(labels) == {"verl_gpu_ids": '["0","1"]', "verl_flag": "true", "verl_none": "[]"}


def test_an_exemplar_stands_at_its_bucket():
    """In OpenMetrics the exemplar of a histogram stands at the bucket that its value falls into, with hexadecimal ids."""
    exemplars = [Exemplar(0.5, NOW, 0xABC, 0xDEF), Exemplar(99.0, NOW, 1, 2)]
    point = make_point("verl.h", "histogram", make_histogram(0.5, 99.0), "s", exemplars=exemplars)
    _, openmetrics = expose([point])
    found = {
        sample.labels["le"]: sample.exemplar
        for family in parse_openmetrics(openmetrics)
        for sample in family.samples
        if sample.exemplar
    }
    assert set(found) == {"1.0", "+Inf"}
    assert found["1.0"].labels == {"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}
    assert (found["1.0"].value, float(found["1.0"].timestamp)) == (0.5, NOW / 1e9)


@pytest.mark.full
@steady
@given(
    st.lists(
        st.tuples(labels.map(lambda pairs: tuple((f"l{key}", value) for key, value in pairs)), st.floats()), max_size=4
    )
)
def test_any_label_value_can_be_scraped(rows):
    """Quotes, line ends and any other character in label values come back from the parser as they were."""
    rows = [
        (tuple((key, value.encode("utf-8", "replace").decode()) for key, value in pairs), number)
        for pairs, number in rows
    ]
    points = [make_point(f"verl.m{index}", value=number, labels=pairs) for index, (pairs, number) in enumerate(rows)]
    found = {name: dict(pairs) for name, pairs in assert_sound(points)}
    for index, (pairs, _) in enumerate(rows):
        assert set(found[f"verl_m{index}"].values()) <= {value for _, value in pairs}


@pytest.mark.parametrize("names", [("verl.a-b", "verl.a_b"), ("verl.a", "verl.a.")])
def test_two_gauges_whose_names_collide_are_one_series(names):
    """Of two gauges that have the same Prometheus name the first one is shown, and no series stands twice."""
    found = assert_sound([make_point(name, value=number) for number, name in enumerate(names, 1)])
    assert [value for (name, _), value in found.items() if name.startswith("verl_a")] == [1.0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("verl.a", "counter", 1), ("verl.a", "gauge", 2.0)),
        (("verl.a", "histogram", make_histogram(1.0)), ("verl.a.count", "gauge", 2.0)),
        (("target.info", "gauge", 1), ("verl.a", "gauge", 2.0)),
    ],
)
def test_a_name_that_collides_with_a_suffix_does_not_break_the_scrape(first, second):
    """A counter and a gauge of one name, or a gauge called like a histogram's count, leave the scrape readable."""
    assert_sound([make_point(*first, labels=[("x", "1")]), make_point(*second)])


@pytest.mark.parametrize("place", ["label", "resource", "description"])
def test_a_broken_text_does_not_break_the_scrape(place):
    """A lone surrogate, such as an undecodable byte of the environment, becomes a question mark."""
    point = make_point("verl.a", labels=[("x", "\ud800" if place == "label" else "")])
    if place == "description":
        point = make_point("verl.a", description="\ud800")
    assert_sound([point], Resource({"host.name": "\udcff"}) if place == "resource" else RESOURCE)


def test_an_integer_that_no_float_holds_does_not_break_the_scrape():
    """A gauge whose value is beyond any float leaves the other series readable."""
    assert assert_sound([make_point("verl.a", value=10**400), make_point("verl.b", value=1.0)])["verl_b", ()] == 1.0
