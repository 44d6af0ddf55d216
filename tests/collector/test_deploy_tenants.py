# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two tenants, each with its own agent, gateway and authority: nobody writes into the other's series or traces, whatever it says."""

import json
import time
from types import SimpleNamespace
from urllib.request import Request

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.collector.flood import OPENER, make_request, post, put
from tests.collector.tiers import COLLECTOR, fetch, variables_of

TENANT = COLLECTOR / "deploy" / "tenant.yaml"
CLAIMS = (
    "verl.tenant",
    "verl_tenant",
    "verl-tenant",
    "verl..tenant",
    "verl/_tenant",
    "verl\ntenant",
    "verlätenant",
    "verl  tenant",
)
"""What Prometheus would read as verl_tenant, or as good as that."""


@pytest.fixture
def tenants(start_tier, credentials):
    """Start a gateway and an agent of each tenant; every authority is another one."""
    made = {}
    for name in ("north", "south"):
        folder = credentials()
        gateway = start_tier(
            f"gateway-{name}",
            ["gateway.yaml", "traces-to-file.yaml", TENANT],
            **variables_of(folder, "gateway"),
            OTELCOL_TENANT=name,
            OTELCOL_WAITING_TRACES="500",
            OTELCOL_TRACE_PERCENT="0",
        )
        agent = start_tier(
            f"agent-{name}",
            ["agent.yaml"],
            OTELCOL_GATEWAYS=f"[{gateway.grpc_name}]",
            OTELCOL_METRICS_GATEWAY=gateway.grpc_name,
            **variables_of(folder, "agent"),
        )
        made[name] = SimpleNamespace(gateway=gateway, agent=agent, credentials=folder)
    return made


def make_points(name, labels, resource):
    """Return a request with one point of a counter, which says of itself what it likes."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    put(
        group.resource.attributes,
        {"service.name": "verl", "service.instance.id": "r/trainer-0", "verl.run.id": "r", **resource},
    )
    metric = group.scope_metrics.add().metrics.add(name=name)
    metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    now = time.time_ns()
    put(metric.sum.data_points.add(as_int=1, start_time_unix_nano=now - 10**9, time_unix_nano=now).attributes, labels)
    return request.SerializeToString()


def send_points(tier, *arguments):
    headers = {"Content-Type": "application/x-protobuf"}
    request = Request(f"{tier.http_url}/v1/metrics", make_points(*arguments), headers)
    with OPENER.open(request) as answer:
        assert answer.status == 200


def read_labels(tier, name):
    """Return the labels of each series of a name that Prometheus would scrape."""
    page = fetch(f"http://{tier.addresses['metrics']}/metrics")
    samples = [each for family in text_string_to_metric_families(page) for each in family.samples]
    return [each.labels for each in samples if each.name == name]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_tenant_is_whose_certificate_it_is(tenants, wait_for, claim):
    """Whatever a process of south calls itself, in a point or in its resource, its series and its target_info are of south."""
    north, south = tenants["north"], tenants["south"]
    send_points(south.agent, "user.things", {claim: "north"}, {claim: "north"})
    (labels,) = wait_for(lambda: read_labels(south.gateway, "user_things_total"), 30, 0.1)
    assert labels["verl_tenant"] == "south"
    assert "north" not in labels.values()
    (info,) = read_labels(south.gateway, "target_info")
    assert info["verl_tenant"] == "south"
    assert "north" not in info.values()
    assert read_labels(north.gateway, "user_things_total") == []


def test_a_trace_is_of_the_tenant(tenants, wait_for):
    """A span that names another tenant, in itself or in its resource, arrives as the own one's."""
    south = tenants["south"].agent, tenants["south"].gateway
    body = make_request([7], 1, root=True, attributes={"verl.sampling.keep": True, "verl.tenant": "north"})
    assert post(south[0].http_url, body) == 200
    wait_for(south[1].spans, 30, 0.1)
    (group,) = [
        each for line in south[1].trace_file.read_text().splitlines() for each in json.loads(line)["resourceSpans"]
    ]
    resource = {each["key"]: each["value"] for each in group["resource"]["attributes"]}
    assert resource["verl.tenant"] == {"stringValue": "south"}
    (span,) = [span for scope in group["scopeSpans"] for span in scope["spans"]]
    assert "verl.tenant" not in {each["key"] for each in span["attributes"]}


def test_nobody_gets_into_the_gateway_of_another(tenants):
    """With the certificate of south, even with the token of north, the gateway of north does not speak; with its own it does."""
    north, south = (tenants[name].credentials for name in ("north", "south"))
    path = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

    def send(folder, token):
        files = [(folder / name).read_bytes() for name in ("agent.key", "agent.pem")]
        secured = grpc.ssl_channel_credentials((north / "ca.pem").read_bytes(), *files)
        with grpc.secure_channel(
            tenants["north"].gateway.grpc_name, secured, [("grpc.enable_http_proxy", 0)]
        ) as channel:
            headers = [("authorization", f"Bearer {(token / 'token').read_text()}")]
            channel.unary_unary(path)(make_points("stolen", {}, {}), metadata=headers, timeout=60)

    with pytest.raises(grpc.RpcError) as refused:
        send(south, north)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as refused:
        send(north, south)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    send(north, north)


def test_a_flood_of_one_leaves_the_other_alone(tenants, wait_for):
    """Of 2001 traces of south 500 may wait, the others go; what waits at north's gateway stays."""
    north, south = tenants["north"], tenants["south"]
    waiting = "otelcol_processor_tail_sampling_sampling_traces_on_memory"
    for number, tenant in ((1, north), (2, south)):
        assert post(tenant.agent.http_url, make_request([number], 2)) == 200
    wait_for(lambda: north.gateway.own(waiting) == 1, 30, 0.1)
    assert post(south.agent.http_url, make_request(range(100, 2100), 2)) == 200
    wait_for(lambda: south.gateway.own("otelcol_processor_tail_sampling_new_trace_id_received") >= 2001, 30, 0.1)
    wait_for(lambda: south.gateway.own(waiting) == 500, 30, 0.1)
    assert north.gateway.own(waiting) == 1
