# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The file exporter: every record once, in whole lines, whatever the disk does."""

from __future__ import annotations

import base64
import json
import logging
import os
import resource
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.builders.exporting_records import (
    NOW,
    RESOURCE,
    SCOPE,
    make_batch,
    make_histogram,
    make_open,
    make_point,
    make_span,
)
from tests.exporting.exporting_files import read_lines, span_ids, values
from verl_otel._internal.machine import identify_process
from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.run_files import Writers
from verl_otel.exporting import files
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.files import Downsampler, FileExporter
from verl_otel.model import Batch
from verl_otel.watchdog.overdue import read_rows


@pytest.fixture
def start(tmp_path):
    """Open a file exporter in a folder of the test; it is closed when the test ends."""
    made = []

    def make(*limits, folder=tmp_path / "run", **keywords):
        exporter, state = FileExporter(folder, *limits, **keywords), MetricState()
        exporter.open(RESOURCE, SCOPE, state)
        made.append(exporter)
        return exporter, state, folder

    yield make
    for exporter in made:
        exporter._traces.close()
        exporter._metrics.close()


@contextmanager
def file_size_limit(size):
    """Have the system refuse to let any file grow beyond a size: writes are cut there, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_everything_is_written_once(start):
    """Spans, points and open spans stand in three files that name role, host and process; each span once."""
    exporter, state, folder = start()
    state.update([make_point("verl.a", value=2.0), make_point("verl.h", "histogram", make_histogram(0.5))])
    exporter.consume(make_batch(1, 2, open_spans=(make_open(9),)))
    exporter.poll()
    exporter.consume(make_batch(3, open_spans=(make_open(9),)))
    exporter.poll()
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        f"{kind}-trainer-node-1-{identify_process()}-{os.getpid()}.jsonl" for kind in ("metrics", "open", "traces")
    ]
    assert span_ids(folder) == [1, 2, 3]
    assert span_ids(folder, "open") == [9]
    assert values(folder) == [("verl.a", 2.0)]


def test_points_are_written_when_they_change(start):
    """A series has a line whenever it changed, and none when it did not."""
    exporter, state, folder = start()
    for value in (1.0, 2.0):
        state.update([make_point(value=value)])
        exporter.consume(Batch(0))
        exporter.poll()
        exporter.poll()
    (path,) = folder.glob("metrics-*")
    assert values(folder) == [("verl.test", 1.0), ("verl.test", 2.0)]
    assert len(path.read_bytes().splitlines()) == 2


def test_many_spans_are_many_lines(start):
    """A thousand spans are split over lines that a reader can take one by one, none lost."""
    exporter, _, folder = start()
    exporter.consume(make_batch(*range(1, 1001)))
    exporter.poll()
    assert span_ids(folder) == list(range(1, 1001))
    (path,) = folder.glob("traces-*")
    assert len(path.read_bytes().splitlines()) == 4


@pytest.fixture
def poll_open(start):
    """Pass open spans to an exporter. Return their ids as both readers find them, with the number of rows in the last line."""
    exporter, _, folder = start()

    def poll(*rows):
        exporter.consume(Batch(0, open_spans=rows))
        exporter.poll()
        found = [row.span.span_id for row in run_files.read_open([folder], Writers(), [])]
        assert [int(row.span_id, 16) for path in folder.glob("open-*") for row in read_rows(path, "p")] == found
        lines, _ = read_lines(folder, "open")
        return found, sum(len(each["spans"]) for group in lines[-1]["resourceSpans"] for each in group["scopeSpans"])

    poll.folder = folder
    return poll


def test_what_has_changed_is_appended_to_the_open_file(poll_open):
    """A line has the rows that are new or were made again, and the ids of those that have ended; the file goes when nothing is open."""
    one, two, three, other = make_open(1), make_open(2), make_open(3), make_open(2)
    assert poll_open(one, two) == ([1, 2], 2)
    assert poll_open(one, two) == ([1, 2], 0)
    assert poll_open(two, three) == ([2, 3], 1)
    assert poll_open(other, three) == ([2, 3], 1)
    with pytest.raises(IndexError):
        poll_open()
    assert not list(poll_open.folder.glob("open-*"))
    assert poll_open(two) == ([2], 1)


def test_the_age_of_open_work_is_that_of_the_last_line(poll_open, monkeypatch):
    """A row that has not changed is as old as the file."""
    clock = SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: 100.0, time_ns=lambda: NOW)
    monkeypatch.setattr(files, "time", clock)
    row = make_open(1)._replace(start=95.0)
    poll_open(row)
    clock.time_ns = lambda: NOW + 3 * 10**9
    poll_open(row)
    (read,) = run_files.read_open([poll_open.folder], Writers(), [])
    assert (read.age, read.written_ns) == (8.0, NOW + 3 * 10**9)


def test_the_open_file_is_bounded(poll_open, monkeypatch):
    """A file that has grown to twice its rows is replaced by one line; a reader skips a last line that is half written."""
    monkeypatch.setattr(files, "OPEN_BYTES", 0)
    row, sizes = make_open(0), []
    for number in range(1, 40):
        assert poll_open(row, make_open(number))[0] == [0, number]
        (path,) = poll_open.folder.glob("open-*")
        sizes.append(path.stat().st_size)
    assert max(sizes) < 4 * sizes[0]
    with path.open("ab") as file:
        file.write(b'{"resourceSpans":[],"ended":["0000000000000000"]')
    assert [row.span_id for row in read_rows(path, "p")] == [f"{0:016x}", f"{39:016x}"]


def test_an_open_file_whose_line_was_cut_off_is_replaced(poll_open):
    """When there is room again the file has all rows."""
    one, two = make_open(1), make_open(2)
    poll_open(one)
    (path,) = poll_open.folder.glob("open-*")
    with file_size_limit(path.stat().st_size + 100):
        poll_open(one, two)
    assert poll_open(one, two) == ([1, 2], 2)
    assert len(path.read_bytes().splitlines()) == 1


def test_a_full_disk_costs_telemetry_only(start, caplog):
    """On a full disk spans are dropped and counted with one line in the log; when there is room again they are written."""
    exporter, _, folder = start()
    exporter.consume(make_batch(1))
    exporter.poll()
    (path,) = folder.glob("traces-*")
    with file_size_limit(path.stat().st_size + 100):
        for number in (2, 3):
            exporter.consume(make_batch(number))
            exporter.poll()
    exporter.consume(make_batch(4))
    exporter.poll()
    assert sum(exporter.dropped("spans").values()) == 2
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert span_ids(folder) == [1, 4]
    assert read_lines(folder, "traces")[1] == 1


def test_no_line_is_longer_than_what_is_read(tmp_path, monkeypatch):
    """Large spans are divided into more lines; one that fills a line by itself is counted as dropped."""
    monkeypatch.setattr(files, "MAX_LINE", 10_000)
    exporter = FileExporter(tmp_path)
    exporter.open(RESOURCE, SCOPE, MetricState())
    large = [make_span(number, attributes={"a": "x" * 1000}) for number in range(1, 31)]
    exporter.consume(Batch(NOW, (*large, make_span(99, attributes={"a": "x" * 20_000}))))
    exporter.poll()
    exporter.close(0.0)
    (path,) = tmp_path.glob("traces-*")
    lines = path.read_bytes().splitlines()
    assert max(map(len, lines)) <= 10_000
    assert len(span_ids(tmp_path)) == 30
    assert exporter.dropped("spans") == {"too large": 1}


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
            raise RuntimeError("planted")

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


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock, in seconds, as one entry of a list."""
    now = [1000.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])
    return now


def select(downsampler, *points):
    return [(point.instrument.name, point.value) for point in downsampler.select(points)]


def test_hardware_is_chosen_once_a_minute(clock):
    """The latest value of all its series together, at once with one that is new; others are chosen always, with every value, in their order."""
    downsampler = Downsampler()
    downsampler.add_metrics(Batch(0, asked=frozenset({"hw.power"})))
    points = [make_point("hw.power", "gauge", 1), make_point("verl.a", "gauge", 1), make_point("verl.a", "gauge", 2)]
    points += [make_point("hw.power", "gauge", 2)]
    assert select(downsampler, *points) == [("verl.a", 1), ("verl.a", 2), ("hw.power", 2)]
    clock[0] += files.SECONDS - 1
    assert select(downsampler, *points) == [("verl.a", 1), ("verl.a", 2)]
    clock[0] += 1
    assert ("hw.power", 2) in select(downsampler, *points)
    assert ("hw.power", 2) not in select(downsampler, *points)
    new = make_point("hw.power", "gauge", 7, labels=(("hw.id", "x"),))
    assert select(downsampler, new) == [("hw.power", 2), ("hw.power", 7)]
    clock[0] += files.SECONDS - 1
    assert select(downsampler, new) == []
    downsampler.release()
    assert select(downsampler) == [("hw.power", 7)]


def test_what_verl_otel_takes_is_chosen_once_a_minute_and_its_losses_always(clock):
    """An idle process writes little; what was lost is on the disk soon."""
    downsampler = Downsampler()
    points = [make_point("verl.otel.overhead", "counter", 1), make_point("verl.otel.spans.dropped", "counter", 1)]
    assert len(select(downsampler, *points)) == 2
    clock[0] += files.SECONDS - 1
    assert select(downsampler, *points) == [("verl.otel.spans.dropped", 1)]
    clock[0] += 1
    assert ("verl.otel.overhead", 1) in select(downsampler, *points)


def test_the_last_value_is_in_the_file(tmp_path, clock):
    """A file has the value of the beginning and that of the end, and others' of each time between."""
    exporter, state = FileExporter(tmp_path), MetricState()
    exporter.open(RESOURCE, SCOPE, state)
    for value in (1, 2, 3):
        points = (make_point("hw.power", "gauge", value), make_point("verl.a", "gauge", value))
        state.update(points, {"hw.power"})
        exporter.consume(Batch(0, points=points, asked=frozenset({"hw.power"})))
        exporter.poll()
    exporter.close(clock[0] + 5)
    found = {"hw.power": [], "verl.a": []}
    for line in next(tmp_path.glob("metrics-*")).read_text().splitlines():
        for metric in json.loads(line)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]:
            for point in metric["gauge"]["dataPoints"]:
                found[metric["name"]].append(float(point.get("asInt", point.get("asDouble"))))
    assert found["verl.a"] == [1, 2, 3]
    assert found["hw.power"] == [1, 3]
