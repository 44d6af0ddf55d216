# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP exporter with endpoints that are dead, refuse or hang: nothing waits for them, and what is lost is counted."""

import logging
import socket
import statistics
import threading
import time
from collections import Counter

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.builders.exporting_records import NOW, make_batch, make_point, make_span
from tests.exporting.otlp_requests import without_times
from verl_otel.exporting.otlp import exporter as otlp_module
from verl_otel.exporting.otlp.exporter import RetryingSender
from verl_otel.exporting.otlp.transport import Answer
from verl_otel.model import Batch

NO = (503, {}, b"")


def soon(seconds=60.0):
    return time.monotonic() + seconds


def user_message():
    message = ExportMetricsServiceRequest()
    message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.a").gauge.data_points.add(as_int=3)
    return message


@pytest.fixture
def silent_url():
    """A URL where even connecting hangs: the queue of the listening socket is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for client in clients:
            client.close()


@pytest.fixture(params=["silent", "refusing", "hanging"])
def bad_url(request, monkeypatch):
    """A URL that is of no use, in one way or another."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    if request.param != "hanging":
        return request.getfixturevalue("silent_url" if request.param == "silent" else "dead_url")
    sink = request.getfixturevalue("sink")
    sink.hold |= {"traces", "metrics"}
    return sink.url


@pytest.mark.full
def test_nobody_waits_for_a_bad_endpoint(bad_url, otlp, caplog):
    """Whatever is wrong with the endpoint, `put` returns at once, closing ends in time, and what is left is counted."""
    exporter, state = otlp(bad_url)
    seconds = []
    for number in range(1, 101):
        state.update([make_point(value=float(number))])
        begin = time.monotonic()
        exporter.consume(make_batch(number))
        seconds.append(time.monotonic() - begin)
    assert statistics.median(seconds) < 0.05
    assert max(seconds) < 0.9  # the endpoint's timeout is 1 s
    begin = time.monotonic()
    exporter.close(begin + 0.5)
    assert time.monotonic() - begin < 5
    assert exporter.dropped("spans") == {"not sent before exit": 100}
    lines = [record for record in caplog.records if "not sent before exit" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.WARNING]


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
        return Answer(ok=False, retry=True, reason="as told")

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
