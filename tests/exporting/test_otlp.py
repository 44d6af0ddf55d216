# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP exporter: every span arrives once, every series at last, whatever the endpoint does meanwhile."""

import logging
import time
from collections import Counter
from itertools import pairwise

import pytest
import requests
from opentelemetry import context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.builders.exporting_records import NOW, make_batch, make_point, make_span
from tests.exporting.otlp_requests import NO, changed, soon, without_times
from tests.fakes.exporting_sinks import GrpcSink
from verl_otel.exporting.otlp import exporter as otlp_module
from verl_otel.model import Batch


def test_spans_arrive_exactly_once(sink, otlp, wait_for):
    """Spans of small and large batches arrive once each, with the resource and the scope."""
    exporter, _ = otlp(sink.url)
    numbers = iter(range(1, 100_000))
    for size in (1, 0, 1300, 7):
        exporter.consume(make_batch(*(next(numbers) for _ in range(size))))
    wait_for(lambda: len(sink.span_ids()) == 1308)
    exporter.close(soon())
    assert sink.span_ids() == Counter(range(1, 1309))
    group = sink.messages("traces")[0].resource_spans[0]
    assert {pair.key for pair in group.resource.attributes} >= {"service.name", "verl.role"}
    assert group.scope_spans[0].scope.name == "verl_otel"
    assert exporter.dropped("spans") == {}


def test_both_signals_over_grpc(otlp, monkeypatch):
    """With gRPC configured spans and points arrive over gRPC."""
    grpc = pytest.importorskip("grpc", reason="gRPC is an extra and is not installed")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with GrpcSink(grpc) as sink:
        exporter, state = otlp(sink.url)
        exporter.consume(changed(state, make_point(value=2.5))._replace(spans=make_batch(1, 2).spans))
        exporter.flush(soon())
        assert sink.span_ids() == Counter([1, 2])
        assert sink.values() == {"verl.test": [2.5]}
        exporter.close(soon())


def test_spans_that_are_not_sampled_stay_here(sink, otlp):
    """The root of a trajectory that is not sampled, which the files keep, is not sent."""
    exporter, _ = otlp(sink.url)
    exporter.consume(Batch(NOW, (make_span(1, flags=0), make_span(2), make_span(3, flags=0x200))))
    exporter.flush(soon())
    assert sink.span_ids() == Counter([2])


@pytest.mark.full
@pytest.mark.parametrize("answer", [NO, (429, {"Retry-After": "0"}, b""), (502, {}, b"")])
def test_nothing_is_lost_while_the_endpoint_fails(sink, otlp, wait_for, fast_retries, caplog, answer):
    """When the endpoint fails for a while and heals, every span arrives exactly once, and the log has one line."""
    sink.answers["traces"] = [answer] * 4
    exporter, _ = otlp(sink.url)
    for number in range(1, 21):
        exporter.consume(make_batch(number))
    wait_for(lambda: sum(sink.span_ids().values()) >= 20)
    exporter.close(soon())
    assert sink.span_ids() == Counter(range(1, 21))
    assert exporter.dropped("spans") == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.full
def test_retries_back_off(sink, otlp, wait_for, monkeypatch):
    """The pauses between retries double, give or take a fifth."""
    monkeypatch.setattr(otlp_module, "FIRST_RETRY", 0.1)
    sink.answers["traces"] = [NO] * 4
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1))
    wait_for(sink.span_ids)
    times = [request.time for request in sink.of("traces")]
    assert len(times) == 5
    pauses = [late - early for early, late in pairwise(times)]
    assert all(pause >= 0.08 * 2**number for number, pause in enumerate(pauses))


@pytest.mark.full
@pytest.mark.parametrize("drawn", [max, min])
def test_the_server_says_when_to_come_back(sink, otlp, wait_for, fast_retries, monkeypatch, drawn):
    """After a Retry-After the next request comes no earlier than the server asked for, whatever the jitter draws."""
    monkeypatch.setattr(otlp_module, "_jitter", type("Drawn", (), {"uniform": lambda self, *ends: drawn(ends)})())
    sink.answers["traces"] = [(503, {"Retry-After": "0.5"}, b"")]
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1))
    wait_for(sink.span_ids)
    first, second = (request.time for request in sink.of("traces"))
    assert second - first >= 0.5


@pytest.mark.full
def test_a_flush_returns_when_all_is_sent(sink, otlp):
    """What was put before a flush has been sent when the flush returns, long before its deadline."""
    exporter, state = otlp(sink.url)
    begin = time.monotonic()
    exporter.consume(changed(state, make_point(value=2.5))._replace(spans=make_batch(*range(1, 1001)).spans))
    exporter.flush(soon(60))
    assert sink.span_ids() == Counter(range(1, 1001))
    assert sink.values()["verl.test"][-1] == 2.5
    assert time.monotonic() - begin < 30


def test_what_is_refused_for_good_is_dropped_and_said(sink, otlp, wait_for, caplog):
    """Spans that the server refuses for good are dropped and counted with one line; the next ones are sent."""
    sink.answers["traces"] = [(400, {}, b""), (400, {}, b"")]
    exporter, _ = otlp(sink.url)
    for number in (1, 2, 3):
        exporter.consume(make_batch(number))
        wait_for(lambda: len(sink.of("traces")) == number)  # noqa: B023 - called at once
    wait_for(lambda: sum(exporter.dropped("spans").values()) == 2)
    assert sink.span_ids() == Counter([3])
    (reason, count), *others = exporter.dropped("spans").items()
    assert (count, others) == (2, [])
    assert "HTTP 400" in reason
    assert len(caplog.records) == 1


def test_a_partial_success_is_counted(sink, otlp):
    """Spans that the server refused although it took the request are counted as dropped."""
    sink.answers["traces"] = (200, {}, b"\x0a\x02\x08\x02")  # partial_success.rejected_spans = 2
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1, 2, 3))
    exporter.flush(soon())
    assert exporter.dropped("spans") == {"rejected by the server": 2}


def test_changed_points_go_at_once_and_alone(sink, otlp, wait_for):
    """A series is sent as soon as it changes; one that did not change is not sent along before the interval is over."""
    exporter, state = otlp(sink.url, interval=1000.0)
    exporter.consume(changed(state, make_point("verl.a", value=1.0), make_point("verl.b", value=1.0)))
    wait_for(lambda: len(sink.values()) == 2)
    exporter.consume(changed(state, make_point("verl.a", value=2.0)))
    wait_for(lambda: sink.values()["verl.a"] == [1.0, 2.0])
    assert sink.values()["verl.b"] == [1.0]


@pytest.mark.full
def test_unchanged_points_are_sent_again(sink, otlp, wait_for):
    """A series that does not change is sent again after the interval, so that a Collector does not forget it."""
    exporter, state = otlp(sink.url, interval=0.3)
    begin = time.monotonic()
    exporter.consume(changed(state, make_point("verl.a", value=1.0)))
    wait_for(lambda: len(sink.values().get("verl.a", ())) >= 3)
    assert sink.of("metrics")[2].time - begin >= 0.6


def test_every_point_of_a_request_has_its_time(sink, otlp, wait_for):
    """Unchanged series go on in a store that ends those without new points, and no request has a point older than the request before."""
    exporter, state = otlp(sink.url, interval=0.1)
    before = time.time_ns()
    exporter.consume(changed(state, make_point("verl.a", "counter", 1), make_point("verl.b", value=1.0)))
    wait_for(lambda: len(sink.values().get("verl.a", ())) >= 2)
    message = ExportMetricsServiceRequest()
    message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.a").gauge.data_points.add(
        as_int=3, time_unix_nano=before
    )
    exporter.consume_metrics(message.SerializeToString())  # collected long ago
    exporter.consume(changed(state, make_point("verl.a", "counter", 2)))
    exporter.close(soon())
    times = [
        {
            point.time_unix_nano
            for metric in message.resource_metrics[0].scope_metrics[0].metrics
            for point in (*metric.sum.data_points, *metric.gauge.data_points)
        }
        for message in sink.messages("metrics")
    ]
    assert len(times) >= 3
    assert [len(request) for request in times] == [1] * len(times)
    stamps = [before, *(stamp for request in times for stamp in request)]
    assert all(earlier < later for earlier, later in pairwise(stamps))


@pytest.mark.full
def test_points_survive_an_outage(sink, otlp, wait_for, fast_retries, monkeypatch):
    """What was counted while the endpoint was away, from the start of the machine on, is there when it is back."""
    started, clock = time.monotonic(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() - started)
    sink.answers["metrics"] = [NO] * 5
    exporter, state = otlp(sink.url, interval=1000.0)
    exporter.consume(changed(state, make_point("verl.early", "counter", 5)))
    for number in range(1, 6):
        exporter.consume(changed(state, make_point("verl.late", "counter", number)))
        wait_for(lambda: len(sink.of("metrics")) >= number)  # noqa: B023 - called at once
    expected = {"verl.early": 5, "verl.late": 5}
    wait_for(lambda: exporter.flush(soon()) or {name: each[-1] for name, each in sink.values().items()} == expected)
    assert exporter.dropped("points") == {}


def test_one_signal_does_not_hold_up_the_other(sink, otlp, wait_for, fast_retries):
    """While traces fail, metrics go on arriving."""
    sink.answers["traces"] = NO
    exporter, state = otlp(sink.url)
    for number in range(1, 4):
        exporter.consume(changed(state, make_point(value=float(number)))._replace(spans=make_batch(number).spans))
        wait_for(lambda: float(number) in sink.values().get("verl.test", ()))  # noqa: B023 - called at once


def test_a_users_metrics_arrive_as_they_are(sink, otlp, wait_for):
    """The message of a user's own instruments is sent as it was given, with the time of the request."""
    message = ExportMetricsServiceRequest()
    message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.a").gauge.data_points.add(as_int=3)
    exporter, _ = otlp(sink.url)
    exporter.consume_metrics(message.SerializeToString())
    wait_for(lambda: message in without_times(sink.messages("metrics")))


def test_instrumented_libraries_do_not_trace_exports(sink, otlp, monkeypatch):
    """Our requests are made where instrumented HTTP libraries make no spans; other threads are left as they are."""
    seen = []
    keys = [getattr(context, f"_SUPPRESS_{name}INSTRUMENTATION_KEY") for name in ("", "HTTP_")]
    send = requests.Session.send

    def watch(session, request, **options):
        seen.append([context.get_value(key) for key in keys])
        return send(session, request, **options)

    monkeypatch.setattr(requests.Session, "send", watch)
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1))
    exporter.flush(soon())
    assert seen == [[True, True]]
    assert [context.get_value(key) for key in keys] == [None, None]


def test_many_points_are_several_requests(sink, otlp, wait_for, fast_retries, monkeypatch):
    """A receiver limits the size of a request; each series arrives, also if one of the requests fails at first."""
    monkeypatch.setattr(otlp_module, "POINTS_PER_REQUEST", 10)
    sink.answers["metrics"] = [(200, {}, b""), NO]
    exporter, state = otlp(sink.url, interval=1000.0)
    exporter.consume(changed(state, *(make_point(f"verl.m{number}", "counter", number) for number in range(35))))
    wait_for(lambda: exporter.flush(soon()) or len(sink.values()) == 35)
    assert all(len(message.resource_metrics[0].scope_metrics[0].metrics) <= 10 for message in sink.messages("metrics"))
    assert exporter.dropped("points") == {}
