# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP requests by the thousand, faster than any SDK makes them: spans of trajectories as a real agent loop sends them."""

import time
import urllib.request

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
RESOURCE = {
    "service.name": "verl", "service.instance.id": "20261121-093000-a3f2/agent_loop-0", "service.namespace": "project/experiment",
    "verl.run.id": "20261121-093000-a3f2", "verl.role": "agent_loop", "verl.rank": "0", "verl.version": "0.9.1", "host.name": "node-17",
    "process.pid": "4711", "ray.job.id": "01000000", "ray.node.id": "f" * 56, "ray.actor.id": "a" * 32,
    "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.distro.name": "verl-otel",
}  # fmt: skip
ATTRIBUTES = {
    "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "Qwen/Qwen2.5-7B-Instruct",
    "gen_ai.usage.input_tokens": 1843, "gen_ai.usage.output_tokens": 512, "verl.llm.queue.seconds": 0.013,
    "verl.llm.prefill.seconds": 0.21, "verl.llm.decode.seconds": 7.9, "verl.replica.rank": 3, "verl.sample.uid": "5f0c" * 8,
}  # fmt: skip


def put(attributes, values):
    """Add values to OTLP attributes."""
    for key, value in values.items():
        field = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(attributes.add(key=key).value, field, value)


def make_request(trace_ids, number, *, root=False, attributes=ATTRIBUTES):
    """Return a request with one span of each trace, encoded.

    Args:
        trace_ids: Integers.
        number: Which span of the trace it is, from 1; becomes the span id. 1 is the parent of all others.
        root: Whether these are the roots.
        attributes: Of each span.
    """
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    put(group.resource.attributes, RESOURCE)
    spans = group.scope_spans.add()
    spans.scope.name, spans.scope.version = "verl_otel", "0.1.0"
    now = time.time_ns()
    for trace_id in trace_ids:
        span = spans.spans.add(
            trace_id=trace_id.to_bytes(16, "big"),
            span_id=(trace_id << 16 & 0xFFFFFFFFFFFF0000 | number).to_bytes(8, "big"),
            parent_span_id=b"" if root else (trace_id << 16 & 0xFFFFFFFFFFFF0000 | 1).to_bytes(8, "big"),
            name="verl.trajectory" if root else "chat Qwen/Qwen2.5-7B-Instruct",
            kind=1 if root else 3,
            start_time_unix_nano=now - 8_000_000_000,
            end_time_unix_nano=now,
            trace_state="verl=t",
        )
        put(span.attributes, attributes)
    return request.SerializeToString()


def post(url, body):
    """Send one request; returns the code of the answer."""
    request = urllib.request.Request(f"{url}/v1/traces", body, {"Content-Type": "application/x-protobuf"})
    try:
        with OPENER.open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
