# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP exporter by signal: records of the run log arrive, large spans share no request, and a signal without an endpoint is not sent."""

import logging
import time
from collections import Counter

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE, make_batch, make_point, make_span
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.otlp.exporter import MAX_MESSAGES, OtlpExporter
from verl_otel.model import LogRecord, WeighedAttributes
from verl_otel.semconv import logs


def log_record(number):
    return LogRecord(NOW, logs.INFO, "rollout", number, {"reward_mean": 0.5}, 0xAB, 0xCD)


def test_the_run_log_arrives(sink, otlp):
    """Records of the run log are sent to ``/v1/logs``, each once."""
    exporter, _ = otlp(sink.url)
    exporter.consume_logs([log_record(number) for number in range(600)])
    exporter.close(time.monotonic() + 60)
    messages = [ExportLogsServiceRequest.FromString(request.body) for request in sink.of("logs")]
    groups = [group for message in messages for group in message.resource_logs]  # waiting requests are joined
    records = [record for group in groups for record in group.scope_logs[0].log_records]
    assert len(records) == 600
    if "event_name" in records[0].DESCRIPTOR.fields_by_name:  # the lowest version of the messages does not know it
        assert {record.event_name for record in records} == {"verl.rollout"}
    assert exporter.dropped("logs") == {}


def test_an_endpoint_without_logs(sink, otlp, caplog, wait_for):
    """An endpoint that has no place for logs is asked once, and still gets spans; the log says so in one line."""
    sink.answers["logs"] = (404, {}, b"")
    exporter, _ = otlp(sink.url)
    exporter.consume_logs([log_record(1)])
    wait_for(lambda: sink.of("logs"))
    wait_for(lambda: "logs" not in exporter._sent)
    exporter.consume_logs([log_record(2)])
    exporter.consume(make_batch(1))
    exporter.close(time.monotonic() + 60)
    assert len(sink.of("logs")) == 1
    assert sink.span_ids() == Counter([1])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.full
def test_large_spans_share_no_request(sink, otlp, wait_for):
    """Spans that are large go in requests that a Collector takes, in their order and once each."""
    text = "x" * 200_000
    large = [make_span(number, attributes=WeighedAttributes({"key": text}, len(text))) for number in range(1, 31)]
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(100, 101)._replace(spans=(*make_batch(100, 101).spans, *large)))
    wait_for(lambda: len(sink.span_ids()) == 32)
    exporter.close(time.monotonic() + 20)
    assert sink.span_ids() == Counter([100, 101, *range(1, 31)])
    assert max(message.ByteSize() for message in sink.messages("traces")) < 2 << 20
    assert exporter.dropped("spans") == {}


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_only_the_signal_with_an_endpoint_is_sent(sink, monkeypatch, caplog, signal):
    """The flush ends, the other signal is neither sent nor counted as lost, and no line says that a server is missing."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", f"{sink.url}/v1/{signal}")
    exporter, state = OtlpExporter(), MetricState()
    exporter.open(RESOURCE, SCOPE, state)
    state.update((make_point(),))
    exporter.consume(make_batch(1, 2))
    if signal == "traces":
        for _ in range(MAX_MESSAGES + 1):
            exporter.consume_read(b"")
    begin = time.monotonic()
    exporter.close(begin + 20)
    assert time.monotonic() - begin < 10
    assert {request.signal for request in sink.requests} == {signal}
    assert (exporter.dropped("spans"), exporter.dropped("points")) == ({}, {})
    assert "cannot reach" not in caplog.text
