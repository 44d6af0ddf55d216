# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The file exporter under two threads, with the user's own metrics, and with what may go wrong."""

import base64
import json
import os
import threading
import time

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE, make_batch, make_open, make_point
from tests.exporting.exporting_files import span_ids, values
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.files import FileExporter
from verl_otel.model import Batch


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def exporter(folder):
    """A file exporter that rotates after every write."""
    made = FileExporter(folder, max_bytes=1, max_files=100)
    made.open(RESOURCE, SCOPE, MetricState())
    yield made
    made._traces.close()
    made._metrics.close()


def user_message():
    """Return a user's metrics as his SDK encodes them, with an exemplar."""
    message = ExportMetricsServiceRequest()
    metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name="user.latency", unit="s")
    metric.histogram.aggregation_temporality = 2
    point = metric.histogram.data_points.add(
        time_unix_nano=NOW, count=1, sum=float("nan"), explicit_bounds=[1.0], bucket_counts=[1, 0]
    )
    point.attributes.add(key="traceId").value.string_value = "a label that is called like an id"
    exemplar = point.exemplars.add(as_double=0.5, time_unix_nano=NOW)
    exemplar.trace_id, exemplar.span_id = (0xABC).to_bytes(16, "big"), (0xDEF).to_bytes(8, "big")
    return message


def test_a_users_metrics_are_a_line_of_otlp(exporter, folder):
    """The metrics of the user's own instruments are a line of OTLP/JSON: enums are numbers, exemplar ids hexadecimal."""
    message = user_message()
    exporter.consume_metrics(message.SerializeToString())
    exporter.poll()
    (path,) = folder.glob("metrics-*")
    found = json.loads(path.read_bytes(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (metric,) = found["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    (point,) = metric["histogram"]["dataPoints"]
    assert metric["histogram"]["aggregationTemporality"] == 2
    (exemplar,) = point["exemplars"]
    assert (exemplar["traceId"], exemplar["spanId"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    for key in ("traceId", "spanId"):
        exemplar[key] = base64.b64encode(bytes.fromhex(exemplar[key])).decode()
    assert str(json_format.ParseDict(found, ExportMetricsServiceRequest())) == str(message)


def test_only_the_newest_of_a_users_metrics_wait(exporter, folder):
    """A user's metrics that wait are bounded: they are cumulative, and the newest message says it all."""
    for number in range(100):
        message = user_message()
        message.resource_metrics[0].scope_metrics[0].metrics[0].name = f"user.{number}"
        exporter.consume_metrics(message.SerializeToString())
    exporter.poll()
    (path,) = folder.glob("metrics-*")
    (line,) = path.read_bytes().splitlines()
    assert b'"user.99"' in line


@pytest.mark.full
def test_a_flush_while_the_drain_thread_writes_loses_nothing(exporter, folder, monkeypatch):
    """A flush on the trainer's thread while the drain thread is in the middle of a write loses no span."""
    exporter.consume(make_batch(*range(1, 301)))
    write, flusher = os.write, threading.Thread(target=lambda: exporter.flush(time.monotonic() + 5))

    def slow_write(handle, data):
        if not flusher.ident:
            flusher.start()
            flusher.join(0.5)  # what the other thread can do meanwhile, it does
        return write(handle, data)

    monkeypatch.setattr(os, "write", slow_write)
    exporter.poll()
    flusher.join()
    assert exporter.dropped("spans") == {}
    assert sorted(span_ids(folder)) == list(range(1, 301))


@pytest.mark.full
def test_a_close_while_another_thread_writes_leaves_it_its_file(exporter, folder, monkeypatch):
    """An exit whose time is up while a slow disk is written to does not close the file under the writer's hands."""
    exporter.consume(make_batch(1, 2))
    write, closer = os.write, threading.Thread(target=lambda: exporter.close(time.monotonic()))

    def slow_write(handle, data):
        written = write(handle, data[:10])
        if not closer.ident:
            closer.start()
            closer.join()
        return written

    monkeypatch.setattr(os, "write", slow_write)
    exporter.poll()
    assert exporter.dropped("spans") == {}
    assert span_ids(folder) == [1, 2]


def test_a_span_that_cannot_be_encoded_costs_itself_only(exporter, folder, swallow):
    """A span whose attributes cannot be encoded is dropped and counted; the others of the batch are written."""

    class Bad:
        def __str__(self):
            raise RuntimeError("as told")

    batch = make_batch(1, 2, 3)
    bad = batch.spans[1]._replace(attributes={"bad": Bad()})
    exporter.consume(batch._replace(spans=(batch.spans[0], bad, batch.spans[2])))
    exporter.poll()
    assert span_ids(folder) == [1, 3]
    assert sum(exporter.dropped("spans").values()) == 1


def test_an_open_file_that_cannot_be_written_is_said(exporter, folder, caplog):
    """A run that has only open spans and cannot write them says so once."""
    folder.write_text("a file in the way")
    exporter.consume(Batch(0, open_spans=(make_open(1),)))
    exporter.poll()
    exporter.poll()
    assert len(caplog.records) == 1


def test_points_that_are_written_later_are_not_dropped(tmp_path):
    """Points that could not be written, and are written with the next tick, are not counted as dropped."""
    obstacle = tmp_path / "run"
    obstacle.write_text("a file in the way")
    exporter, state = FileExporter(obstacle), MetricState()
    exporter.open(RESOURCE, SCOPE, state)
    state.update([make_point()])
    for _ in range(3):
        exporter.poll()
    obstacle.unlink()
    exporter.poll()
    exporter._metrics.close()
    assert values(obstacle) == [("verl.test", 1.0)]
    assert exporter.dropped("points") == {}
