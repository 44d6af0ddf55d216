# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Servers that answer in hostile ways: a request has a total time, an answer a number of bytes, and an exit its own time."""

import ssl
import time
import tracemalloc

import pytest

from tests.builders.exporting_records import make_point
from tests.fakes import hostile_endpoints as hostile
from tests.fakes.exporting_sinks import GrpcSink, HttpSink, send, transport
from tests.fakes.hostile_endpoints import Endpoint

pytestmark = pytest.mark.full

SECRET = "s3cr3t-t0k3n"
TIMEOUT = 0.4
PATIENCE = 3.0
"""Seconds in which a request with this time-out is over on a busy machine."""


def names(answers):
    return [each.__name__ for each in answers]


def timed(url, seconds=TIMEOUT, **variables):
    """Send a request; returns its answer and the seconds that it took."""
    begin = time.monotonic()
    answer = send(url, TIMEOUT=str(seconds), **variables)
    return answer, time.monotonic() - begin


@pytest.mark.parametrize("answer", hostile.REFUSING, ids=names(hostile.REFUSING))
def test_what_is_no_answer_fails_in_time(answer):
    """Interim answers, headers and bytes without end, noise and silence: the request has failed when its time is over."""
    with Endpoint(answer) as endpoint:
        found, seconds = timed(endpoint.url)
    assert not found.ok
    assert seconds < PATIENCE


@pytest.mark.parametrize("answer", hostile.TAKING, ids=names(hostile.TAKING))
def test_what_was_taken_is_not_sent_again(answer):
    """A success whose body is endless, slow, cut off or compressed is a success; little of the body is read."""
    hostile.compress(1), hostile.compress(3)
    limit = 1.0 if answer is hostile.slow_body else 60.0  # only that one ends by its time
    with Endpoint(hostile.html) as endpoint:
        timed(endpoint.url)  # imports
    with Endpoint(answer) as endpoint:
        tracemalloc.start()
        try:
            found, seconds = timed(endpoint.url, limit)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (found.ok, found.rejected) == (True, 0)
    assert seconds < PATIENCE
    assert peak < 4 << 20


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip, gzip", "deflate", "zstd"])
def test_a_compressed_answer_is_not_expanded(sink, encoding):
    """The request asks for an answer without compression, and one that is compressed is not read."""
    sink.answers["traces"] = (200, {"Content-Encoding": encoding}, b"\x1f\x8b" + bytes(100))
    assert send(sink.url).ok
    assert sink.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("value", hostile.RETRY_AFTER)
def test_a_hostile_retry_after_is_bounded(value):
    """Whatever is asked for, a pause is a number from 0 to 300 seconds."""
    with Endpoint(hostile.retry_after(value)) as endpoint:
        found, _ = timed(endpoint.url)
    assert (found.ok, found.retry) == (False, True)
    assert 0 <= found.wait <= 300


def test_interim_answers_before_the_answer_are_skipped():
    """An answer after a few interim ones counts, of whatever kind they are, and so does the next on the same connection."""

    def answer(connection, stopped):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with Endpoint(answer) as endpoint, transport(endpoint.url) as made:
        assert made.send(b"x", 5).ok
        assert made.send(b"x", 5).ok


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
        assert not timed(endpoint.url)[0].ok
        assert len(list(filter(None, endpoint.received))) <= 2  # head and body may arrive apart


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_server_that_does_not_read_is_given_up(certificates, tls):
    """A large request to a server that reads nothing, or a little now and then, is over when its time is."""

    def sip(connection, stopped):
        while not stopped.wait(0.05):
            connection.recv(1000)

    body = bytes(range(256)) * (1 << 16)  # 16 MiB
    variables = {}
    answer = hostile.nothing
    if tls:
        certificate, key = certificates("server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        variables = {"CERTIFICATE": certificate}

        def answer(connection, stopped):
            connection.settimeout(5)
            with context.wrap_socket(connection, server_side=True) as encrypted:
                sip(encrypted, stopped)

    with Endpoint(answer, reads=False) as endpoint:
        url = endpoint.url.replace("http:", "https:") if tls else endpoint.url
        found, seconds = timed(url, body=body, **variables)
    assert not found.ok
    assert seconds < PATIENCE


def test_a_handshake_that_does_not_end_is_given_up(certificates):
    """A TLS handshake that is answered byte by byte, or with noise, is over in time."""

    def drip(connection, stopped):
        while not stopped.wait(0.02):
            connection.sendall(b"\x16")

    for answer in (hostile.nothing, hostile.noise, drip):
        with Endpoint(answer) as endpoint:
            found, seconds = timed(endpoint.url.replace("http:", "https:"))
        assert not found.ok
        assert seconds < PATIENCE


def test_a_wrong_certificate_is_refused(certificates):
    """A certificate that is not trusted, and one for another name, are refused, and nothing is sent."""
    certificate, key = certificates("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    other, _ = certificates("other")
    with HttpSink(context) as sink:
        assert not send(sink.url, HEADERS=f"api-key={SECRET}").ok
        assert not send(sink.url, CERTIFICATE=other).ok
        assert not send(sink.url.replace("127.0.0.1", "127.0.0.2"), CERTIFICATE=certificate).ok
        assert not send(sink.url.replace("https:", "http:")).ok
        assert not sink.requests
        assert send(sink.url, CERTIFICATE=certificate).ok


def test_ipv6_is_reached():
    """An IPv6 endpoint in brackets is reached over HTTP, with a user in the URL, too."""
    with Endpoint(hostile.html, host="::1") as endpoint:
        assert send(endpoint.url).ok
        assert send(endpoint.url.replace("://", "://user:password@")).ok
        assert send(f"{endpoint.url}/").ok


def test_ipv6_is_reached_by_grpc():
    """An IPv6 endpoint in brackets is reached over gRPC."""
    grpc = pytest.importorskip("grpc")
    with GrpcSink(grpc, host="[::1]") as sink, transport(sink.url, PROTOCOL="grpc") as made:
        assert sink.url.startswith("http://[::1]:")
        assert made.send(b"x", 10).ok


@pytest.mark.parametrize(
    "answer", [hostile.slow_continue, hostile.endless_continue, hostile.slow_headers, hostile.nothing]
)
def test_an_exit_does_not_wait_for_a_hostile_endpoint(otlp, answer):
    """While the endpoint holds a request, closing the exporter ends at its deadline."""
    with Endpoint(answer) as endpoint:
        exporter, state = otlp(endpoint.url)
        state.update([make_point("verl.a")])
        exporter._wake.set()
        begin = time.monotonic()
        exporter.close(time.monotonic() + 0.5)
        assert time.monotonic() - begin < PATIENCE
        exporter._thread.join(20)
