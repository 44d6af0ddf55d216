# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP exporter with delta temporality: differences add up to the whole, whatever the endpoint does meanwhile."""

from itertools import pairwise

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.builders.exporting_records import NOW, make_point
from tests.exporting.otlp_requests import NO, changed, soon
from verl_otel.exporting.otlp import exporter as otlp_module


@pytest.fixture
def differences(monkeypatch):
    """Ask for differences."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta")


@pytest.mark.full
def test_differences_add_up_over_an_outage(differences, sink, otlp, wait_for, fast_retries):
    """Where differences are asked for they add up to the whole, though requests failed in between and were sent again."""
    exporter, state = otlp(sink.url, interval=1000.0)
    for number in range(1, 31):
        sink.answers["metrics"] = [NO] * (number % 3)
        exporter.consume(changed(state, make_point("verl.done", "counter", number)._replace(time_ns=NOW + number)))
        wait_for(lambda: sum(sink.values().get("verl.done", ())) == number)  # noqa: B023 - called at once
    data = [message.resource_metrics[0].scope_metrics[0].metrics[0].sum for message in sink.messages("metrics")]
    assert {each.aggregation_temporality for each in data} == {1}
    ends = [(each.data_points[0].start_time_unix_nano, each.data_points[0].time_unix_nano) for each in data]
    assert all(early[1] == late[0] for early, late in pairwise(ends))
    assert exporter.dropped("points") == {}


def test_a_request_of_differences_is_repeated_as_it_was(differences, sink, otlp, wait_for, fast_retries):
    """A request that failed is sent again unchanged: a server that had taken it after all can tell that it has it."""
    sink.answers["metrics"] = [NO] * 2
    exporter, state = otlp(sink.url, interval=1000.0)
    exporter.consume(changed(state, make_point("verl.done", "counter", 1)))
    wait_for(lambda: sink.of("metrics"))
    exporter.consume(changed(state, make_point("verl.done", "counter", 3)._replace(time_ns=NOW + 1)))
    wait_for(lambda: exporter.flush(soon()) or sink.values().get("verl.done") == [1, 2])
    first, *_, last = sink.of("metrics")
    assert len({request.body for request in sink.of("metrics")}) == 2
    assert first.body != last.body


def test_differences_that_are_refused_are_counted_and_not_repeated(differences, sink, otlp, wait_for):
    """A request of differences that is refused for good is dropped and counted; the next has what came later only."""
    sink.answers["metrics"] = [(400, {}, b"")]
    exporter, state = otlp(sink.url, interval=1000.0)
    exporter.consume(changed(state, make_point("verl.done", "counter", 5)))
    wait_for(lambda: sum(exporter.dropped("points").values()) == 1)
    exporter.consume(changed(state, make_point("verl.done", "counter", 7)._replace(time_ns=NOW + 1)))
    wait_for(lambda: sink.values() == {"verl.done": [2]})


def test_a_users_differences_arrive_each(differences, sink, otlp, wait_for, fast_retries):
    """Every message of a user's differences is sent once and in order, also after an outage; the whole is not sent besides."""
    sink.answers["metrics"] = [NO] * 3
    exporter, _ = otlp(sink.url)
    made = []
    for number in range(1, 4):
        message = ExportMetricsServiceRequest()
        metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.a")
        metric.sum.aggregation_temporality = 1  # delta
        metric.sum.data_points.add(as_int=number)
        made.append(message)
        exporter.consume_read(message.SerializeToString())
        exporter.consume_metrics(message.SerializeToString())
    wait_for(lambda: exporter.flush(soon()) or len(sink.messages("metrics")) == 3)
    assert sink.messages("metrics") == made


def test_a_users_totals_are_sent_where_nobody_makes_differences(differences, sink, otlp, wait_for, caplog):
    """Where the version of OpenTelemetry cannot serve the reader of differences the totals are sent, and this is logged once."""
    exporter, _ = otlp(sink.url)
    exporter.detach_reader()
    for number in range(1, 4):
        message = ExportMetricsServiceRequest()
        metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.a")
        metric.sum.data_points.add(as_int=number)
        exporter.consume_metrics(message.SerializeToString())
        wait_for(lambda: exporter.flush(soon()) or sink.values().get("user.a", [0])[-1] == number)  # noqa: B023 - called at once
    assert [record.getMessage().endswith("their totals are sent (logged once)") for record in caplog.records] == [True]


def test_a_users_differences_are_bounded(differences, dead_url, otlp, monkeypatch):
    """While nothing can be sent the oldest messages of a user's differences make room, and are counted."""
    monkeypatch.setattr(otlp_module, "MAX_MESSAGES", 3)
    exporter, _ = otlp(dead_url)
    for number in range(10):
        exporter.consume_read(bytes((number,)))
    assert sum(exporter.dropped("points").values()) == 7
