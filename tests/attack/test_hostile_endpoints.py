# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP to endpoints that answer in every hostile way, many times, and in damaged ones: each request ends in time, none raises."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.fakes import hostile_endpoints as hostile
from tests.fakes.hostile_endpoints import Endpoint
from verl_otel.exporting.otlp.endpoint import load_endpoint
from verl_otel.exporting.otlp.transport import connect

pytestmark = pytest.mark.attack

ROUNDS = 15
DAMAGED = 1_500
TIMEOUT = 0.2
PATIENCE = 5.0
"""Seconds in which a request with this time-out is over on a busy machine."""
ANSWERS = (*hostile.REFUSING, *hostile.TAKING, *map(hostile.retry_after, hostile.RETRY_AFTER), hostile.redirect("/"))
PARTS = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 503 Busy\r\n", b"HTTP/1.1 199 x\r\n\r\n", b"HTTP/9.9 -1\r\n",
    b"HTTP/1.1 200\r\n", b"Content-Length: 10\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Content-Encoding: gzip\r\n", b"Connection: close\r\n",
    b"Connection: keep-alive\r\n", b"Retry-After: 1e309\r\n", b"Set-Cookie: a=b; Domain=x\r\n", b": \r\n", b" folded\r\n", b"\r\n", b"\0\xff\x80",
    b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"5;x=y\r\nhello\r\n", b"\n", b"\x0a\x04\x08\xff\xff\x7f", b"X: " + b"y" * 70_000 + b"\r\n",
)  # fmt: skip
PROCESS = """
import time, verl_otel
verl_otel.init(exporters="otlp", exit_timeout=1.0)
for number in range(200):
    with verl_otel.span("work"):
        pass
time.sleep(0.5)
begin = time.monotonic()
verl_otel.shutdown()
print(time.monotonic() - begin)
"""


def make(url, signal="traces"):
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": str(TIMEOUT)}
    return connect(load_endpoint(signal, None, environ))


def attempt(transport):
    """Send a request; returns what went wrong: nothing, if it ended in time with an answer."""
    begin = time.monotonic()
    try:
        answer = transport.send(b"a request" * 100, 60.0)
    except Exception as error:
        return [repr(error)]
    wrong = [] if 0 <= answer.wait <= 300 and answer.rejected >= 0 else [repr(answer)]
    seconds = time.monotonic() - begin
    return wrong if seconds < PATIENCE else [*wrong, f"{seconds:.1f} s"]


@pytest.fixture
def stays_small():
    """Threads and file descriptors of this process are as many at the end as at the beginning."""
    before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert threading.active_count() <= before[0] + 1
    assert len(list(Path("/proc/self/fd").iterdir())) <= before[1] + 4


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_every_hostile_answer_many_times(record_property, stays_small, signal):
    """Each hostile endpoint is asked again and again over one transport, which works with a good one afterwards."""
    failures, tried = [], 0
    for answer in ANSWERS:
        with Endpoint(answer) as endpoint:
            transport = make(endpoint.url, signal)
            for _ in range(ROUNDS):
                tried += 1
                failures += [(answer.__name__, wrong) for wrong in attempt(transport)]
            transport.close()
    record_property("attack_counts", ("hostile OTLP answers", tried, len(failures)))
    assert not failures


def test_damaged_answers(record_property, stays_small):
    """Answers made of parts of HTTP in any order, in pieces of any size, over connections that are kept."""
    draw = random.Random(14)

    def answer(connection, stopped):
        text = b"".join(draw.choices(PARTS, k=draw.randrange(1, 9)))
        if draw.random() < 0.5:
            text = PARTS[0] + text
        for at in range(0, len(text), size := draw.choice((7, 1_000, 100_000))):
            connection.sendall(text[at : at + size])
            if at > 300 * size:
                return

    failures = []
    with Endpoint(answer) as endpoint:
        transport = make(endpoint.url)
        for _ in range(DAMAGED):
            failures += attempt(transport)
        transport.close()
    record_property("attack_counts", ("damaged OTLP answers", DAMAGED, len(failures)))
    assert not failures


def test_exits_beside_hostile_endpoints(record_property):
    """A process ends within its exit time-out, whatever its endpoint does."""
    failures = []
    for answer in hostile.REFUSING:
        with Endpoint(answer) as endpoint:
            inherited = inherit("PYTEST", "OTEL", "VERL")
            done = subprocess.run(
                [sys.executable, "-c", PROCESS],
                env={**inherited, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint.url},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        if done.returncode or float(done.stdout) > PATIENCE:
            failures.append((answer.__name__, done.returncode, done.stdout, done.stderr[-500:]))
    record_property("attack_counts", ("exits beside hostile endpoints", len(hostile.REFUSING), len(failures)))
    assert not failures
