# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints from the variables of OpenTelemetry, and requests to them over HTTP and gRPC."""

from __future__ import annotations

import logging
import ssl
import time
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.fakes.exporting_sinks import GrpcSink, HttpSink, send, transport
from verl_otel.errors import ConfigError
from verl_otel.exporting.otlp.transport import load_endpoint, sent_signals

SECRET = "s3cr3t-t0k3n"


def load(signal="traces", token_file=None, **variables):
    """Load an endpoint from variables given without their common prefix."""
    return load_endpoint(signal, token_file, {f"OTEL_EXPORTER_OTLP_{key}": value for key, value in variables.items()})


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, "http://localhost:4318/v1/traces", "http://localhost:4318/v1/metrics"),
        ({"ENDPOINT": "http://c:1"}, "http://c:1/v1/traces", "http://c:1/v1/metrics"),
        ({"ENDPOINT": "http://c:1/"}, "http://c:1/v1/traces", "http://c:1/v1/metrics"),
        ({"ENDPOINT": "https://c/otlp"}, "https://c/otlp/v1/traces", "https://c/otlp/v1/metrics"),
        ({"TRACES_ENDPOINT": "http://t:1/in"}, "http://t:1/in", "http://localhost:4318/v1/metrics"),
        ({"METRICS_ENDPOINT": "http://m:1/", "ENDPOINT": "http://c:1"}, "http://c:1/v1/traces", "http://m:1/"),
        ({"ENDPOINT": " http://c:1 "}, "http://c:1/v1/traces", "http://c:1/v1/metrics"),
        (
            {"ENDPOINT": "", "TRACES_ENDPOINT": ""},
            "http://localhost:4318/v1/traces",
            "http://localhost:4318/v1/metrics",
        ),
        ({"PROTOCOL": "grpc"}, "http://localhost:4317", "http://localhost:4317"),
        ({"METRICS_PROTOCOL": "grpc"}, "http://localhost:4318/v1/traces", "http://localhost:4317"),
    ],
)
def test_the_url_of_each_signal(variables, traces, metrics):
    """The signal's own endpoint is used as it is; the path is appended to the general one; gRPC has no path."""
    assert (load("traces", **variables).url, load("metrics", **variables).url) == (traces, metrics)


@pytest.mark.parametrize(
    ("name", "field", "own", "general", "default"),
    [
        ("PROTOCOL", "protocol", ("grpc", "grpc"), ("http/protobuf", "http/protobuf"), "http/protobuf"),
        ("TIMEOUT", "timeout", ("2.5", 2.5), ("7", 7.0), 10.0),
        ("COMPRESSION", "compression", ("GZIP", "gzip"), ("deflate", "deflate"), "none"),
        ("HEADERS", "headers", ("a=1", {"a": "1"}), ("b=2", {"b": "2"}), {}),
        ("CERTIFICATE", "certificate", ("/own", "/own"), ("/all", "/all"), None),
        ("CLIENT_CERTIFICATE", "client_certificate", ("/own", "/own"), ("/all", "/all"), None),
        ("CLIENT_KEY", "client_key", ("/own", "/own"), ("/all", "/all"), None),
    ],
)
@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_the_signals_own_variable_wins(signal, name, field, own, general, default):
    """Of each setting the signal's own variable wins over the general one, which wins over the default."""
    mine, other = f"{signal.upper()}_{name}", f"{'METRICS' if signal == 'traces' else 'TRACES'}_{name}"
    assert getattr(load(signal, **{mine: own[0], name: general[0]}), field) == own[1]
    assert getattr(load(signal, **{other: own[0], name: general[0]}), field) == general[1]
    assert getattr(load(signal, **{mine: "", name: general[0]}), field) == general[1]
    assert getattr(load(signal, **{other: own[0]}), field) == default


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("a=1,b=2", {"a": "1", "b": "2"}),
        (" A = 1 , b = 2 ", {"a": "1", "b": "2"}),
        ("authorization=Bearer%20x%3D%3D", {"authorization": "Bearer x=="}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1%2C2", {"a": "1,2"}),
        ("a=", {"a": ""}),
        ("nonsense,a=1,,", {"a": "1"}),
        ("", {}),
    ],
)
def test_headers_are_decoded(text, headers):
    """Headers are percent-decoded, their names lower-cased, and what is no pair is left out."""
    assert load(HEADERS=text).headers == headers


def test_a_header_that_is_no_pair_gets_a_line_without_its_text(caplog):
    """A token without its name is a usual mistake, and the answer 401 alone does not show it."""
    assert load(HEADERS="a=1,hunter2, ,=x").headers == {"a": "1"}
    assert "OTEL_EXPORTER_OTLP_HEADERS: part 2, 3 is no key=value; it is left out" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("ENDPOINT", "collector:4318", "http://host:port or https://host:port"),
        ("ENDPOINT", "grpc://c:1", "http://host:port or https://host:port"),
    ],
)
def test_what_cannot_be_used_is_said(name, value, allowed):
    """An address that cannot be used is an error that names the variable, the value and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        load(**{name: value})
    message = str(raised.value)
    assert message.startswith(f"OTEL_EXPORTER_OTLP_{name}={value.strip()!r}: use")
    assert allowed in message


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PROTOCOL", "http/json", "http/protobuf, grpc"),
        ("PROTOCOL", "GRPC ", "http/protobuf, grpc"),
        ("COMPRESSION", "zstd", "none, gzip, deflate"),
        ("TIMEOUT", "soon", "seconds below 1000, or milliseconds up to an hour"),
        ("TIMEOUT", "0", "seconds below 1000, or milliseconds up to an hour"),
        ("TIMEOUT", "nan", "seconds below 1000, or milliseconds up to an hour"),
        ("TIMEOUT", "inf", "seconds below 1000, or milliseconds up to an hour"),
        ("METRICS_TEMPORALITY_PREFERENCE", "often", "cumulative, delta"),
        ("METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "fine", "explicit_bucket_histogram, base2"),
    ],
)
def test_an_option_that_only_another_sdk_understands_costs_itself(name, value, allowed, caplog):
    """These variables are set for a whole pod or machine: the default is used, with one line in the log."""
    for _ in range(2):
        assert load("metrics", **{name: value}) == load("metrics")
    (line,) = caplog.messages
    assert line.startswith(f"verl-otel: OTEL_EXPORTER_OTLP_{name}={value.strip()!r}: use")
    assert allowed in line


@pytest.mark.parametrize(
    ("text", "seconds"), [("10000", 10.0), ("1000", 1.0), ("500", 500.0), ("2.5", 2.5), ("3600000", 3600.0)]
)
def test_a_large_time_out_is_in_milliseconds(text, seconds):
    """As in OpenTelemetry's specification; OpenTelemetry's SDK for Python reads seconds."""
    assert load(TIMEOUT=text).timeout == seconds


def test_secrets_are_not_shown(tmp_path):
    """Neither headers nor the token are in the text of an endpoint."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    endpoint = load(HEADERS=f"api-key={SECRET}", token_file=token)
    endpoint.fresh_headers()
    assert SECRET not in f"{endpoint!r} {endpoint}"


def test_a_password_in_the_url_is_not_shown():
    """A password in the URL is neither in the text of the endpoint nor in an error about it."""
    shown = repr(load(ENDPOINT=f"https://user:{SECRET}@collector:4318"))
    with pytest.raises(ConfigError) as raised:
        load(ENDPOINT=f"grpc://user:{SECRET}@collector:4318")
    assert SECRET not in shown + str(raised.value)


TEMPORALITY, HISTOGRAMS = "METRICS_TEMPORALITY_PREFERENCE", "METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


@pytest.mark.parametrize(
    ("variables", "temporality", "histograms"),
    [
        ({}, "cumulative", "explicit_bucket_histogram"),
        ({TEMPORALITY: "", HISTOGRAMS: ""}, "cumulative", "explicit_bucket_histogram"),
        ({TEMPORALITY: " Delta "}, "delta", "explicit_bucket_histogram"),
        ({TEMPORALITY: "LOWMEMORY"}, "lowmemory", "explicit_bucket_histogram"),
        ({HISTOGRAMS: " Base2_Exponential_Bucket_Histogram "}, "cumulative", "base2_exponential_bucket_histogram"),
    ],
)
def test_how_metrics_are_sent_is_read_in_any_case(variables, temporality, histograms):
    """Temporality and aggregation are words of OpenTelemetry, in capitals or not."""
    endpoint = load("metrics", **variables)
    assert (endpoint.temporality, endpoint.histograms) == (temporality, histograms)


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"ENDPOINT": "c:4317"}, "https://c:4317"),
        ({"ENDPOINT": "[::1]:4317"}, "https://[::1]:4317"),
        ({"ENDPOINT": "c:4317", "INSECURE": "yes"}, "https://c:4317"),
        ({"ENDPOINT": "c:4317", "CERTIFICATE": "ca.pem"}, "https://c:4317"),
        ({"ENDPOINT": "c:4317", "INSECURE": "True"}, "http://c:4317"),
        ({"ENDPOINT": "c:4317", "TRACES_INSECURE": "true"}, "http://c:4317"),
        ({"ENDPOINT": "c:4317", "INSECURE": "true", "TRACES_INSECURE": "false"}, "https://c:4317"),
        ({"ENDPOINT": "HTTPS://c:4317"}, "https://c:4317"),
        ({"ENDPOINT": "https://c:4317", "INSECURE": "true"}, "https://c:4317"),
        ({"ENDPOINT": "Http://c:4317"}, "http://c:4317"),
    ],
)
def test_grpc_is_encrypted_unless_the_endpoint_says_otherwise(variables, url):
    """Without a scheme the connection is encrypted, as the specification says; plain is what has `http://`, or no scheme and INSECURE=true."""
    assert load(PROTOCOL="grpc", **variables).url == url


@pytest.mark.parametrize("endpoint", ["grpc://c:4317", "unix:///run/otel", "https://"])
def test_an_unknown_form_of_a_grpc_endpoint_is_an_error(endpoint):
    """What is not understood is not sent to in the clear."""
    with pytest.raises(ConfigError, match="use host:port, http://host:port or https://host:port"):
        load(PROTOCOL="grpc", ENDPOINT=endpoint)


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({}, {"traces", "metrics", "logs"}),
        ({"ENDPOINT": "http://c:1", "TRACES_ENDPOINT": "http://t:1/in"}, {"traces", "metrics", "logs"}),
        ({"TRACES_ENDPOINT": "http://t:1/in"}, {"traces"}),
        ({"TRACES_ENDPOINT": "http://t:1/in", "METRICS_ENDPOINT": "http://m:1/in"}, {"traces", "metrics"}),
        ({"TRACES_ENDPOINT": " "}, {"traces", "metrics", "logs"}),
    ],
)
def test_an_endpoint_of_one_signal_is_for_this_signal_only(variables, sent):
    """A store that takes traces only gets these, and nothing is tried at a default address where no server listens."""
    assert sent_signals({f"OTEL_EXPORTER_OTLP_{key}": value for key, value in variables.items()}) == sent


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


@pytest.mark.parametrize(
    ("status", "headers", "retry", "wait"),
    [
        (400, {}, False, 0.0),
        (404, {}, False, 0.0),
        (500, {}, False, 0.0),
        (429, {}, True, 0.0),
        (429, {"Retry-After": "7"}, True, 7.0),
        (502, {}, True, 0.0),
        (503, {"Retry-After": "1.5"}, True, 1.5),
        (503, {"Retry-After": "86400"}, True, 300.0),
        (503, {"Retry-After": "-3"}, True, 0.0),
        (503, {"Retry-After": "inf"}, True, 300.0),
        (503, {"Retry-After": "soon"}, True, 0.0),
        (503, {"Retry-After": "nan"}, True, 0.0),
        (503, {"Retry-After": "1e400"}, True, 300.0),
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
    """Whatever stands in the body of a success, unless it is a page for people, it is a success."""
    for content in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256))):
        sink.answers[signal] = (200, {"Content-Type": "text/plain"}, content)
        answer = send(sink.url, signal)
        assert (answer.ok, answer.rejected) == (True, 0)
        assert "does not answer as a receiver of OTLP (text/plain)" in answer.doubt


def test_nobody_listens(dead_url):
    """A refused connection may be tried again, and the reason names the URL."""
    answer = send(dead_url)
    assert (answer.ok, answer.retry) == (False, True)
    assert dead_url in answer.reason


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


@pytest.mark.parametrize(
    "variables",
    [
        {"HEADERS": "a=x%0Ay"},
        {"ENDPOINT": "http://127.0.0.1:99999"},
        {"CERTIFICATE": "/does/not/exist", "ENDPOINT": "https://127.0.0.1:1"},
        {"HEADERS": "a=%E2%82%AC"},
        {"ENDPOINT": "http://a..b:4318"},
    ],
)
def test_a_strange_setting_never_raises(sink, variables):
    """A header or host that cannot go over the wire is a failed request like any other, and raises nothing."""
    assert not send(sink.url, **variables).ok


def test_a_token_that_is_no_text_never_raises(sink, tmp_path):
    """A token file that is no text is a failed request like any other."""
    token = tmp_path / "token"
    token.write_bytes(b"\xff\xfe")
    with transport(sink.url, token_file=token) as made:
        assert not made.send(BODY, 5).ok


def test_a_netrc_does_not_replace_the_token(sink, tmp_path, monkeypatch):
    """The configured authorization is sent, even when a .netrc has a password for the host."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    send(sink.url, HEADERS="authorization=Bearer%20mine")
    assert sink.requests[0].headers["authorization"] == "Bearer mine"


def test_secrets_are_not_in_reasons_or_logs(sink, tmp_path, caplog):
    """Whatever goes wrong, neither headers nor token are in a reason or in any log line."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    caplog.set_level(logging.DEBUG)
    sink.answers["traces"] = [(401, {}, b""), (503, {}, b"")]
    with transport(sink.url, token_file=token, HEADERS=f"api-key={SECRET},bad=x%0A{SECRET}") as made:
        reasons = [made.send(BODY, 5).reason for _ in range(3)]
    assert all(reasons)
    assert SECRET not in caplog.text + "".join(reasons)


def test_a_retry_after_with_a_date_is_understood(sink):
    """A Retry-After may be a date."""
    sink.answers["traces"] = (503, {"Retry-After": formatdate(time.time() + 60, usegmt=True)}, b"")
    assert 30 < send(sink.url).wait <= 60


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
def test_https_with_an_unknown_certificate(certificates):
    """A server whose certificate no trusted authority has signed gets nothing, with or without another certificate configured."""
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


def test_grpc_with_a_path_without_metadata_and_scheme(grpc_sink):
    """An endpoint without scheme and headers is reached, too, unencrypted if that is asked for; a path means nothing there."""
    url = f"{grpc_sink.url.removeprefix('http://')}/v1/traces"
    with transport(url, PROTOCOL="grpc", INSECURE="true") as made:
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
    """A request above the server's limit, 4 MiB by default, is dropped: tried again, it would block all later ones."""
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


def test_grpc_that_is_not_installed(monkeypatch):
    """Without the extra, gRPC is a configuration error that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"pip install 'verl-otel\[grpc\]'"), transport("http://c:1", PROTOCOL="grpc"):
        pass
