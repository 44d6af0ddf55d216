# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the exporting tests: servers that stand for a Collector, and exporters that are closed at the end."""

import os
import socket
import time

import pytest

from tests.builders.exporting_records import RESOURCE, SCOPE
from tests.exporting.exporting_files import FullDisk
from tests.fakes.exporting_sinks import HttpSink
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.otlp import exporter as otlp_module
from verl_otel.exporting.otlp.exporter import OtlpExporter


@pytest.fixture(autouse=True)
def plain_network(monkeypatch):
    """Talk to the loopback directly, whatever proxies, passwords and certificates the machine has set."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "netrc", "ca_bundle")):
            monkeypatch.delenv(name)


@pytest.fixture
def sink():
    """A sink for OTLP over HTTP on a free port."""
    with HttpSink() as made:
        yield made


@pytest.fixture
def disk(monkeypatch):
    """The disk under `os.write`; without limits until the test sets them."""
    with monkeypatch.context() as patch:
        yield FullDisk(patch)


@pytest.fixture
def dead_url():
    """A URL on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: it stays free and refuses
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def otlp(monkeypatch):
    """Open an `OtlpExporter` that sends to a URL; it is stopped when the test ends."""
    made = []

    def start(url, **keywords):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        exporter, state = OtlpExporter(**keywords), MetricState()
        exporter.open(RESOURCE, SCOPE, state)
        made.append(exporter)
        return exporter, state

    yield start
    for exporter in made:
        exporter.close(time.monotonic() + 0.2)
    for exporter in made:
        exporter._thread.join(20)
        assert not exporter._thread.is_alive(), "the thread of an exporter did not end"


@pytest.fixture
def fast_retries(monkeypatch):
    """Retry after milliseconds instead of seconds."""
    monkeypatch.setattr(otlp_module, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(otlp_module, "LAST_RETRY", 0.1)
