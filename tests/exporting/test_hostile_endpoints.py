# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Servers that answer otherwise than OTLP says: nothing is raised, nothing is sent twice, no secret goes elsewhere, and an exit has its own time."""

import time

import pytest

from tests.builders.exporting_records import NOW, make_point, make_span
from tests.fakes import hostile_endpoints as hostile
from tests.fakes.exporting_sinks import GrpcSink, send, transport
from tests.fakes.hostile_endpoints import Endpoint
from tests.fakes.http_server import HttpServer
from verl_otel import config
from verl_otel.cli import check
from verl_otel.model import Batch

pytestmark = pytest.mark.full

SECRET = "s3cr3t-t0k3n"
TIMEOUT = "0.4"


def names(answers):
    return [each.__name__ for each in answers]


@pytest.mark.parametrize("answer", hostile.TAKING, ids=names(hostile.TAKING))
def test_what_was_taken_is_not_sent_again(answer):
    """A success whose body is endless or cut off is a success; little of the body is read."""
    with Endpoint(answer) as endpoint:
        found = send(endpoint.url, TIMEOUT="60")
    assert (found.ok, found.rejected) == (True, 0)


PAGE = b"<!doctype html><title>App</title>" + bytes(5000)


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/html; charset=utf-8", PAGE), ("text/html", b"welcome"), (None, b"\n <HTML><body>"), ("text/plain", PAGE)],
)
def test_a_web_page_is_no_receiver(kind, body):
    """A web application answers every path with its page and 200: nothing has arrived, and the same request will not."""
    headers = {} if kind is None else {"Content-Type": kind}
    with HttpServer(lambda _: (200, body, headers)) as server:
        found = send(server.url)
    assert (found.ok, found.retry) == (False, False)
    assert "web page" in found.reason


@pytest.mark.parametrize(
    ("kind", "body", "is_doubted"),
    [
        ("application/x-protobuf", b"", False), ("application/json", b"{}", False),
        ("application/json", b'{"partialSuccess": {}}', False), ("application/json", b'{"status": "ok"}', True),
        ("text/plain", b"ok, thanks", True),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_that_of_a_receiver_is_doubted(kind, body, is_doubted):
    """It counts as taken, since receivers answer in several ways; the log has a line."""
    with HttpServer(lambda _: (200, body, {"Content-Type": kind})) as server:
        found = send(server.url)
    assert (found.ok, bool(found.doubt)) == (True, is_doubted)


def test_a_redirect_carries_no_secret_anywhere(tmp_path):
    """A redirect to another host, or in a circle, is not followed: no token, header or password arrives there."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    with Endpoint(hostile.html) as other, Endpoint(hostile.redirect(f"{other.url}/v1/traces")) as endpoint:
        url = endpoint.url.replace("://", f"://user:{SECRET}@")
        with transport(url, token_file=token, HEADERS=f"api-key={SECRET}") as made:
            found = made.send(b"x", 5)
        assert not found.ok
        assert not other.received
    with Endpoint(hostile.redirect("/v1/traces")) as endpoint:
        assert not send(endpoint.url).ok
        assert len(list(filter(None, endpoint.received))) <= 2  # head and body may arrive apart


def test_ipv6_is_reached():
    """An IPv6 endpoint in brackets is reached over HTTP, with a user in the URL, too."""
    with Endpoint(hostile.nothing_to_say, host="::1") as endpoint:
        assert send(endpoint.url).ok
        assert send(endpoint.url.replace("://", "://user:password@")).ok
        assert send(f"{endpoint.url}/").ok


def test_ipv6_is_reached_by_grpc():
    """An IPv6 endpoint in brackets is reached over gRPC."""
    grpc = pytest.importorskip("grpc")
    with GrpcSink(grpc, host="[::1]") as sink, transport(sink.url, PROTOCOL="grpc") as made:
        assert sink.url.startswith("http://[::1]:")
        assert made.send(b"x", 10).ok


@pytest.mark.parametrize("answer", [hostile.slow_headers, hostile.slow_body, hostile.slow_status])
def test_a_request_that_drips_ends_at_its_time_out(otlp, monkeypatch, wait_for, answer):
    """The time-out is that of the request, not that of each read; what the status has accepted is not sent again."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT)
    with Endpoint(answer) as endpoint:
        exporter, _ = otlp(endpoint.url)
        exporter.consume(Batch(NOW, (make_span(1),)))
        wait_for(lambda: endpoint.received)
        channel = exporter._channels["traces"]
        wait_for(lambda: exporter.poll() or channel.failures or not exporter._queue)
        assert bool(exporter._queue) == (answer is hostile.slow_status)


def test_check_ends_at_an_endpoint_that_drips(monkeypatch):
    """As a training does."""
    monkeypatch.setattr(check, "OTLP_SECONDS", 0.2)
    with Endpoint(hostile.slow_headers) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.url)
        finding = check._ask_endpoint("traces", config.load_config({}))
    assert (finding.state, finding.text) == ("fail", f"{endpoint.url}/v1/traces gives no answer in time")


@pytest.mark.parametrize("answer", [hostile.slow_headers, hostile.nothing])
def test_an_exit_does_not_wait_for_a_hostile_endpoint(otlp, answer):
    """While the endpoint holds a request, closing the exporter ends at its deadline."""
    with Endpoint(answer) as endpoint:
        exporter, state = otlp(endpoint.url)
        state.update([make_point("verl.a")])
        exporter._wake.set()
        exporter.close(time.monotonic() + 0.5)
        assert exporter._thread.is_alive(), "the request is still under way"
