# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One request over HTTP: what reaches the server, and what each answer means."""

import socket
import threading
import time

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.fakes.exporting_sinks import send, transport

BODY = b"\x0a\x00" * 500


@pytest.mark.parametrize("signal", ["traces", "metrics"])
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_a_request_arrives_whole(sink, signal, compression):
    """The body arrives at the signal's path, whatever the compression, with the headers of the protocol."""
    assert send(sink.url, signal, BODY, COMPRESSION=compression, HEADERS="x-tenant=a%20b").ok
    (request,) = sink.requests
    assert (request.path, request.body) == (f"/v1/{signal}", BODY)
    assert request.headers["content-type"] == "application/x-protobuf"
    assert request.headers.get("content-encoding", "none") == compression
    assert request.headers["user-agent"].startswith("verl-otel/")
    assert request.headers["x-tenant"] == "a b"


def test_compression_makes_a_body_smaller(sink):
    """A repetitive body is sent in far fewer bytes when it is compressed."""
    for compression in ("none", "gzip", "deflate"):
        send(sink.url, body=BODY, COMPRESSION=compression)
    plain, *small = (int(request.headers["content-length"]) for request in sink.requests)
    assert plain == len(BODY)
    assert all(size < plain / 5 for size in small)


@pytest.mark.parametrize(
    ("status", "headers", "retry", "wait"),
    [
        (400, {}, False, 0.0),
        (401, {}, False, 0.0),
        (404, {}, False, 0.0),
        (413, {}, False, 0.0),
        (500, {}, False, 0.0),
        (429, {}, True, 0.0),
        (429, {"Retry-After": "7"}, True, 7.0),
        (502, {}, True, 0.0),
        (503, {"Retry-After": "1.5"}, True, 1.5),
        (503, {"Retry-After": "86400"}, True, 300.0),
        (503, {"Retry-After": "-3"}, True, 0.0),
        (503, {"Retry-After": "inf"}, True, 300.0),
        (503, {"Retry-After": "soon"}, True, 0.0),
        (504, {}, True, 0.0),
    ],
)
def test_what_a_failure_means(sink, status, headers, retry, wait):
    """Only what the protocol calls retryable is tried again, after what the server asks for, five minutes at most."""
    sink.answers["traces"] = (status, headers, b"no")
    answer = send(sink.url)
    assert (answer.ok, answer.retry, answer.wait) == (False, retry, wait)
    assert str(status) in answer.reason
    assert sink.url in answer.reason


def test_a_partial_success_is_counted(sink):
    """Items that the server refused although it took the request are in the answer."""
    spans, points = ExportTraceServiceResponse(), ExportMetricsServiceResponse()
    spans.partial_success.rejected_spans, points.partial_success.rejected_data_points = 3, 5
    sink.answers = {"traces": (200, {}, spans.SerializeToString()), "metrics": (200, {}, points.SerializeToString())}
    answers = [send(sink.url, signal) for signal in sink.answers]
    assert [(answer.ok, answer.rejected) for answer in answers] == [(True, 3), (True, 5)]


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_any_body_of_an_answer_is_taken(sink, signal):
    """Whatever stands in the body of a success, such as a page for people, it is a success."""
    for content in (b"<html>fine</html>", b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256))):
        sink.answers[signal] = (200, {"Content-Type": "text/html"}, content)
        answer = send(sink.url, signal)
        assert (answer.ok, answer.rejected) == (True, 0)


def test_nobody_listens(dead_url):
    """A refused connection may be tried again, and the reason names the URL."""
    answer = send(dead_url)
    assert (answer.ok, answer.retry) == (False, True)
    assert dead_url in answer.reason


def hang_up(server):
    connection, _ = server.accept()
    connection.close()


def test_a_server_that_hangs_up(sink):
    """A server that closes the connection without an answer may be tried again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closer = threading.Thread(target=hang_up, args=(server,))
        closer.start()
        answer = send(f"http://127.0.0.1:{server.getsockname()[1]}", body=b"x")
        closer.join()
    assert (answer.ok, answer.retry) == (False, True)


@pytest.mark.full
@pytest.mark.parametrize(("variable", "given"), [("0.3", 20.0), ("20", 0.3)])
def test_a_hanging_server_is_given_up(sink, variable, given):
    """A server that does not answer is given up after the configured time or what the caller has left, whichever is less."""
    sink.hold.add("traces")
    begin = time.monotonic()
    answer = send(sink.url, timeout=given, TIMEOUT=variable)
    assert 0.25 < time.monotonic() - begin < 10
    assert (answer.ok, answer.retry) == (False, True)


def test_the_token_of_the_moment_is_sent(sink, tmp_path):
    """Each request carries the token that is in the file at its moment; a missing file is a failure that may pass."""
    token = tmp_path / "token"
    token.write_text("first\n")
    with transport(sink.url, token_file=token) as made:
        assert made.send(BODY, 5).ok
        token.write_text("second\n")
        assert made.send(BODY, 5).ok
        token.unlink()
        answer = made.send(BODY, 5)
    assert (answer.ok, answer.retry) == (False, True)
    assert [request.headers["authorization"] for request in sink.requests] == ["Bearer first", "Bearer second"]
