# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's ordinary OpenTelemetry instruments in `/metrics`."""

import logging
import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from verl_otel.exporting.prometheus import make_reader


@pytest.fixture
def registry():
    """A registry of our own, as the exporter has one."""
    return CollectorRegistry(auto_describe=False)


@pytest.fixture
def meter(registry):
    """A user's meter whose instruments are shown in the registry; names with `exp` become exponential histograms."""
    view = View(instrument_name="exp*", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([make_reader(registry)], views=[view], shutdown_on_exit=False)
    return provider.get_meter("user.library", "1.2", "urn:user")


def test_no_label_of_a_user_costs_the_scrape(registry, meter):
    """Labels of ordinary instruments are cut to what Prometheus takes by the limits of the scrape jobs that we ship."""
    counter, histogram = meter.create_counter("long"), meter.create_histogram("wide")
    counter.add(1, {"reason": "\u20ac" * 5000})
    histogram.record(1, {f"label{number}": "x" * 5000 for number in range(60)})
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert len(samples) > 10
    assert max(len(value.encode()) for sample in samples for value in sample.labels.values()) <= 256
    assert max(len(sample.labels) for sample in samples) <= 20
    assert {sample.labels.get("le") for sample in samples if sample.name == "wide_bucket"} >= {"0.0", "+Inf"}


def scraped(registry):
    """Return name, labels and value of every sample, as the strict parser reads them."""
    families = list(parse(generate_latest(registry).decode()))
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


def test_a_users_instruments_are_shown_without_scope(registry, meter):
    """A counter, an up-down counter and a histogram have their suffixes and the user's labels, and no scope labels."""
    meter.create_counter("hits", unit="{hit}").add(2, {"path": "/"})
    meter.create_up_down_counter("queue.length").add(-3)
    meter.create_histogram("latency", unit="s").record(0.3)
    found = scraped(registry)
    assert found["hits_total", (("path", "/"),)] == 2.0
    assert found["queue_length", ()] == -3.0
    assert found["latency_seconds_count", ()] == 1.0
    assert not [key for key in found if "scope" in str(key)]


def test_instruments_of_one_name_in_two_scopes_are_two_series(registry):
    """Prometheus drops the second of two samples with equal labels: such instruments get a label with the name of their scope."""
    provider = MeterProvider([make_reader(registry)], shutdown_on_exit=False)
    for scope, version, value in (("first", "1", 1), ("second", "1", 2), ("second", "2", 3)):
        provider.get_meter(scope, version).create_counter("hits").add(value, {"path": "/"})
    provider.get_meter("first", "1").create_counter("misses").add(4)
    families = list(parse(generate_latest(registry).decode()))
    samples = [
        (sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if "hits" in sample.name or "misses" in sample.name
    ]
    scope = lambda name, version: {"path": "/", "otel_scope_name": name, "otel_scope_version": version}  # noqa: E731 - three alike
    assert sorted(samples, key=lambda sample: sample[2]) == [
        ("hits_total", scope("first", "1"), 1.0),
        ("hits_total", scope("second", "1"), 2.0),
        ("hits_total", scope("second", "2"), 3.0),
        ("misses_total", {}, 4.0),
    ]


def test_a_user_may_shut_his_provider_down(registry):
    """A user who shuts the provider down gets no error, and his instruments are gone from the scrape."""
    provider = MeterProvider([make_reader(registry)], shutdown_on_exit=False)
    provider.get_meter("user").create_counter("hits").add(1)
    assert ("hits_total", ()) in scraped(registry)
    provider.shutdown()
    assert scraped(registry) == {}


def test_an_exponential_histogram_leaves_the_scrape_intact(registry, meter, caplog):
    """An exponential histogram, which the reader cannot show, is left out and said once; all else is shown."""
    meter.create_histogram("exp.latency").record(0.3)
    meter.create_counter("hits").add(1)
    for _ in range(3):
        assert set(scraped(registry)) == {("hits_total", ())}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "exp.latency" in caplog.text


def test_a_users_share_is_a_ratio(registry, meter):
    """A gauge of unit 1 has the suffix that the Collector gives it; a counter of unit 1 has not."""
    meter.create_observable_gauge("cache.share", [lambda _: [_observation(0.5)]], unit="1")
    meter.create_counter("hits", unit="1").add(1)
    assert scraped(registry) == {("cache_share_ratio", ()): 0.5, ("hits_total", ()): 1.0}


def _observation(value):
    from opentelemetry.metrics import Observation

    return Observation(value)


@pytest.mark.full
def test_two_scrapes_at_once_show_each_series_once(registry, meter):
    """Two scrapes at the same moment, as two Prometheus servers make them, each show every series of the user once."""
    meter.create_counter("hits").add(1)
    (collector,) = registry._collector_to_names
    add, texts = collector.add_metrics_data, {}
    both, first_done = threading.Event(), threading.Event()

    def add_in_step(data):
        add(data)
        if threading.current_thread() is first:
            both.wait(0.5)  # in vain where the other scrape has to wait
        else:
            both.set()
            first_done.wait(2)

    def scrape(number):
        texts[number] = generate_latest(registry).decode()

    collector.add_metrics_data = add_in_step
    first, second = (threading.Thread(target=scrape, args=(number,)) for number in (1, 2))
    first.start()
    second.start()
    first.join()
    first_done.set()
    second.join()
    assert [text.count("# TYPE hits ") for text in texts.values()] == [1, 1]
