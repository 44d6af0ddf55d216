# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel check`` and the world around: collectors, Ray's job, other people's OpenTelemetry, what is not installed."""

import contextlib
import importlib.metadata
import json
import shutil
import socket
import sys

import pytest

from tests.fakes.http_server import HttpServer
from verl_otel.integrations import source_inspection

SET_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
"""


@pytest.fixture
def check(shell, good_site):
    """Check the stand-in environment, with these variables."""

    def run(*arguments, **variables):
        return shell("check", *arguments, PYTHONPATH=str(good_site.folder), **variables)

    return run


@contextlib.contextmanager
def collector(status):
    """A Collector that gives every request the same answer; yields its address and what it was asked."""
    asked = []

    def answer(call):
        asked.append((call.path, call.headers.get("authorization")))
        return status

    with HttpServer(answer) as server:
        yield server.url, asked


def lines(result, mark):
    return [line[5:] for line in result.out.splitlines() if line.startswith(mark)]


@pytest.mark.full
def test_a_collector_that_answers(check, tmp_path):
    """A Collector that takes every signal is fine, and is shown the token."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with collector(200) as (address, asked):
        result = check(OTEL_EXPORTER_OTLP_ENDPOINT=address, VERL_OTEL_TOKEN_FILE=str(token))
    assert result.code == 0, result.out
    assert f"OTLP traces: {address}/v1/traces takes requests" in lines(result, "ok")
    assert f"OTLP metrics: {address}/v1/metrics takes requests" in lines(result, "ok")
    assert asked == [(f"/v1/{signal}", "Bearer s3cret") for signal in ("traces", "metrics", "logs")]
    assert "s3cret" not in result.out + result.err


@pytest.mark.full
def test_a_collector_that_is_not_there(check):
    """An endpoint where nobody listens is named, for each signal, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    result = check(OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert result.code == 1
    assert lines(result, "FAIL") == [
        f"OTLP traces: cannot reach {address}/v1/traces: ConnectionError",
        f"OTLP metrics: cannot reach {address}/v1/metrics: ConnectionError",
    ]
    assert result.out.count("-> start the Collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT") == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "check path, token and protocol"),
        (404, "check path, token and protocol"),
        (503, "start the Collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_a_collector_that_refuses(check, status, advice):
    """A Collector that refuses is named with its answer; the advice fits it."""
    with collector(status) as (address, _):
        result = check(OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert result.code == 1
    assert f"OTLP traces: {address}/v1/traces answers HTTP {status}" in lines(result, "FAIL")
    assert result.out.count(f"-> {advice}") == 2


@pytest.mark.full
def test_a_collector_of_one_signal(check):
    """Signals are checked apart: one endpoint may be fine while the other is not."""
    with collector(200) as (address, _), collector(401) as (other, _):
        result = check(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=address, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=other)
    assert result.code == 1
    assert f"OTLP traces: {address} takes requests" in lines(result, "ok")
    assert lines(result, "FAIL") == [f"OTLP metrics: {other} answers HTTP 401"]


@pytest.mark.full
def test_wrong_otlp_settings(check):
    """OpenTelemetry's own variables are checked like ours."""
    result = check(VERL_OTEL_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_PROTOCOL="http/json")
    assert result.code == 1
    found = lines(result, "FAIL")
    assert [line.partition(": ")[0] for line in found] == ["OTLP traces", "OTLP metrics"]
    text = "OTEL_EXPORTER_OTLP_PROTOCOL='http/json': use one of http/protobuf, grpc"
    assert all(line.partition(": ")[2].startswith(text) for line in found)


@pytest.mark.full
def test_grpc_that_is_not_installed(check, good_site):
    """GRPC without its package says what to install."""
    good_site.write("grpc", "raise ImportError('no grpc here')\n")
    result = check(VERL_OTEL_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert result.code == 1
    text = "OTEL_EXPORTER_OTLP_PROTOCOL='grpc' needs: pip install 'verl-otel[grpc]'"
    assert lines(result, "FAIL") == [f"OTLP traces: {text}", f"OTLP metrics: {text}"]


@pytest.mark.full
def test_a_part_that_is_not_installed(check, good_site):
    """A dependency that is missing ends the check of what needs it, with what to do, and no other."""
    good_site.write("requests", "raise ImportError('no requests here')\n")
    result = check(VERL_OTEL_EXPORTERS="otlp,prometheus")
    assert result.code == 1, result.err
    assert lines(result, "FAIL") == ["OTLP: cannot be loaded: no requests here"]
    assert "-> reinstall verl-otel and its dependencies: pip install --force-reinstall verl-otel" in result.out
    assert [line for line in lines(result, "ok") if line.startswith("Prometheus: ")]


@pytest.mark.full
def test_half_an_installation(call, runs, monkeypatch):
    """Where our hooks cannot be loaded, which verl hides, the plug-in is a failure and the rest is still looked at."""
    monkeypatch.setitem(sys.modules, "verl_otel.integrations.verl", None)
    result = call("check")
    assert result.code == 1
    assert "plug-in: found, but it cannot be loaded: ModuleNotFoundError: " in result.out
    assert [line for line in lines(result, "ok") if line.startswith("files: ")]


@pytest.mark.full
def test_a_job_with_a_hook_and_variables_of_its_own(check):
    """What ``ray job submit`` has set stays, and the check says what follows from it."""
    job = {"runtime_env": {"worker_process_setup_hook": "mine.setup", "env_vars": {"OTEL_SERVICE_NAME": "x", "A": "b"}}}
    result = check(RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(job), OTEL_SERVICE_NAME="y")
    assert result.code == 0, result.out
    notes = lines(result, "note")
    assert "Ray setup hook: this job was submitted with a worker_process_setup_hook of its own, which stays" in notes
    assert "Ray environment: this job sets OTEL_SERVICE_NAME itself; its values stay" in notes


@pytest.mark.full
def test_a_job_that_says_nothing_we_know(check):
    """A job configuration that cannot be read is as good as none."""
    result = check(RAY_JOB_CONFIG_JSON_ENV_VAR='{"runtime_env": null}')
    assert result.code == 0, result.err
    assert not [line for line in lines(result, "note") if line.startswith("Ray setup hook")]


@pytest.mark.full
def test_somebody_elses_provider(check, good_site):
    """A tracer provider that is set first, or named in the environment, is said and stays."""
    text = "OpenTelemetry provider: opentelemetry.sdk.trace.TracerProvider is set first and stays"
    named = check(OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider")
    good_site.write("sitecustomize", SET_PROVIDER)
    for result in (named, check()):
        assert result.code == 0
        assert text in lines(result, "note")


@pytest.mark.full
@pytest.mark.parametrize(
    ("version", "symbol", "text"),
    [
        ("2.41.0", "_get_opentelemetry", "Ray carrier: Ray 2.41.0: works if verl is imported before ray.init"),
        (
            "2.60.0",
            "_is_tracing_enabled",
            "Ray carrier: Ray 2.60.0 has changed: spans of other processes have no parents",
        ),
    ],
)
def test_another_ray(shell, make_site, version, symbol, text):
    """A Ray of which the carrier knows less is said."""
    site = make_site(ray=version).lose("ray.util.tracing.tracing_helper", symbol)
    result = shell("check", PYTHONPATH=str(site.folder))
    assert result.code == 0, result.out
    assert any(line.startswith(text) for line in lines(result, "note"))


@pytest.mark.full
def test_a_ray_that_was_never_tried(shell, make_site):
    """A Ray outside the range that was tried is noted."""
    result = shell("check", PYTHONPATH=str(make_site(ray="3.0.0").folder))
    assert "Ray: 3.0.0 was not tried (tried: 2.41 to 2.60)" in lines(result, "note")


def test_an_environment_without_verl_and_ray(call, runs, monkeypatch):
    """Where neither is installed both are notes: loops of one's own are recorded without them."""

    def find(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", find)
    monkeypatch.setattr(source_inspection, "find_root", lambda _: None)
    result = call("check")
    assert result.code == 0
    assert "verl: not installed in this environment: code of your own is recorded" in lines(result, "note")
    assert "-> if the training uses verl, run this check in its environment" in result.out
    assert "Ray: not installed: processes are traced one by one" in lines(result, "note")
    assert not runs.exists()


def test_a_cluster_that_cannot_be_asked(call, runs, monkeypatch):
    """--cluster without Ray is a failure with advice."""
    monkeypatch.setitem(sys.modules, "ray", None)
    result = call("check", "--cluster")
    assert result.code == 1
    assert "cluster: Ray is not installed here" in lines(result, "FAIL")


def test_a_disk_that_is_full(call, runs, monkeypatch):
    """Less than one GiB of room is a failure with the room that is left."""
    usage = shutil.disk_usage("/")._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    result = call("check")
    assert result.code == 1
    assert f"files: {runs}: only 5 MiB free" in lines(result, "FAIL")
