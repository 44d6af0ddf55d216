# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that occupy ``/metrics`` take nothing from the training: no threads, few file descriptors, and no answer from Prometheus."""

import contextlib
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.exporting_sinks import scrape
from tests.fakes.slow_clients import KINDS, SlowClients, Usage
from verl_otel.exporting.http_messages import make_plain_reply
from verl_otel.exporting.http_server import MAX_CONNECTIONS, Server

pytestmark = pytest.mark.full

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


def measure_scrape(url):
    """Return the seconds until a scrape is answered."""
    begin = time.monotonic()
    assert "verl_many" in scrape(url)
    return time.monotonic() - begin


@pytest.mark.parametrize("kinds", [(each,) for each in KINDS], ids=KINDS)
def test_slow_clients_take_no_threads_and_few_descriptors(training, kinds):
    """Beside 300 slow clients each scrape is answered, files can be opened, and threads and descriptors stay few.

    A scrape waits at most for one answer to each of the connections that the server holds.
    """
    process, url = training
    usage = Usage(process.pid)
    alone = max(measure_scrape(url) for _ in range(3))
    with SlowClients(url, 300, kinds) as clients:
        clients.wait_until_connected()
        times = []
        for _ in range(3):
            times.append(measure_scrape(url))
            usage.assert_small()
            process.stdin.write("open\n")
            process.stdin.flush()
            assert process.stdout.readline() == "opened\n"
        assert statistics.median(times) < (MAX_CONNECTIONS + 1) * alone


def count_retransmits(connection):
    """Return how many TCP segments the kernel has sent again: ``tcpi_total_retrans`` of Linux's ``struct tcp_info``."""
    return struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]


def test_connections_wait_in_the_kernel_without_an_overflow():
    """While the server is busy 600 clients connect at once, without a packet sent again: an overflow would cost one client a second or more."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < 600:
        pytest.skip("net.core.somaxconn is smaller than the queue that is tested")
    server = Server(("127.0.0.1", 0), lambda request: make_plain_reply(200, ""))  # not started: it accepts nothing
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        clients = []
        for _ in range(600):
            clients.append(stack.enter_context(socket.socket()))
            clients[-1].settimeout(0.5)
            clients[-1].connect((server.host, server.port))
        assert [count_retransmits(client) for client in clients] == [0] * 600
