# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the Collector lets become a label: the contract's, never ids, texts or other resource attributes, whoever sends them."""

import time
from urllib.request import Request

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import otlp_json
from tests.collector.flood import OPENER, make_request, post, put
from tests.collector.tiers import fetch
from tests.fakes.otlp_sink import Sink

RESOURCE = {
    "service.name": "verl",
    "service.instance.id": "r/trainer-0",
    "verl.role": "trainer",
    "verl.run.id": "r",
    "host.name": "h",
}
FORBIDDEN = (
    "request_id", "gen_ai.prompt.0.content", "gen_ai.response.id", "gen_ai.conversation.id", "session.id", "verl.sample.uid",
    "verl.step.number", "verl.rollout.index", "trajectory_id", "my.trace_id", "user.id", "url.full", "http.url", "sample.uuid",
)  # fmt: skip
ALLOWED = (
    "color",
    "verl.phase",
    "hw.id",
    "device",
    "gen_ai.request.model",
    "gen_ai.token.type",
    "verl.data.source",
    "error.type",
)


def send_counter(url, attributes, name="user.things"):
    """Send one point of a counter."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    put(group.resource.attributes, RESOURCE)
    metric = group.scope_metrics.add().metrics.add(name=name)
    metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    now = time.time_ns()
    point = metric.sum.data_points.add(as_int=1, start_time_unix_nano=now - 10**9, time_unix_nano=now)
    put(point.attributes, attributes)
    headers = {"Content-Type": "application/x-protobuf"}
    with OPENER.open(Request(f"{url}/v1/metrics", request.SerializeToString(), headers)) as answer:
        assert answer.status == 200


def send_log(url, attributes):
    """Send one record of a log."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    put(group.resource.attributes, RESOURCE)
    record = group.scope_logs.add().log_records.add(time_unix_nano=time.time_ns(), event_name="verl.rollout")
    put(record.attributes, attributes)
    headers = {"Content-Type": "application/x-protobuf"}
    with OPENER.open(Request(f"{url}/v1/logs", request.SerializeToString(), headers)) as answer:
        assert answer.status == 200


def read_page(tier, listener="metrics"):
    """Return the samples of the page that Prometheus scrapes: name to the labels of each series."""
    found = {}
    for family in text_string_to_metric_families(fetch(f"http://{tier.addresses[listener]}/metrics")):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_labels_are_those_of_the_contract(start_tier, wait_for):
    """A point with everything that must not be a label keeps what may be one; of the resource there are four labels."""
    tier = start_tier("local", ["local.yaml"])
    send_counter(tier.http_url, {**dict.fromkeys(FORBIDDEN, "x"), **dict.fromkeys(ALLOWED, "y")})
    page = wait_for(lambda: "user_things_total" in (found := read_page(tier)) and found, 20, 0.2)
    (labels,) = page["user_things_total"]
    base = {"job": "verl", "instance": "r/trainer-0", "verl_role": "trainer", "verl_run_id": "r"}
    assert labels == {**base, **{name.replace(".", "_"): "y" for name in ALLOWED}}
    assert page["target_info"][0]["host_name"] == "h"


def test_a_long_value_is_cut(start_tier, wait_for):
    """A label of any length arrives with 256 characters, which Prometheus accepts."""
    tier = start_tier("local", ["local.yaml"])
    send_counter(tier.http_url, {"text": "a" * 100_000})
    page = wait_for(lambda: "user_things_total" in (found := read_page(tier)) and found, 20, 0.2)
    assert page["user_things_total"][0]["text"] == "a" * 256


@pytest.mark.parametrize(("count", "kept"), [(10, 10), (1000, 128)])
def test_a_span_has_a_bounded_number_of_attributes(start_tier, wait_for, count, kept):
    """Of a thousand attributes 128 stay, each cut, and the mark that keeps the trace is among them."""
    tier = start_tier("local", ["local.yaml", "traces-to-file.yaml"], OTELCOL_TRACE_PERCENT="0")
    attributes = {f"k{number}": "a" * 5000 for number in range(count - 1)} | {"verl.sampling.keep": True}
    assert post(tier.http_url, make_request([7], 1, root=True, attributes=attributes)) == 200
    ((_, _, span),) = wait_for(tier.spans, 20, 0.2)
    assert len(span["attributes"]) == kept
    assert max(len(each["value"].get("stringValue", "")) for each in span["attributes"]) == 4096


TEXTS = ("gen_ai.prompt.0.content", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments")
LOGGED = {"verl.rollout.reward_mean": 0.5, "message": "a" * 5000, **dict.fromkeys(TEXTS, "a prompt")}


def read_logged(messages):
    """Return the attributes of each record of a log."""
    return [
        otlp_json.read_attributes(record["attributes"]) for each in messages for *_, record in otlp_json.each_log(each)
    ]


def test_a_log_has_no_texts_and_no_long_value(start_tier, wait_for):
    """What may hold a prompt or an answer is not written, and a long value is cut; the rest stays."""
    tier = start_tier("local", ["local.yaml"])
    send_log(tier.http_url, LOGGED)
    path = tier.folder / "queue" / "logs.jsonl"
    records = wait_for(lambda: path.exists() and read_logged(otlp_json.read_objects(path)), 20, 0.2)
    assert records == [{"verl.rollout.reward_mean": 0.5, "message": "a" * 4096}]


def test_a_log_in_a_store_has_no_texts_either(start_tier, wait_for):
    """With logs-by-otlp.yaml the same arrives in a store of OTLP logs, and no file is written."""
    with Sink() as store:
        tier = start_tier("local", ["local.yaml", "logs-by-otlp.yaml"], OTELCOL_LOG_STORE=store.endpoint)
        send_log(tier.http_url, LOGGED)
        wait_for(lambda: store.logs, 20, 0.2)
        records = read_logged(MessageToDict(request) for request in store.logs)
        assert records == [{"verl.rollout.reward_mean": 0.5, "message": "a" * 4096}]
        assert not (tier.folder / "queue" / "logs.jsonl").exists()


def test_span_metrics_are_of_the_users_own_spans(start_tier, wait_for):
    """With span-metrics.yaml a span of another scope is counted, before sampling; verl-otel's own are not."""
    tier = start_tier(
        "local",
        ["local.yaml", "traces-to-file.yaml", "span-metrics.yaml"],
        OTELCOL_TRACE_PERCENT="0",
        OTELCOL_SPAN_METRICS_FLUSH="1s",
    )
    assert post(tier.http_url, make_request([1, 2, 3], 1)) == 200
    body = make_request([4, 5], 1).replace(b"verl_otel", b"users_own")
    assert post(tier.http_url, body) == 200

    def both_are_counted():
        lines = fetch(f"http://{tier.addresses['tempo']}/metrics").splitlines()
        return [line.rpartition(" ")[2] for line in lines if line.startswith("spans_calls_total{")] == ["2"]

    wait_for(both_are_counted, 20, 0.2)
    (labels,) = read_page(tier, "tempo")["spans_calls_total"]
    assert (labels["job"], labels["verl_run_id"]) == ("verl", "20261121-093000-a3f2")
    assert "instance" not in labels
