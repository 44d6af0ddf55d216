# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP exporter: what arrives, what waits, and what is counted as lost."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Counter as SdkCounter
from opentelemetry.sdk.metrics import Histogram, ObservableCounter, UpDownCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality

from tests.builders.exporting_records import (
    NOW,
    RESOURCE,
    SCOPE,
    make_batch,
    make_histogram,
    make_point,
    make_span,
    steady,
)
from tests.fakes.exporting_sinks import GrpcSink
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.otlp import exporter as otlp_module
from verl_otel.exporting.otlp import protobuf
from verl_otel.exporting.otlp.exporter import (
    MAX_MESSAGES,
    Deltas,
    OtlpExporter,
    Part,
    RetryingSender,
    SpanQueue,
)
from verl_otel.exporting.otlp.transport import Answer
from verl_otel.model import Batch, LogRecord
from verl_otel.semconv import logs

NO = (503, {}, b"")
"""An answer after which a request is sent again."""


def soon(seconds=60.0):
    """Return a deadline."""
    return time.monotonic() + seconds


def without_times(messages):
    """Return requests with metrics without the times of their points: the exporter sets them."""
    for message in messages:
        for metric in message.resource_metrics[0].scope_metrics[0].metrics:
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                point.ClearField("time_unix_nano")
    return messages


def changed(state, *points):
    """Update the state and return the batch that tells of it, as the session does."""
    state.update(points)
    return Batch(NOW, (), tuple(points))


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


def user_message():
    message = ExportMetricsServiceRequest()
    message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.a").gauge.data_points.add(as_int=3)
    return message


def test_the_queue_is_bounded_and_the_oldest_go(sink, otlp, wait_for, monkeypatch):
    """When the queue is full the oldest spans are dropped and counted, the newest are kept and sent."""
    monkeypatch.setattr(otlp_module, "FIRST_RETRY", 1000.0)
    sink.answers["traces"] = [NO]
    exporter, _ = otlp(sink.url, capacity=20_000)
    exporter.consume(make_batch(1))
    wait_for(lambda: sink.of("traces"))
    for number in range(2, 1001):
        exporter.consume(Batch(NOW, (make_span(number, attributes={"text": "x" * 100}),)))
    (reason, dropped), *others = exporter.dropped("spans").items()
    assert (reason, others) == ("queue full", [])
    wait_for(lambda: exporter.flush(soon()) or 1000 in sink.span_ids())
    arrived = sink.span_ids()
    assert arrived == Counter(range(dropped + 1, 1001))
    assert 20 < len(arrived) < 200


def test_a_flush_does_not_wait_for_a_retry(sink, otlp, wait_for, monkeypatch):
    """A flush tries at once what waits for a retry."""
    monkeypatch.setattr(otlp_module, "FIRST_RETRY", 1000.0)
    sink.answers["traces"] = [NO]
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1))
    wait_for(lambda: sink.of("traces"))
    exporter.flush(soon())
    assert sink.span_ids() == Counter([1])


def test_a_flush_tries_again_what_fails_meanwhile(sink, otlp, wait_for, monkeypatch):
    """A request that was on its way when the flush began, and fails, is sent again within the flush."""
    monkeypatch.setattr(otlp_module, "FIRST_RETRY", 1000.0)
    sink.answers["traces"] = [NO]
    sink.hold |= {"traces"}
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1))
    wait_for(lambda: sink.of("traces"))
    release = threading.Timer(0.3, sink.release)
    release.start()
    exporter.flush(soon())
    assert sink.span_ids() == Counter([1])


@pytest.mark.full
def test_closing_tries_until_the_deadline(sink, otlp, monkeypatch):
    """An endpoint that fails for a moment and heals before the deadline of closing gets every span."""
    monkeypatch.setattr(otlp_module, "FIRST_RETRY", 0.3)
    sink.answers["traces"] = [NO] * 3
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(1))
    exporter.close(soon(20))
    assert exporter.dropped("spans") == {}
    assert sink.span_ids() == Counter([1])


class Failing:
    """A transport that fails, or raises, each time."""

    def __init__(self, error=None):
        self.calls, self.error = [], error

    def send(self, body, timeout):
        self.calls.append(time.monotonic())
        if self.error is not None:
            raise self.error
        return Answer(ok=False, retry=True, reason="planted")

    def close(self):
        pass


@pytest.mark.full
def test_pauses_stay_bounded_for_ever():
    """However often an endpoint has failed, the next try comes after a pause between none and 36 seconds."""
    channel = RetryingSender(Failing())
    for _ in range(1100):
        begin = time.monotonic()
        channel.send(b"", None)
        assert 0 < channel.not_before - begin < 40


def test_a_users_metrics_survive_a_failure(sink, otlp, wait_for):
    """The message of a user's instruments is sent again when the request failed."""
    sink.answers["metrics"] = [NO]
    exporter, _ = otlp(sink.url)
    exporter.consume_metrics(user_message().SerializeToString())
    wait_for(lambda: sink.of("metrics"))
    wait_for(lambda: exporter.flush(soon()) or user_message() in without_times(sink.messages("metrics")))


def test_only_what_was_refused_is_counted(sink, otlp, wait_for):
    """When the server refuses a user's metrics and takes ours, ours do not count as dropped."""
    sink.hold |= {"traces"}
    sink.answers["metrics"] = [(400, {}, b"")]
    exporter, state = otlp(sink.url)
    exporter.consume(make_batch(1))
    wait_for(lambda: sink.of("traces"))  # the thread is busy: both messages go in one round
    points = tuple(make_point(f"verl.{number}") for number in range(5))
    state.update(points)
    exporter.consume_metrics(user_message().SerializeToString())
    exporter.consume(Batch(NOW, (), points))
    sink.release()
    wait_for(lambda: len(sink.values()) == 5)
    exporter.flush(soon())
    assert sum(exporter.dropped("points").values()) <= 1


def test_a_span_that_cannot_be_encoded_costs_itself_only(sink, otlp):
    """A span whose attributes cannot be encoded does not keep the others from being sent."""
    exporter, _ = otlp(sink.url)
    exporter.consume(Batch(NOW, (make_span(1), make_span(2, attributes={"bad": None}), make_span(3))))
    exporter.flush(soon())
    assert set(sink.span_ids()) >= {1, 3}


def log_record(number):
    return LogRecord(NOW, logs.INFO, "rollout", number, {"reward_mean": 0.5}, 0xAB, 0xCD)


def test_the_run_log_arrives(sink, otlp):
    """Records of the run log are sent to ``/v1/logs``, each once."""
    exporter, _ = otlp(sink.url)
    exporter.consume_logs([log_record(number) for number in range(600)])
    exporter.close(time.monotonic() + 60)
    messages = [ExportLogsServiceRequest.FromString(request.body) for request in sink.of("logs")]
    groups = [group for message in messages for group in message.resource_logs]  # waiting requests are joined
    records = [record for group in groups for record in group.scope_logs[0].log_records]
    assert len(records) == 600
    if "event_name" in records[0].DESCRIPTOR.fields_by_name:  # the lowest version of the messages does not know it
        assert {record.event_name for record in records} == {"verl.rollout"}
    assert exporter.dropped("logs") == {}


def test_an_endpoint_without_logs(sink, otlp, caplog, wait_for):
    """An endpoint that has no place for logs is asked once, and still gets spans; the log says so in one line."""
    sink.answers["logs"] = (404, {}, b"")
    exporter, _ = otlp(sink.url)
    exporter.consume_logs([log_record(1)])
    wait_for(lambda: sink.of("logs"))
    wait_for(lambda: "logs" not in exporter._sent)
    exporter.consume_logs([log_record(2)])
    exporter.consume(make_batch(1))
    exporter.close(time.monotonic() + 60)
    assert len(sink.of("logs")) == 1
    assert sink.span_ids() == Counter([1])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_requests_are_small_enough_for_a_proxy_and_what_is_too_large_alone_is_dropped(sink, otlp, caplog):
    """A limit of 1 MiB costs only what is larger by itself: it is counted, and the log says once what to do."""
    sink.limit = 1 << 20
    exporter, state = otlp(sink.url)
    large = make_span(1, attributes={"text": "x" * (1 << 21)})
    spans = [make_span(number, attributes={"text": "x" * 5_000}) for number in range(2, 1002)]
    exporter.consume(Batch(NOW, (large, *spans)))
    labels = [(("n", str(number)),) for number in range(5_000)]
    state.update([make_point("verl.wide", "histogram", make_histogram(0.5), labels=each) for each in labels])
    exporter.flush(soon())
    assert sink.span_ids() == dict.fromkeys(range(2, 1002), 1)
    assert exporter.dropped("points") == {}
    assert sum(exporter.dropped("spans").values()) == 1
    assert max(len(request.body) for request in sink.requests if len(request.body) < 1 << 20) < 600_000
    assert caplog.text.count("client_max_body_size") == 1


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_only_the_signal_with_an_endpoint_is_sent(sink, monkeypatch, caplog, signal):
    """The flush ends, the other signal is neither sent nor counted as lost, and no line says that a server is missing."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", f"{sink.url}/v1/{signal}")
    exporter, state = OtlpExporter(), MetricState()
    exporter.open(RESOURCE, SCOPE, state)
    state.update((make_point(),))
    exporter.consume(make_batch(1, 2))
    if signal == "traces":
        for _ in range(MAX_MESSAGES + 1):
            exporter.consume_read(b"")
    begin = time.monotonic()
    exporter.close(begin + 20)
    assert time.monotonic() - begin < 10
    assert {request.signal for request in sink.requests} == {signal}
    assert (exporter.dropped("spans"), exporter.dropped("points")) == ({}, {})
    assert "cannot reach" not in caplog.text


PARTS = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 512)), max_size=30)


def empty(queue):
    """Return the requests that a sender would make."""
    while queue:
        parts = queue.join()
        yield parts
        queue.remove(parts)


@given(PARTS, st.integers(1, 400))
def test_what_is_not_dropped_is_sent_once_and_in_order(parts, capacity):
    """The oldest make room; what is left comes out whole, in the order in which it came."""
    queue = SpanQueue(capacity)
    dropped = sum(queue.add(*part) for part in parts)
    sent = [part for request in empty(queue) for part in request]
    assert sent == parts[len(parts) - len(sent) :]
    assert dropped + sum(part.spans for part in sent) == sum(spans for _, spans in parts)
    assert sum(len(part.body) for part in sent) <= capacity


def test_what_was_dropped_while_it_was_sent_is_not_taken_twice():
    """A full queue drops what is on its way; only what is still there is removed."""
    queue = SpanQueue(6)
    queue.add(b"aaa", 1)
    queue.add(b"bbb", 2)
    sent = queue.join()
    assert queue.add(b"ccc", 4) == 1
    queue.remove(sent)
    assert queue.join() == [Part(b"ccc", 4)]
    assert queue.clear() == 4
    assert not queue


SECOND = 10**9
whole = st.integers(0, 1 << 62)
parts = st.floats(0, 1e300, allow_subnormal=False)


def at(seconds, value, kind="counter", name="verl.test"):
    """Return the point of a series that began at ``NOW``."""
    return make_point(name, kind, value)._replace(start_ns=NOW, time_ns=NOW + seconds * SECOND)


@pytest.mark.full
@steady
@given(st.lists(whole, max_size=8))
def test_differences_of_integers_add_up(amounts):
    """The differences of a counter of integers add up to its value, exactly."""
    deltas, total, received = Deltas("delta"), 0, 0
    for number, amount in enumerate(amounts):
        total += amount
        received += sum(point.value for point in deltas.convert([at(number + 1, total)]))
        assert received == total


@pytest.mark.full
@steady
@given(st.lists(parts, max_size=30))
def test_differences_of_floats_do_not_drift(amounts):
    """What a receiver has added up is the sum but for one rounding, however many exports there were."""
    deltas, total, received = Deltas("delta"), 0.0, 0.0
    for number, amount in enumerate(amounts):
        total += amount
        for point in deltas.convert([at(number + 1, total)]):
            received += point.value
        assert abs(received - total) <= math.ulp(total)


@pytest.mark.full
@steady
@given(st.lists(st.lists(st.floats(0, 100), max_size=5), max_size=6))
def test_differences_of_a_histogram_add_up(exports):
    """Samples, sum and every bucket of a histogram's differences add up to those of the whole."""
    deltas, values = Deltas("delta"), []
    counts, total, samples = Counter(), 0.0, 0
    for number, more in enumerate(exports):
        values += more
        found = deltas.convert([at(number + 1, make_histogram(*values), "histogram")])
        assert len(found) == bool(more)
        for point in found:
            counts.update(dict(enumerate(point.value.counts)))
            total, samples = total + point.value.total, samples + point.value.samples
    expected = make_histogram(*values)
    assert [counts[index] for index in range(4)] == list(expected.counts)
    assert samples == len(values)
    assert total == pytest.approx(expected.total, rel=1e-12)


def test_intervals_follow_each_other():
    """Each difference begins where the one before it ended; the first begins with the series."""
    deltas = Deltas("delta")
    spans = [deltas.convert([at(seconds, seconds)])[0] for seconds in (1, 5, 9)]
    assert [(each.start_ns - NOW, each.time_ns - NOW) for each in spans] == [
        (0, SECOND), (SECOND, 5 * SECOND), (5 * SECOND, 9 * SECOND),
    ]  # fmt: skip


def test_what_did_not_move_is_not_sent():
    """A counter and a histogram without anything new make no point; the first one of a counter is sent even if it is 0."""
    deltas = Deltas("delta")
    points = [at(1, 0), at(1, make_histogram(0.5), "histogram", "verl.h")]
    assert len(deltas.convert(points)) == 2
    assert deltas.convert(points) == []


def test_a_series_that_begins_anew_is_sent_whole():
    """After a reset the difference is all there is, from the new beginning; a counter that has less than before counts as reset."""
    deltas = Deltas("delta")
    deltas.convert([at(1, 10)])
    later = make_point("verl.test", "counter", 3)._replace(start_ns=NOW + 7 * SECOND, time_ns=NOW + 8 * SECOND)
    assert deltas.convert([later]) == [later]
    (back,) = deltas.convert([later._replace(value=2, time_ns=NOW + 9 * SECOND)])
    assert (back.value, back.start_ns) == (2, NOW + 8 * SECOND)


@pytest.mark.parametrize("kind", ["gauge", "updown"])
def test_last_values_stay(kind):
    """Gauges and up-down counters are sent as they are, each time."""
    deltas, point = Deltas("delta"), at(1, 5, kind)
    assert deltas.convert([point]) == deltas.convert([point]) == [point]


def test_infinity_and_what_follows_are_numbers():
    """A sum that has become infinite makes no difference that is no number."""
    deltas = Deltas("delta")
    found = [point.value for value in (1.0, math.inf, math.inf) for point in deltas.convert([at(1, value)])]
    assert found == [1.0, math.inf]


def test_only_the_first_interval_knows_its_extremes():
    """Minimum and maximum are of the whole, so those of a later interval are left out of the message."""
    deltas, found = Deltas("delta"), []
    for values in ((0.5,), (0.5, 2.0)):
        points = deltas.convert([at(len(values), make_histogram(*values), "histogram")])
        message = ExportMetricsServiceRequest.FromString(
            protobuf.encode_metrics(RESOURCE, SCOPE, points, deltas.is_delta)
        )
        histogram = message.resource_metrics[0].scope_metrics[0].metrics[0].histogram
        assert histogram.aggregation_temporality == 1
        found.append((histogram.data_points[0].HasField("min"), histogram.data_points[0].sum))
    assert found == [(True, 0.5), (False, 2.0)]


@pytest.mark.parametrize("preference", ["delta", "lowmemory"])
def test_which_kinds_are_differences_is_what_the_sdk_does(preference, monkeypatch):
    """For each kind of instrument the temporality is the one that the SDK's own OTLP exporter chooses."""
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", preference)
    theirs = exporter.OTLPMetricExporterMixin()._get_temporality({})
    ours = Deltas(preference, asked={"asked"})
    kinds = {
        SdkCounter: ("counter", "verl.test"), Histogram: ("histogram", "verl.test"),
        UpDownCounter: ("updown", "verl.test"), ObservableCounter: ("counter", "asked"),
    }  # fmt: skip
    for instrument, (kind, name) in kinds.items():
        is_delta = ours.is_delta(at(1, 0, kind, name))
        assert is_delta == (theirs.get(instrument) is AggregationTemporality.DELTA), (preference, kind, name)


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
