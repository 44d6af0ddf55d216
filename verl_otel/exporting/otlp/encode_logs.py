# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Records of the run log as OTLP bytes (``opentelemetry.proto.logs.v1``): events with severity, attributes, trace and span id."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Final

from verl_otel.exporting.otlp.encode_metrics import make_request
from verl_otel.exporting.otlp.protobuf import any_value, field, key_values, text, varint
from verl_otel.model import SAMPLED, LogRecord, Resource, Scope
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs

_fixed64 = struct.Struct("<Q").pack
_fixed32 = struct.Struct("<I").pack
_MESSAGE: Final = "message"


def encode_logs(resource: Resource, scope: Scope, records: Iterable[LogRecord]) -> bytes:
    """Return an ``ExportLogsServiceRequest``.

    Args:
        resource: The sender.
        scope: The scope of all records.
        records: The records.
    """
    observed = time.time_ns()
    return make_request(resource, {scope: [field(2, _encode(record, observed)) for record in records]})


def _encode(record: LogRecord, observed: int) -> bytes:
    name = logs.EVENT_PREFIX + record.scope
    attributes = {_attribute(name, key): value for key, value in record.fields.items() if key != _MESSAGE}
    if record.step is not None:
        attributes[attr.STEP_NUMBER] = record.step
    out = b"\x09" + _fixed64(record.time_ns) + b"\x59" + _fixed64(observed) + b"\x10" + varint(record.level)
    out += field(3, text(_SEVERITY.get(record.level, "INFO")))
    if _MESSAGE in record.fields:
        out += field(5, any_value(record.fields[_MESSAGE]))
    out += key_values(6, attributes.items())
    if record.trace_id:
        out += b"\x45" + _fixed32(SAMPLED)
        out += field(9, record.trace_id.to_bytes(16, "big")) + field(10, record.span_id.to_bytes(8, "big"))
    return out + field(12, text(name))


def _attribute(name: str, key: str) -> str:
    """Return the attribute of a field: names of the conventions stay, the others get the name of the event."""
    if key == "phase":
        return attr.PHASE
    return key if key.startswith(("code.", "exception.", "error.")) else f"{name}.{key}"


_SEVERITY: Final = {**logs.NAMES, logs.WARNING: "WARN", logs.CRITICAL: "FATAL"}
"""Short names of severities, as OpenTelemetry has them."""
