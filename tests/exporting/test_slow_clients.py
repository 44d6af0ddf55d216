# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that occupy ``/metrics`` take nothing from the training: no threads, few file descriptors, and no answer from Prometheus."""

import subprocess
import sys
import time

import pytest

from tests.fakes.exporting_sinks import scrape
from tests.fakes.slow_clients import KINDS, SlowClients, Usage

SERVE = """
import resource, sys, time
from prometheus_client.core import GaugeMetricFamily
from verl_otel.exporting.metric_state import MetricState
from verl_otel.exporting.prometheus import PrometheusExporter
from verl_otel.model import Resource, Scope

class Many:
    def collect(self):
        family = GaugeMetricFamily("verl_many", "many", labels=["number"])
        for number in range(20_000):
            family.add_metric([str(number)], number)
        yield family

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
exporter = PrometheusExporter("127.0.0.1", 0, lambda: None)
exporter.open(Resource({}), Scope("x", "1", ""), MetricState())
exporter.registry.register(Many())
print(exporter.port, flush=True)
for line in sys.stdin:
    try:
        with open("/dev/null"):
            print("opened", flush=True)
    except OSError as error:
        print(error, flush=True)
"""


@pytest.fixture
def training():
    """A process that serves a page of a megabyte and may have 128 file descriptors; it opens a file when asked to."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process, f"http://127.0.0.1:{int(process.stdout.readline())}/metrics"
    _, err = process.communicate(timeout=20)
    assert err == ""


@pytest.mark.parametrize("kinds", [(each,) for each in KINDS], ids=KINDS)
def test_slow_clients_take_no_threads_and_few_descriptors(training, kinds):
    """Beside 300 slow clients each scrape is answered, files can be opened, and threads and descriptors stay few."""
    process, url = training
    usage = Usage(process.pid)
    with SlowClients(url, 300, kinds) as clients:
        clients.wait_until_connected()
        for _ in range(3):
            begin = time.monotonic()
            assert "verl_many" in scrape(url)
            assert time.monotonic() - begin < 8
            usage.assert_small()
            process.stdin.write("open\n")
            process.stdin.flush()
            assert process.stdout.readline() == "opened\n"
