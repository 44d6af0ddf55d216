# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP over TLS, and over gRPC with and without it."""

import ssl
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.exporting_sinks import GrpcSink, HttpSink, transport
from verl_otel.errors import ConfigError

BODY = b"\x0a\x00" * 500


@contextmanager
def https_sink(certificate, key, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    with HttpSink(context) as sink:
        yield sink


@pytest.mark.smoke
def test_https_with_the_servers_certificate(certificates):
    """With the server's certificate a request over HTTPS arrives."""
    certificate, key = certificates("server")
    with https_sink(certificate, key) as sink, transport(sink.url, CERTIFICATE=certificate) as made:
        assert made.send(BODY, 10).ok
        assert sink.requests[0].body == BODY


@pytest.mark.smoke
def test_https_with_an_unknown_certificate(certificates):
    """A server whose certificate nobody vouches for gets nothing, with or without another certificate configured."""
    certificate, key = certificates("server")
    other, _ = certificates("other")
    with https_sink(certificate, key) as sink:
        for variables in ({}, {"CERTIFICATE": other}):
            with transport(sink.url, **variables) as made:
                answer = made.send(BODY, 10)
            assert (answer.ok, answer.retry) == (False, True)
            assert "SSLError" in answer.reason
        assert not sink.requests


@pytest.mark.smoke
def test_https_where_requests_has_a_bundle_set(certificates, monkeypatch):
    """The configured certificate counts even where REQUESTS_CA_BUNDLE is set, as it is on many clusters."""
    certificate, key = certificates("server")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates("other")[0])
    with https_sink(certificate, key) as sink, transport(sink.url, CERTIFICATE=certificate) as made:
        assert made.send(BODY, 10).ok


@pytest.mark.smoke
def test_https_with_a_clients_certificate(certificates):
    """A server that asks for a certificate of the client is shown the configured one, and refuses those without."""
    (certificate, key), (mine, my_key) = certificates("server"), certificates("client")
    with https_sink(certificate, key, client_ca=mine) as sink:
        with transport(sink.url, CERTIFICATE=certificate) as made:
            assert not made.send(BODY, 10).ok
        with transport(sink.url, CERTIFICATE=certificate, CLIENT_CERTIFICATE=mine, CLIENT_KEY=my_key) as made:
            assert made.send(BODY, 10).ok
        assert len(sink.requests) == 1


@pytest.fixture(scope="module")
def grpc():
    return pytest.importorskip("grpc", reason="gRPC is an extra and is not installed")


@pytest.fixture
def grpc_sink(grpc):
    with GrpcSink(grpc) as sink:
        yield sink


@pytest.mark.parametrize("signal", ["traces", "metrics"])
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_grpc_arrives_whole(grpc_sink, signal, compression):
    """The body arrives at the service of its signal, whatever the compression, with the configured metadata."""
    variables = {"PROTOCOL": "grpc", "COMPRESSION": compression, "HEADERS": "X-Tenant=a%20b"}
    with transport(grpc_sink.url, signal, **variables) as made:
        assert made.send(BODY, 10).ok
    (request,) = grpc_sink.requests
    assert (request.path, request.body) == (signal, BODY)
    assert request.headers["x-tenant"] == "a b"


def test_grpc_without_metadata_and_scheme(grpc_sink):
    """An endpoint without scheme and headers is reached, too, unencrypted if that is asked for."""
    with transport(grpc_sink.url.removeprefix("http://"), PROTOCOL="grpc", INSECURE="true") as made:
        assert made.send(BODY, 10).ok
    assert "authorization" not in grpc_sink.requests[0].headers


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        ("UNAVAILABLE", True),
        ("RESOURCE_EXHAUSTED", False),
        ("ABORTED", True),
        ("INVALID_ARGUMENT", False),
        ("UNAUTHENTICATED", False),
        ("UNIMPLEMENTED", False),
    ],
)
def test_what_a_grpc_failure_means(grpc, grpc_sink, code, retry):
    """Only what the protocol calls retryable is tried again."""
    grpc_sink.failures.append(grpc.StatusCode[code])
    with transport(grpc_sink.url, PROTOCOL="grpc") as made:
        answer = made.send(BODY, 10)
        assert (answer.ok, answer.retry) == (False, retry)
        assert code in answer.reason
        assert made.send(BODY, 10).ok


@pytest.mark.parametrize(
    ("code", "connections"), [("UNAVAILABLE", 2), ("DEADLINE_EXCEEDED", 2), ("UNAUTHENTICATED", 1)]
)
def test_a_broken_connection_over_grpc_is_given_up(grpc, grpc_sink, code, connections):
    """After a failure of the way, not of the request, the next one has a connection of its own; all others share one."""
    with transport(grpc_sink.url, PROTOCOL="grpc") as made:
        assert made.send(BODY, 10).ok
        grpc_sink.failures.append(grpc.StatusCode[code])
        assert not made.send(BODY, 10).ok
        assert made.send(BODY, 10).ok
        assert made.send(BODY, 10).ok
    assert len(set(grpc_sink.peers)) == connections


def test_a_request_that_is_too_large_is_not_tried_again(grpc_sink):
    """A request above the server's limit, 4 MiB by default, is dropped: tried again, it would block all later ones for ever."""
    with transport(grpc_sink.url, PROTOCOL="grpc") as made:
        answer = made.send(b"\x00" * (5 << 20), 10)
    assert (answer.ok, answer.retry) == (False, False)


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_a_partial_success_over_grpc_is_counted(grpc_sink, signal):
    """Items that the server refused although it took the request are in the answer."""
    grpc_sink.rejected = 4
    with transport(grpc_sink.url, signal, PROTOCOL="grpc") as made:
        assert made.send(BODY, 10)[::4] == (True, 4)


def test_grpc_sends_the_token_of_the_moment(grpc_sink, tmp_path):
    """Each request carries the token that is in the file at its moment; a missing file is a failure that may pass."""
    token = tmp_path / "token"
    with transport(grpc_sink.url, PROTOCOL="grpc", token_file=token) as made:
        answer = made.send(BODY, 5)
        assert (answer.ok, answer.retry) == (False, True)
        token.write_text("mine\n")
        assert made.send(BODY, 5).ok
    assert [request.headers["authorization"] for request in grpc_sink.requests] == ["Bearer mine"]


@pytest.mark.smoke
def test_grpc_over_tls(grpc, certificates):
    """With the server's certificate a request over TLS arrives; without it it does not."""
    certificate, key = certificates("server")
    pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
    with GrpcSink(grpc, grpc.ssl_server_credentials([pair])) as sink:
        with transport(sink.url, PROTOCOL="grpc", CERTIFICATE=certificate) as made:
            assert made.send(BODY, 10).ok
        with transport(sink.url, PROTOCOL="grpc") as made:
            assert not made.send(BODY, 2).ok
    assert len(sink.requests) == 1


def test_a_path_in_a_grpc_endpoint_is_left_out(grpc_sink):
    """A gRPC endpoint that was copied with a path is reached: the path means nothing there."""
    with transport(f"{grpc_sink.url}/v1/traces", PROTOCOL="grpc") as made:
        assert made.send(BODY, 5).ok


def test_grpc_that_is_not_installed(monkeypatch):
    """Without the extra, gRPC is a configuration error that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"pip install 'verl-otel\[grpc\]'"), transport("http://c:1", PROTOCOL="grpc"):
        pass
