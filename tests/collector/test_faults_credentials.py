# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Credentials that do not hold: expired certificates cost nothing but time, a wrong token costs what is refused, counted and said once."""

import re

import pytest

from tests.collector.steady import find_units
from tests.collector.tiers import variables_of


@pytest.mark.parametrize("expired", ["agent", "gateway"])
def test_a_certificate_expires_and_is_renewed(
    start_pipeline, start_prometheus, start_training, credentials, hasty, wait_for, expired
):
    """With an expired certificate of the agent or the gateway everything waits at the agent; renewed in its place, without a restart, all of it arrives.

    Certificates are read again every second here, and every ten as shipped.
    """
    folder = credentials()
    credentials(-1, names=(expired,), folder=folder)
    prometheus = start_prometheus("pushed_to")
    tiers = start_pipeline(
        "traces-to-file.yaml", "metrics-by-otlp.yaml", hasty.gateway, hasty.push,
        below=[hasty.agent], folder=folder, OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    training = start_training(tiers.agent.http_url)
    training.await_units(300)
    wait_for(
        lambda: "expired certificate" in tiers.agent.read_log() or "has expired" in tiers.agent.read_log(), 20, 0.3
    )
    assert tiers.gateway.spans() == []
    credentials(names=(expired,), folder=folder)
    training.await_units(100)
    said = training.end()
    assert said["dropped"] == {"spans": {}, "points": {}}
    wait_for(lambda: prometheus.total() == said["recorded"], 60, 0.3)
    wait_for(lambda: find_units(tiers.gateway.spans()) == set(range(1, said["recorded"] + 1)), 60, 0.3)


def test_an_agent_with_a_wrong_token(start_pipeline, start_prometheus, start_training, hasty, tmp_path, wait_for):
    """What the gateway refuses for the token is dropped and counted by the agent, to the span; with the right token in the file it goes on.

    What was counted is not lost: the next points say the whole.
    """
    prometheus = start_prometheus("pushed_to")
    wrong = tmp_path / "token"
    wrong.write_text("not-the-token")
    tiers = start_pipeline(
        "traces-to-file.yaml", "metrics-by-otlp.yaml", hasty.gateway, hasty.push,
        below=[hasty.agent], agent={"OTELCOL_TOKEN_FILE": wrong}, OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    training = start_training(tiers.agent.http_url)
    training.await_units(200)
    own = tiers.agent.own
    wait_for(lambda: own("otelcol_exporter_send_failed_spans") > 100, 30, 0.3)
    assert tiers.gateway.own("otelcol_receiver_accepted_spans") == 0
    wrong.write_bytes((tiers.credentials / "token").read_bytes())
    training.await_units(300)
    said = training.end()
    wait_for(lambda: prometheus.total() == said["recorded"], 60, 0.3)

    def accounted():
        lost, sent = own("otelcol_exporter_send_failed_spans"), own("otelcol_exporter_sent_spans")
        return lost + sent == 2 * said["recorded"] and len(tiers.gateway.spans()) == sent > 0

    wait_for(accounted, 30, 0.3)


def by_grpc(folder):
    """The variables of a training that sends straight to the gateway, with the certificate of an agent."""
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(folder / "ca.pem"),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(folder / "agent.pem"),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(folder / "agent.key"),
    }


def test_a_training_with_a_wrong_token(
    start_tier, start_prometheus, start_training, credentials, hasty, tmp_path, wait_for
):
    """A training that sends straight to the gateway and is refused says so once, and goes on; with the right token Prometheus knows the exact loss."""
    pytest.importorskip("grpc", reason="gRPC is an extra and is not installed")
    prometheus = start_prometheus("pushed_to")
    folder = credentials()
    gateway = start_tier(
        "gateway", ["gateway.yaml", "traces-to-file.yaml", "metrics-by-otlp.yaml", hasty.gateway, hasty.push],
        **variables_of(folder, "gateway"), OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    token = tmp_path / "token"
    token.write_text("not-the-token")
    token.chmod(0o600)
    training = start_training(f"https://{gateway.grpc_name}", **by_grpc(folder), VERL_OTEL_TOKEN_FILE=str(token))
    training.await_units(400)
    token.write_bytes((folder / "token").read_bytes())
    training.await_units(400)
    said = training.end()
    ((reason, lost),) = said["dropped"]["spans"].items()
    assert "UNAUTHENTICATED" in reason
    log = training.log.read_text()
    assert len(re.findall("UNAUTHENTICATED", log)) == 1
    assert "not-the-token" not in log
    wait_for(lambda: prometheus.total() == said["recorded"], 60, 0.3)
    wait_for(lambda: len(gateway.spans()) == 2 * said["recorded"] - lost, 30, 0.3)
    assert prometheus.total("verl_otel_spans_dropped_total") == lost


def test_the_certificate_of_a_training_is_renewed(start_tier, start_training, credentials, wait_for):
    """A training with an expired certificate of its own, over gRPC, goes on as soon as there is a new one in its place: nothing is lost."""
    pytest.importorskip("grpc", reason="gRPC is an extra and is not installed")
    folder = credentials()
    credentials(-1, names=("agent",), folder=folder)
    gateway = start_tier("gateway", ["gateway.yaml", "traces-to-file.yaml"], **variables_of(folder, "gateway"))
    training = start_training(
        f"https://{gateway.grpc_name}", **by_grpc(folder), VERL_OTEL_TOKEN_FILE=str(folder / "token")
    )
    wait_for(lambda: "trying again" in training.log.read_text(), 20, 0.1)
    assert gateway.spans() == []
    credentials(names=("agent",), folder=folder)
    training.await_units(100)
    said = training.end()
    assert said["dropped"] == {"spans": {}, "points": {}}
    wait_for(lambda: find_units(gateway.spans()) == set(range(1, said["recorded"] + 1)), 30, 0.3)
