# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The server of `/metrics`: its port, its formats, its end, and scrapes while points change."""

import socket
import threading
import time

import pytest
from exporting_records import RESOURCE, SCOPE, make_point
from exporting_sinks import scrape
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from verl_otel.exporting.fold import State
from verl_otel.exporting.prometheus import PrometheusExporter
from verl_otel.model import HistogramValue

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def samples_of(families):
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}


@pytest.fixture
def serve():
    """Serve a state on a port of the loopback; the server is closed when the test ends."""
    made = []

    def start(state, host="127.0.0.1", port=0, refresh=lambda: None, announce=None):
        exporter = PrometheusExporter(host, port, refresh, announce)
        exporter.open(RESOURCE, SCOPE, state)
        made.append(exporter)
        return exporter, f"http://{host}:{exporter.port}/metrics"

    yield start
    for exporter in made:
        exporter.close(time.monotonic())


def test_both_formats_are_served(serve):
    """A server answers in text, and in OpenMetrics to those who ask for it."""
    state = State()
    state.update([make_point("verl.training.steps", "counter", 3)])
    _, url = serve(state)
    assert "\nverl_training_steps_total 3.0\n" in scrape(url)
    assert scrape(url, OPENMETRICS).endswith("# EOF\n")


def test_a_scrape_asks_for_this_moment(serve, swallow):
    """Each scrape first brings the state up to date; when that fails it shows what there is."""
    state, calls = State(), []

    def refresh():
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("as told")
        state.update([make_point("verl.a", value=5.0)])

    _, url = serve(state, refresh=refresh)
    assert ["verl_a 5.0" in scrape(url) for _ in range(2)] == [True, True]
    assert len(calls) == 2


def test_a_port_is_announced_taken_and_freed(serve):
    """Port 0 becomes a free port on the asked host, which is announced; a second server cannot have it until it is closed."""
    heard = []
    exporter, url = serve(State(), announce=heard.append)
    assert heard == [exporter.port]
    assert exporter.port > 0
    second = PrometheusExporter("127.0.0.1", exporter.port, lambda: None, heard.append)
    with pytest.raises(OSError, match="in use"):
        second.open(RESOURCE, SCOPE, State())
    assert (second.port, heard) == (0, [exporter.port])
    with pytest.raises(OSError, match="refused"):  # 127.0.0.2 is loopback, too
        socket.create_connection(("127.0.0.2", exporter.port), timeout=5)
    port = exporter.port
    exporter.close(time.monotonic())
    exporter.close(time.monotonic())
    assert heard == [port]
    third, url = serve(State(), port=port)
    assert "target_info" in scrape(url)
    assert third.port == port


def test_a_server_that_cannot_be_announced_is_closed():
    """When announcing fails, and the exporter is therefore left out, nothing goes on listening."""
    ports = []

    def refuse(port):
        ports.append(port)
        raise PermissionError(13, "Permission denied")

    exporter = PrometheusExporter("127.0.0.1", 0, lambda: None, refuse)
    with pytest.raises(OSError, match="denied"):
        exporter.open(RESOURCE, SCOPE, State())
    server = exporter._server
    try:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", ports[0]), timeout=5).close()
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def test_scrapes_while_points_change(serve):
    """Four threads scrape while points change: every scrape parses, and no counter or histogram ever goes back."""
    state, done, problems, scrapes = State(), threading.Event(), [], []
    _, url = serve(state)

    def record():
        number = 0
        while not done.wait(0.0005):
            number += 1
            value = HistogramValue(number, number / 2, 0.5, 0.5, (1.0, 2.0), (number, 0, 0))
            state.update([make_point("verl.steps", "counter", number), make_point("verl.h", "histogram", value)])
            state.update([make_point(f"verl.new.{number % 20}", value=float(number))])

    def watch():
        before = {}
        for _ in range(15):
            try:
                found = samples_of(parse_openmetrics(scrape(url, OPENMETRICS)))
            except Exception as error:
                problems.append(repr(error))
                return
            scrapes.append(1)
            problems.extend(key for key, value in before.items() if found[key] < value)
            before = found

    recorder = threading.Thread(target=record)
    watchers = [threading.Thread(target=watch) for _ in range(4)]
    for thread in (recorder, *watchers):
        thread.start()
    for thread in watchers:
        thread.join()
    done.set()
    recorder.join()
    assert not problems
    assert len(scrapes) == 60
