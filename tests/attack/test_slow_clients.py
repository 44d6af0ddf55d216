# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Three hundred clients that occupy ``/metrics`` and ``discover --serve``, and floods of scrapes: Prometheus is answered, the process stays small."""

import contextlib
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.fakes.slow_clients import SlowClients, Usage

pytestmark = pytest.mark.attack

CLIENTS = 300
SECONDS = 20.0
PATIENCE = 8.0
"""Seconds for an answer on a busy machine; Prometheus waits for 10."""
CPU_SHARE = 0.6
"""Of one core, for scrapes without a pause: answers have a fifth, the rest is connections."""
METRICS = """
import sys
import verl_otel
from verl_otel import session
verl_otel.init(exporters="prometheus", prometheus_host=sys.argv[1])
for number in range(300):
    with verl_otel.span(f"work {number}"):
        pass
session.flush()
print(f"http://{sys.argv[1]}:{session.current().exporters[0].port}/metrics", flush=True)
sys.stdin.read()
verl_otel.shutdown()
"""


@contextlib.contextmanager
def process(command, tmp_path):
    """Start a server; yields its process and what it prints first."""
    inherited = inherit("PYTEST", "OTEL", "VERL")
    started = subprocess.Popen(
        list(map(str, command)),
        env={**inherited, "VERL_OTEL_RUN_DIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started, started.stdout.readline()
    finally:
        started.terminate()
        started.communicate(timeout=30)


@contextlib.contextmanager
def serve(kind, tmp_path, certificates):
    """Serve; yields the process, a URL and the context to ask with."""
    if kind.startswith("metrics"):
        host = "[::1]" if kind.endswith("ipv6") else "127.0.0.1"
        with process([sys.executable, "-c", METRICS, host], tmp_path) as (started, line):
            yield started, line.strip(), None
        return
    command = [Path(sys.executable).with_name("verl-otel"), "discover", "--serve", "--local", "--port", 0]
    context = None
    if kind.endswith("https"):
        certificate, key = certificates("server")
        context = ssl.create_default_context(cafile=certificate)
        command += ["--tls-cert", certificate, "--tls-key", key]
    with process(command, tmp_path) as (started, line):
        yield started, line.split()[4], context


def ask(url, context):
    """Return the seconds until an answer; None without one."""
    handlers = [urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])]
    begin = time.monotonic()
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=20) as answer:
            answer.read()
    except OSError:
        return None
    return time.monotonic() - begin


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


KINDS = ("metrics", "metrics-ipv6", "discover", "discover-https")


@pytest.mark.parametrize("kind", KINDS)
def test_slow_clients(record_property, tmp_path, certificates, kind):
    """Beside slow clients of every kind that come back at once each request is answered, with few threads and descriptors."""
    answers = []
    with serve(kind, tmp_path, certificates) as (started, url, context):
        usage = Usage(started.pid)
        with SlowClients(url, CLIENTS, byte_seconds=0.3) as clients:
            clients.wait_until_connected(60)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                answers.append(ask(url, context))
                usage.assert_small()
                time.sleep(0.1)
    failed = [seconds for seconds in answers if seconds is None or seconds > PATIENCE]
    record_property("attack_counts", ("connections of slow clients", clients.connections, 0))
    record_property("attack_counts", ("requests beside slow clients", len(answers), len(failed)))
    assert not failed


@pytest.mark.parametrize("kind", KINDS[:1] + KINDS[2:])
def test_a_flood_of_requests(record_property, tmp_path, certificates, kind):
    """Requests without a pause from ten clients cost a bounded share of a core, and each is answered."""
    answers = []
    with serve(kind, tmp_path, certificates) as (started, url, context):
        usage = Usage(started.pid)
        end = time.monotonic() + SECONDS / 2

        def flood():
            while time.monotonic() < end:
                answers.append(ask(url, context))

        threads = [threading.Thread(target=flood) for _ in range(10)]
        before, begin = cpu_seconds(started.pid), time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        share = (cpu_seconds(started.pid) - before) / (time.monotonic() - begin)
        usage.assert_small()
    failed = [seconds for seconds in answers if seconds is None or seconds > PATIENCE]
    record_property("attack_counts", ("requests without a pause", len(answers), len(failed)))
    print(f"{kind}: {len(answers)} requests, {share:.0%} of a core")
    assert not failed
    assert share < CPU_SHARE
