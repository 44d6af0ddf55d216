# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests know of the trajectories that they send: which traces have to be kept, computed from what was recorded."""

from collections import defaultdict


def is_drawn(trace_id, percent):
    """Whether the share falls on a trace: FNV-1a (64 bits) of salt and id, as Fowler, Noll and Vo wrote it down."""
    hashed = 0xCBF29CE484222325
    for byte in b"default-hash-seed" + bytes.fromhex(trace_id):
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return hashed <= 2**64 * percent / 100


def group(spans):
    """Return the spans of every trace: trace id to span id to the span."""
    traces = defaultdict(dict)
    for trace_id, span_id, span in spans:
        traces[trace_id][span_id] = span
    return traces


def is_kept(trace_id, spans, slow_seconds, percent):
    """Whether a trace has to be kept, by what its processes wrote into their own files."""
    return any(
        span.get("traceState") == "verl=s"
        or span.get("status", {}).get("code") == 2
        or {"key": "verl.sampling.keep", "value": {"boolValue": True}} in span["attributes"]
        or (
            span["name"] == "verl.trajectory"
            and int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) >= slow_seconds * 1e9
        )
        for span in spans
    ) or is_drawn(trace_id, percent)
