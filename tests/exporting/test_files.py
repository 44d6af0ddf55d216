# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The file exporter: what it writes, and what happens when it cannot."""

import logging
import os
import resource
import threading
import time
from contextlib import contextmanager

import pytest

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
from verl_otel.exporting import files
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.files import FileExporter
from verl_otel.model import Batch, WeighedAttributes


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
    assert names == [f"{kind}-trainer-node-1-{os.getpid()}.jsonl" for kind in ("metrics", "open", "traces")]
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


@pytest.mark.full
def test_the_open_file_is_never_seen_half_written(start):
    """Somebody who reads the open-span file all the time sees one whole state after another."""
    exporter, _, folder = start()
    seen, done, problems = set(), threading.Event(), []

    def watch():
        while not done.is_set():
            for path in folder.glob("open-*.jsonl"):
                try:
                    found = span_ids(folder, "open")
                    seen.update(found)
                    if len(found) != 50:
                        problems.append(f"{path.name}: {len(found)} spans")
                except (ValueError, OSError) as error:
                    problems.append(repr(error))

    exporter.consume(Batch(0, open_spans=tuple(make_open(number) for number in range(1, 51))))
    exporter.poll()
    watcher = threading.Thread(target=watch)
    watcher.start()
    for round_ in range(150):
        exporter.consume(
            Batch(0, open_spans=tuple(make_open(100 * round_ + number, read_ns=round_) for number in range(1, 51)))
        )
        exporter.poll()
    done.set()
    watcher.join()
    assert not problems
    assert len(seen) > 50


def test_the_open_file_is_written_when_the_oldest_row_was_read_again(start):
    """A table whose rows were not read again is not written again; the file goes at once when nothing is open."""
    exporter, _, folder = start()

    def poll(*numbers, read_ns):
        exporter.consume(Batch(0, open_spans=tuple(make_open(number, read_ns=read_ns) for number in numbers)))
        exporter.poll()
        return span_ids(folder, "open")

    assert poll(1, 2, read_ns=NOW) == [1, 2]
    assert poll(2, 3, read_ns=NOW) == [1, 2]
    assert poll(2, 3, read_ns=NOW + 1) == [2, 3]
    exporter.consume(Batch(0))
    exporter.poll()
    assert not list(folder.glob("open-*"))
    assert poll(2, 3, read_ns=NOW + 1) == [2, 3]


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


def test_the_queue_is_bounded_and_put_does_not_wait(start):
    """More spans than may wait are dropped and counted; `put` does no input or output."""
    exporter, _, folder = start(capacity=100)
    for begin in range(1, 1001, 50):
        exporter.consume(make_batch(*range(begin, begin + 50)))
    assert not folder.exists()
    assert exporter.dropped("spans") == {"file queue full": 900}
    exporter.poll()
    assert span_ids(folder) == list(range(1, 101))


def test_a_batch_that_finds_nothing_waiting_is_taken_as_a_whole(start):
    """A step that ends at once in more spans than may wait loses none of them; what comes before they are written finds no room."""
    exporter, _, folder = start(capacity=100)
    exporter.consume(make_batch(*range(1, 301)))
    exporter.consume(make_batch(301, 302))
    assert exporter.dropped("spans") == {"file queue full": 2}
    exporter.poll()
    assert span_ids(folder) == list(range(1, 301))


def test_the_queue_is_bounded_in_bytes(start):
    """Large spans that wait behind a disk that hangs take no more than the small ones may; small ones go on being taken."""
    exporter, _, folder = start(capacity=100)
    large = [make_span(number, attributes=WeighedAttributes({"key": "x"}, 40_000)) for number in range(1, 6)]
    for span in large:
        exporter.consume(Batch(1, (span,)))
    exporter.consume(make_batch(6))
    assert exporter.dropped("spans") == {"file queue full": 3}
    exporter.poll()
    assert span_ids(folder) == [1, 2, 6]
    exporter.consume(Batch(1, (large[2],)))
    exporter.poll()
    assert span_ids(folder) == [1, 2, 6, 3]


@pytest.mark.full
def test_closing_writes_what_waits(start):
    """Closing writes what waits; so does a flush."""
    exporter, _, folder = start()
    exporter.consume(make_batch(1))
    exporter.flush(time.monotonic() + 5)
    assert span_ids(folder) == [1]
    exporter.consume(make_batch(2))
    exporter.close(time.monotonic() + 5)
    assert span_ids(folder) == [1, 2]


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
