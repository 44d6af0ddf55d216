# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Records of the run log in OTLP, parsed by OpenTelemetry's own messages."""

import math

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE
from verl_otel.exporting.otlp.protobuf import encode_logs
from verl_otel.model import LogRecord
from verl_otel.semconv import logs


def parse(*records):
    message = ExportLogsServiceRequest.FromString(encode_logs(RESOURCE, SCOPE, records))
    (resource,) = message.resource_logs
    (scope,) = resource.scope_logs
    assert scope.scope.name == SCOPE.name
    return list(scope.log_records)


def values(record):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in record.attributes}


def test_a_record_is_an_event():
    """Name, severity, time, ids and attributes under the name of the event."""
    fields = {"reward_mean": 0.25, "samples": 8, "kl": math.inf, "phase": "gen"}
    (record,) = parse(LogRecord(NOW, logs.WARNING, "rollout", 4, fields, 0xAB, 0xCD))
    if "event_name" in record.DESCRIPTOR.fields_by_name:  # the lowest version of the messages does not know it
        assert record.event_name == "verl.rollout"
    assert (record.severity_number, record.severity_text) == (13, "WARN")
    assert (record.time_unix_nano, record.trace_id.hex(), record.span_id.hex()) == (NOW, f"{0xAB:032x}", f"{0xCD:016x}")
    assert record.flags == 1
    assert record.observed_time_unix_nano > 0
    assert values(record) == {
        "verl.rollout.reward_mean": 0.25,
        "verl.rollout.samples": 8,
        "verl.rollout.kl": math.inf,
        "verl.phase": "gen",
        "verl.step.number": 4,
    }


def test_a_message_is_the_body():
    """A message of Python's logging is the body; attributes of the conventions keep their names; without a span there are no ids."""
    fields = {"logger": "x", "message": "queue is full", "code.line.number": 3, "exception.type": "KeyError"}
    (record,) = parse(LogRecord(NOW, logs.CRITICAL, "log", None, fields))
    assert (record.body.string_value, record.severity_text, record.trace_id) == ("queue is full", "FATAL", b"")
    assert values(record) == {"verl.log.logger": "x", "code.line.number": 3, "exception.type": "KeyError"}
