# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The server that stands for a Collector: it takes everything and counts it, in a process of its own."""

import json
import os
import urllib.request

from benchmarks.sink import Sink


def post(url, body, kind):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, body, {"Content-Type": kind}), timeout=60) as answer:
        return answer.read()


def test_what_is_sent_is_counted():
    """Requests and bytes, of any path; an OTLP client gets an empty message, anybody else an empty object."""
    with Sink() as sink:
        assert post(f"{sink.url}/v1/traces", b"12345", "application/x-protobuf") == b""
        assert post(f"{sink.url}/api", b"{}", "application/json") == b"{}"
        assert sink.read() == {"requests": 2, "bytes": 7}
        assert sink._process.pid != os.getpid()


def test_it_answers_as_rl_insight_s_server_does():
    """Its actor asks where spans go, and is sent here."""
    with Sink() as sink:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{sink.url}/api/v1/services", timeout=60) as answer:
            assert json.load(answer) == {"status": "ok", "otlp_port": int(sink.url.rpartition(":")[2])}


def test_it_ends_when_it_is_closed():
    """Its process is gone."""
    with Sink() as sink:
        process = sink._process
        assert process.poll() is None
    assert process.poll() is not None
