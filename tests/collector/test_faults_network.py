# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A network between the tiers that stalls or forgets connections: everything arrives, later."""

import pytest

from tests.collector.steady import find_units


@pytest.fixture
def broken(start_pipeline, start_prometheus, start_proxy, start_training, wait_for, hasty):
    """Start a training, its agent, a proxy, a gateway and a Prometheus, with short pauses between retries; and check what arrived."""

    class Broken:
        def __init__(self, **variables):
            self.prometheus = start_prometheus("pushed_to")
            self.tiers = start_pipeline(
                "traces-to-file.yaml", "metrics-by-otlp.yaml", hasty.gateway, hasty.push,
                below=[hasty.agent], between=self.between, OTELCOL_PROMETHEUS_OTLP=self.prometheus.otlp_url, **variables,
            )  # fmt: skip
            self.training = start_training(self.tiers.agent.http_url)

        def between(self, name):
            self.proxy = start_proxy(f"127.0.0.1:{name.rpartition(':')[2]}")
            return f"localhost:{self.proxy.port}"

        def arrived(self):
            return find_units(self.tiers.gateway.spans())

        def await_everything(self, seconds=60):
            """End the training and wait until all of it is there."""
            said = self.training.end()
            assert said["dropped"] == {"spans": {}, "points": {}}
            query = self.prometheus.query
            wait_for(lambda: [value for _, value in query("user_things_total")] == [said["recorded"]], seconds, 0.3)
            wait_for(lambda: self.arrived() == set(range(1, said["recorded"] + 1)), seconds, 0.3)
            failed = (
                "enqueue_failed_spans",
                "enqueue_failed_metric_points",
                "send_failed_spans",
                "send_failed_metric_points",
            )
            tiers = self.tiers.agent, self.tiers.gateway
            assert [each.own(f"otelcol_exporter_{name}") for each in tiers for name in failed] == [0] * 8

    return Broken


def test_a_network_that_stalls(broken, wait_for):
    """The network between agent and gateway forwards nothing for longer than a request may take, and then goes on: nothing is lost."""
    bed = broken()
    wait_for(bed.arrived, 20, 0.2)
    bed.proxy.stall()
    bed.training.go_on(12)
    bed.proxy.resume()
    bed.training.await_units(100)
    bed.await_everything()


def test_connections_that_the_network_forgets(broken, wait_for):
    """What stood between the tiers forgets their connections, without a word to either; new ones are made in time, and nothing is lost."""
    bed = broken()
    wait_for(bed.arrived, 20, 0.2)
    bed.proxy.forget()
    bed.training.await_units(200)
    bed.await_everything()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_training_whose_connection_is_forgotten(start_tier, start_training, start_proxy, wait_for, protocol):
    """A connection of the training itself is forgotten: it is given up with the first request that gets no answer, and nothing is lost.

    A request may take 1 s here, and 10 s as a rule.
    """
    if protocol == "grpc":
        pytest.importorskip("grpc", reason="gRPC is an extra and is not installed")
    tier = start_tier("local", ["local.yaml", "traces-to-file.yaml"])
    proxy = start_proxy(tier.addresses["grpc" if protocol == "grpc" else "http"])
    url = f"http://127.0.0.1:{proxy.port}"
    training = start_training(url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    wait_for(lambda: find_units(tier.spans()), 20, 0.2)
    proxy.forget()
    training.await_units(200)
    said = training.end()
    assert said["dropped"] == {"spans": {}, "points": {}}
    wait_for(lambda: find_units(tier.spans()) == set(range(1, said["recorded"] + 1)), 30, 0.3)
