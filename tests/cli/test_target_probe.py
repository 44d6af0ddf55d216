# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The check of one target of ``verl-otel discover``: one total time and a number of bytes, whatever the target answers."""

import time

from tests.fakes.hostile_endpoints import Endpoint, redirect
from verl_otel.cli import discover

SECONDS = 0.5
ROOM = 4.0
"""Seconds that a busy machine may add."""


def probe(address):
    """Return the answer of a target, and assert that its time was kept."""
    begin = time.monotonic()
    answer = discover.probe({"targets": [address], "labels": {}}, SECONDS)
    assert time.monotonic() - begin < SECONDS + ROOM
    return answer


def endless_metrics(connection, stopped):
    """A page of metrics without an end, as fast as it is taken."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stopped.is_set():
        connection.sendall(b"up 1\n" * 10_000)


def test_of_a_page_without_an_end_the_beginning_is_read(monkeypatch):
    """Not more than the first bytes count."""
    monkeypatch.setattr(discover, "MAX_BYTES", 40_000)
    with Endpoint(endless_metrics) as endpoint:
        answer = discover.probe({"targets": [endpoint.url.removeprefix("http://")], "labels": {}}, 30)
    assert answer.state == "ok"
    assert 0 < int(answer.text.split()[0]) <= discover.MAX_BYTES // len(b"up 1\n") + 1


def test_a_redirect_is_followed_within_the_same_limits():
    """VLLM sends from /metrics to /metrics/; a target that sends round in circles is named."""

    def page(connection, stopped):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nup 1\n")

    with Endpoint(page) as there, Endpoint(redirect(f"{there.url}/metrics/")) as endpoint:
        assert probe(endpoint.url.removeprefix("http://")).text == "1 samples"
    with Endpoint(redirect("/metrics")) as endpoint:
        assert probe(endpoint.url.removeprefix("http://")).state in ("silent", "no metrics")
    with Endpoint(redirect("file:///etc/passwd")) as endpoint:
        assert probe(endpoint.url.removeprefix("http://")).state in ("silent", "no metrics")
