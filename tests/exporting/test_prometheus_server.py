# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The server of `/metrics`: its port, its formats, its end, and scrapes while points change."""

import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.builders.exporting_records import RESOURCE, SCOPE, make_histogram, make_point
from tests.builders.processes import listening_hosts
from tests.fakes.exporting_sinks import scrape
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.prometheus import PrometheusExporter

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def samples_of(families):
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}


@pytest.fixture
def serve():
    """Serve a state on a port of the loopback; the server is closed when the test ends."""
    made = []

    def start(state, host="127.0.0.1", port=0, announce=None):
        exporter = PrometheusExporter(host, port, announce)
        exporter.open(RESOURCE, SCOPE, state)
        made.append(exporter)
        return exporter, f"http://{host}:{exporter.port}/metrics"

    yield start
    for exporter in made:
        exporter.close(time.monotonic())


def test_both_formats_are_served(serve):
    """A server answers in text, and in OpenMetrics to those who ask for it."""
    state = MetricState()
    state.update([make_point("verl.training.steps", "counter", 3)])
    _, url = serve(state)
    assert "\nverl_training_steps_total 3.0\n" in scrape(url)
    assert scrape(url, OPENMETRICS).endswith("# EOF\n")


def test_start_times_are_served_on_request(serve):
    """With ``created=1`` counters and histograms have their start times; without it there is no series for them, in either format."""
    state = MetricState()
    state.update(
        [
            make_point("verl.a", "counter", 1),
            make_point("verl.b"),
            make_point("verl.c", "histogram", make_histogram(0.5)),
        ]
    )
    _, url = serve(state)
    assert "_created" not in scrape(url) + scrape(url, OPENMETRICS) + scrape(f"{url}?created=0", OPENMETRICS)
    found = samples_of(parse_openmetrics(scrape(f"{url}?name=x&created=1", OPENMETRICS)))
    start = make_point("verl.a").start_ns / 1e9
    assert {key: value for key, value in found.items() if "_created" in key[0]} == {
        ("verl_a_created", ()): start,
        ("verl_c_created", ()): start,
    }


@pytest.mark.full
def test_a_port_is_announced_and_freed(serve):
    """Port 0 becomes a free port on the asked host, which is announced; it is free again when the server is closed."""
    heard = []
    exporter, url = serve(MetricState(), announce=heard.append)
    assert heard == [exporter.port]
    assert exporter.port > 0
    assert listening_hosts(exporter.port) == {"127.0.0.1"}
    port = exporter.port
    exporter.close(time.monotonic())
    exporter.close(time.monotonic())
    assert heard == [port]
    third, url = serve(MetricState(), port=port)
    assert "target_info" in scrape(url)
    assert third.port == port


def test_a_port_in_use_is_replaced_by_a_free_one(serve, caplog):
    """Of several servers with one port the first has it; each other takes a free one, announces it, and one line says so."""
    first, _ = serve(MetricState())
    heard = []
    others = [serve(MetricState(), port=first.port, announce=heard.append) for _ in range(2)]
    ports = [exporter.port for exporter, _ in others]
    assert heard == ports
    assert len({first.port, *ports}) == 3
    for port in ports:
        assert "target_info" in scrape(f"http://127.0.0.1:{port}/metrics")
    (line,) = [each.getMessage() for each in caplog.records]
    assert f"VERL_OTEL_PROMETHEUS_PORT={first.port} is in use" in line
    assert f"127.0.0.1:{ports[0]}" in line


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost"])
def test_other_hosts(serve, host):
    """IPv6, with and without brackets, and a name are bound and scraped."""
    exporter, _ = serve(MetricState(), host=host)
    assert "target_info" in scrape(f"http://{'localhost' if host == 'localhost' else '[::1]'}:{exporter.port}/metrics")


def test_a_server_that_cannot_be_announced_is_closed():
    """When announcing fails, and the exporter is therefore left out, nothing goes on listening."""
    ports = []

    def refuse(port):
        ports.append(port)
        raise PermissionError(13, "Permission denied")

    exporter = PrometheusExporter("127.0.0.1", 0, refuse)
    with pytest.raises(OSError, match="denied"):
        exporter.open(RESOURCE, SCOPE, MetricState())
    assert exporter.port == 0
    assert not listening_hosts(ports[0])
