# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The endpoint of a cluster: taken from Ray's store into the environment, never instead of a destination of one's own."""

import json
import os
import re
import stat
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from verl_otel import config
from verl_otel._internal import safe_files
from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import cluster_endpoint, init_hook
from verl_otel.integrations.ray.cluster_endpoint import ClusterEndpoint

TOKEN = "t0ken-of-the-cluster"
FOUND = ClusterEndpoint("http://10.0.0.1:4318", "http://10.0.0.1:4317", TOKEN)


@pytest.fixture
def environ(monkeypatch, tmp_path):
    """An environment that is switched on and names no destination."""
    for name in [name for name in os.environ if name.startswith(("OTEL_", "VERL_OTEL_"))]:
        if name != "VERL_OTEL_RAISE_INTERNAL_ERRORS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path / "runs"))
    for name in (cluster_endpoint.ENDPOINT, cluster_endpoint.TOKEN_FILE, cluster_endpoint.CERTIFICATE):
        monkeypatch.setenv(name, "")  # restored after the test
        os.environ.pop(name)
    return monkeypatch


@pytest.fixture
def store(monkeypatch):
    """The store of a cluster, with the entry of a stack; `gate` closed: it does not answer."""
    made = SimpleNamespace(value=FOUND.encode(), gate=threading.Event())
    made.gate.set()

    def read(key):
        assert key == cluster_endpoint.KEY
        assert made.gate.wait(60)
        return made.value

    monkeypatch.setattr(cluster_store, "is_connected", lambda: True)
    monkeypatch.setattr(cluster_store, "read", read)
    yield made
    made.gate.set()


def taken():
    names = (cluster_endpoint.ENDPOINT, cluster_endpoint.TOKEN_FILE, cluster_endpoint.CERTIFICATE)
    return {name: os.environ[name] for name in names if name in os.environ}


def test_a_process_without_a_destination_sends_to_the_cluster(environ, store, tmp_path):
    """Endpoint and token are in the environment, the settings name OTLP, and only the user can read the token."""
    assert cluster_endpoint.take()
    settings = config.load_config()
    assert settings.exporters == ("file", "otlp")
    assert os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == FOUND.http
    assert settings.token_file.read_text() == TOKEN
    assert stat.S_IMODE(settings.token_file.stat().st_mode) == 0o600
    assert settings.token_file.is_relative_to(tmp_path / "runs")
    assert not cluster_endpoint.take(), "taken twice"


def test_the_token_stays_private_where_a_group_reads_runs(environ, store, monkeypatch):
    """``VERL_OTEL_FILES_GROUP`` opens the files of runs, not the token."""
    monkeypatch.setattr(safe_files.Access, "group", os.getgid())
    assert cluster_endpoint.take()
    assert stat.S_IMODE(Path(os.environ[cluster_endpoint.TOKEN_FILE]).stat().st_mode) == 0o600


def test_the_certificate_of_the_authority_comes_with_tls(environ, store):
    """With TLS the authority's certificate is a file of this node, too, and gRPC has its own address."""
    environ.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    store.value = FOUND._replace(grpc="https://10.0.0.1:4317", certificate="PEM").encode()
    assert cluster_endpoint.take()
    assert os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "https://10.0.0.1:4317"
    assert Path(os.environ["OTEL_EXPORTER_OTLP_CERTIFICATE"]).read_text() == "PEM"


@pytest.mark.parametrize(
    "own",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere:4318"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://elsewhere:4318/v1/traces"},
        {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://elsewhere/v1/logs"},
        {"OTEL_EXPORTER_OTLP_CLIENT_KEY": "/etc/otlp/client.key"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20mine"},
        {"VERL_OTEL_TOKEN_FILE": "/etc/otlp/token"},
        {"VERL_OTEL_EXPORTERS": "file,prometheus"},
        {"VERL_OTEL_EXPORTERS": "none"},
    ],
    ids=lambda own: next(iter(own)),
)
def test_a_destination_of_ones_own_wins(environ, store, own):
    """An endpoint, a token or exporters without OTLP: nothing is taken, so no token goes to a foreign place."""
    for name, value in own.items():
        environ.setenv(name, value)
    assert not cluster_endpoint.take()
    assert {name: value for name, value in taken().items() if name not in own} == {}


def test_settings_in_code_count_as_ones_own(environ, store):
    """What ``verl_otel.init`` was given is a destination, too."""
    assert not cluster_endpoint.take({"VERL_OTEL_EXPORTERS": "file"})
    assert taken() == {}
    assert cluster_endpoint.take({"VERL_OTEL_EXPORTERS": "otlp"})


@pytest.mark.parametrize(
    "change",
    [
        {"http": "http://a b:4318"},
        {"http": "file:///etc/passwd"},
        {"grpc": ""},
        {"token": "x\r\nx-other: 1234567890"},
        {"token": ""},
        {"certificate": 7},
    ],
    ids=str,
)
def test_what_is_no_endpoint_is_not_taken(environ, store, change):
    """Any client that reaches the head can write the store: what is no URL or no token changes nothing."""
    store.value = json.dumps({**FOUND._asdict(), **change}).encode()
    assert not cluster_endpoint.take()
    assert taken() == {}
    store.value = b"[" * 10_000
    assert not cluster_endpoint.take()


def test_nothing_happens_without_a_cluster_or_its_stack(environ, store, monkeypatch):
    """No entry, or no Ray: the environment stays as it is."""
    store.value = None
    assert not cluster_endpoint.take()
    monkeypatch.setattr(cluster_store, "is_connected", lambda: False)
    store.value = FOUND.encode()
    assert not cluster_endpoint.take()
    assert taken() == {}


@pytest.mark.full
def test_a_store_that_does_not_answer_is_not_waited_for(environ, store, monkeypatch):
    """The head may be away: the process goes on without the endpoint."""
    monkeypatch.setattr(cluster_endpoint, "READ_TIMEOUT", 0.2)
    store.gate.clear()
    begin = time.monotonic()
    assert not cluster_endpoint.take()
    assert time.monotonic() - begin < 10
    assert taken() == {}


def test_a_token_that_cannot_be_written_is_reported(environ, store, tmp_path, caplog):
    """Without the token nothing would be accepted: one line gives the reason."""
    (tmp_path / "runs").write_text("in the way")
    assert not cluster_endpoint.take()
    assert "the token cannot be written" in caplog.text
    assert taken() == {}


def test_what_was_taken_is_not_forwarded(environ, store, monkeypatch):
    """The paths are those of this node: a runtime environment has none of them, and each worker asks the store itself."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    assert cluster_endpoint.take()
    assert not set(init_hook.settings_to_forward()) & set(taken())


@pytest.mark.parametrize(
    ("protocols", "urls"),
    [
        ({"": "grpc"}, {"": FOUND.grpc}),
        ({"TRACES_": "grpc"}, {"": FOUND.http, "TRACES_": FOUND.grpc}),
        ({"": "grpc", "LOGS_": "http/protobuf"}, {"": FOUND.grpc, "LOGS_": f"{FOUND.http}/v1/logs"}),
        ({"": "grpc", "METRICS_": "grpc"}, {"": FOUND.grpc}),
    ],
    ids=str,
)
def test_each_signal_goes_to_the_port_of_its_protocol(environ, store, protocols, urls):
    """A signal with another protocol than the others has an endpoint of its own."""
    for signal, protocol in protocols.items():
        environ.setenv(f"OTEL_EXPORTER_OTLP_{signal}PROTOCOL", protocol)
    assert cluster_endpoint.take()
    endpoints = {
        name: value for name, value in os.environ.items() if re.fullmatch("OTEL_EXPORTER_OTLP_.*ENDPOINT", name)
    }
    assert endpoints == {f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT": url for signal, url in urls.items()}
