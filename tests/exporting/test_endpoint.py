# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's own variables say where and how each signal is sent."""

import pytest

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
        ({"PROTOCOL": "grpc", "ENDPOINT": "c:1"}, "https://c:1", "https://c:1"),
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


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PROTOCOL", "http/json", "http/protobuf, grpc"),
        ("PROTOCOL", "GRPC ", "http/protobuf, grpc"),
        ("COMPRESSION", "zstd", "none, gzip, deflate"),
        ("TIMEOUT", "soon", "seconds, more than 0 and up to 3600"),
        ("TIMEOUT", "0", "seconds, more than 0 and up to 3600"),
        ("TIMEOUT", "nan", "seconds, more than 0 and up to 3600"),
        ("TIMEOUT", "10000", "seconds, more than 0 and up to 3600"),
        ("ENDPOINT", "collector:4318", "http://host:port or https://host:port"),
        ("ENDPOINT", "grpc://c:1", "http://host:port or https://host:port"),
    ],
)
def test_what_cannot_be_used_is_said(name, value, allowed):
    """A value that cannot be used is an error that names the variable, the value and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        load(**{name: value})
    message = str(raised.value)
    assert message.startswith(f"OTEL_EXPORTER_OTLP_{name}={value.strip()!r}: use")
    assert allowed in message


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


def test_the_token_is_read_each_time(tmp_path):
    """The token file is read again for every request, its line end left out, and it wins over a header."""
    token = tmp_path / "token"
    endpoint = load(HEADERS="authorization=old,a=1", token_file=token)
    for word in ("first", "second"):
        token.write_text(f"{word}\n")
        assert endpoint.fresh_headers() == {"authorization": f"Bearer {word}", "a": "1"}
    token.unlink()
    with pytest.raises(OSError, match="token"):
        endpoint.fresh_headers()


@pytest.mark.parametrize(
    ("given_text", "meaning"),
    [(None, "cumulative"), (" Delta ", "delta"), ("LOWMEMORY", "lowmemory"), ("", "cumulative")],
)
def test_the_temporality_is_one_of_three_words(given_text, meaning):
    """The preference is read in any case, as OpenTelemetry has it; another word names the variable and the words."""
    variables = {} if given_text is None else {"METRICS_TEMPORALITY_PREFERENCE": given_text}
    assert load("metrics", **variables).temporality == meaning
    with pytest.raises(ConfigError, match="METRICS_TEMPORALITY_PREFERENCE='often': use one of cumulative, delta"):
        load("metrics", METRICS_TEMPORALITY_PREFERENCE="often")


@pytest.mark.parametrize(
    ("given_text", "meaning"),
    [
        (None, "explicit_bucket_histogram"),
        (" Base2_Exponential_Bucket_Histogram ", "base2_exponential_bucket_histogram"),
        ("", "explicit_bucket_histogram"),
    ],
)
def test_the_aggregation_of_histograms_is_one_of_two_words(given_text, meaning):
    """The aggregation is read in any case; another word names the variable and the words."""
    variables = {} if given_text is None else {"METRICS_DEFAULT_HISTOGRAM_AGGREGATION": given_text}
    assert load("metrics", **variables).histograms == meaning
    with pytest.raises(ConfigError, match="METRICS_DEFAULT_HISTOGRAM_AGGREGATION='fine': use one of explicit"):
        load("metrics", METRICS_DEFAULT_HISTOGRAM_AGGREGATION="fine")


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"ENDPOINT": "c:4317"}, "https://c:4317"),
        ({"ENDPOINT": "[::1]:4317"}, "https://[::1]:4317"),
        ({"ENDPOINT": "c:4317", "INSECURE": "false"}, "https://c:4317"),
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
        ({"ENDPOINT": "http://c:1"}, {"traces", "metrics", "logs"}),
        ({"ENDPOINT": "http://c:1", "TRACES_ENDPOINT": "http://t:1/in"}, {"traces", "metrics", "logs"}),
        ({"TRACES_ENDPOINT": "http://t:1/in"}, {"traces"}),
        ({"TRACES_ENDPOINT": "http://t:1/in", "METRICS_ENDPOINT": "http://m:1/in"}, {"traces", "metrics"}),
        ({"TRACES_ENDPOINT": " "}, {"traces", "metrics", "logs"}),
    ],
)
def test_an_endpoint_of_one_signal_is_for_this_signal_only(variables, sent):
    """A store that takes traces only gets these, and nothing is tried at a default address where no server listens."""
    assert sent_signals({f"OTEL_EXPORTER_OTLP_{key}": value for key, value in variables.items()}) == sent
