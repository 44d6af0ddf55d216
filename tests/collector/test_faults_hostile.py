# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are malformed, oversized or hostile, between those of a well-behaved process: they cost themselves, and nobody crashes."""

import time
import urllib.error
import urllib.request

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.collector.flood import OPENER, RESOURCE, make_request, post, put
from tests.collector.tiers import fetch

MARKED = {"verl.sampling.keep": True}
NASTY = (
    "",
    " ",
    "\n",
    "a b",
    'q"',
    "\\",
    "ü",
    "\x00",
    "__name__",
    "le",
    "job",
    "instance",
    "9",
    "a.b",
    "a_b",
    "{}",
    "x" * 300,
)
"""Names of labels and values of labels."""


def send(url, path, body, **headers):
    """Send a body as it is; return the code of the answer, or 0 where the connection was closed."""
    request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/x-protobuf", **headers})
    try:
        with OPENER.open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, urllib.error.URLError):
        return 0


def make_points(points, name="user.things", kind="sum", resource=RESOURCE):
    """Return a request with a point for each (attributes, value)."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    put(group.resource.attributes, resource)
    metric = group.scope_metrics.add().metrics.add(name=name)
    if kind == "sum":
        metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    now = time.time_ns()
    for attributes, value in points:
        point = getattr(metric, kind).data_points.add(
            as_double=value, start_time_unix_nano=now - 10**10, time_unix_nano=now
        )
        put(point.attributes, attributes)
    return request.SerializeToString()


@pytest.fixture
def agent_and_gateway(start_pipeline):
    return start_pipeline("traces-to-file.yaml", OTELCOL_TRACE_PERCENT="0")


def assert_alive(tiers, wait_for, number):
    """A good request of each kind goes through both tiers."""
    url = tiers.agent.http_url
    assert post(url, make_request([number], 1, root=True, attributes=MARKED)) == 200
    assert send(url, "/v1/metrics", make_points([({"color": "red"}, number)])) == 200
    wanted = f"{number:032x}"
    wait_for(lambda: wanted in {trace_id for trace_id, _, _ in tiers.gateway.spans()}, 30, 0.2)

    def is_shown():
        families = text_string_to_metric_families(fetch(f"http://{tiers.gateway.addresses['metrics']}/metrics"))
        samples = [each for family in families for each in family.samples if each.name == "user_things_total"]
        return [each.value for each in samples if each.labels.get("color") == "red"] == [number]

    wait_for(is_shown, 30, 0.2)


@pytest.mark.parametrize("path", ["scrape", "push"])
def test_hostile_labels_cost_themselves(start_watched, wait_for, path):
    """Names and values that Prometheus cannot have, or more of them than it takes, leave the good series whole, those beside them in a request, too."""
    tiers = start_watched(path, "traces-to-file.yaml")
    prometheus = tiers.prometheus
    url = tiers.agent.http_url
    for number, name in enumerate(NASTY):
        send(url, "/v1/metrics", make_points([({name: name, "a.b": "1", "a_b": "2"}, 1.0)], f"nasty.{number}"))
        send(url, "/v1/metrics", make_points([({"color": name}, 1.0)], name))
    send(url, "/v1/metrics", make_points([({f"k{number}": "v" for number in range(10_000)}, 1.0)], "wide"))
    wide = {"service.name": "wide", "": "v", "{}": "v", **{f"k{number}": "v" * 10_000 for number in range(1000)}}
    send(url, "/v1/metrics", make_points([({}, 1.0)], "talkative", resource=wide))
    send(url, "/v1/metrics", make_points([({"color": "red"}, 1.0)], "user.things", "gauge"))
    for number in range(20):  # whatever they are batched with
        send(url, "/v1/metrics", make_points([({"color": "red"}, 1.0)], f"good.{number}"))
    wait_for(lambda: len(prometheus.query('{__name__=~"good_.*_total"}')) == 20, 30, 0.3)
    assert post(url, make_request([7], 1, root=True, attributes=MARKED)) == 200
    wait_for(tiers.gateway.spans, 30, 0.3)
    if path == "scrape":
        assert [value for _, value in prometheus.query('up{job="verl-by-otlp"}')] == [1]


def test_ten_thousand_values_of_a_label(agent_and_gateway, start_prometheus, wait_for):
    """A foreign process with 10,000 values of a label gets its series, and the others are not disturbed."""
    tiers = agent_and_gateway
    prometheus = start_prometheus("scraper", tier=tiers.gateway)
    for first in range(0, 10_000, 1000):
        points = [({"color": f"c{number}"}, 1.0) for number in range(first, first + 1000)]
        assert send(tiers.agent.http_url, "/v1/metrics", make_points(points)) == 200
    assert_alive(tiers, wait_for, 8)
    wait_for(lambda: [value for _, value in prometheus.query("count(user_things_total)")] == [10_001], 30, 0.3)
