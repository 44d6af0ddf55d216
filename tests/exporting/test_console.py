# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The console: one line for each root span."""

import io
import os
import time

import pytest

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE, make_span
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.console import ConsoleExporter
from verl_otel.model import Batch
from verl_otel.semconv import attributes as attr


def lines_of(*spans, batches=1):
    """Return the lines that are printed of some spans."""
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    exporter.open(RESOURCE, SCOPE, MetricState())
    for _ in range(batches):
        exporter.consume(Batch(NOW, spans))
    exporter.poll()
    return stream.getvalue().splitlines()


def test_one_line_for_each_root():
    """A root span is a line with role, name and seconds; its children are not shown."""
    spans = (make_span(2, parent_id=1), make_span(1, name="verl.step", end_ns=NOW + 1_234_567_890), make_span(3))
    assert lines_of(*spans) == ["verl-otel [trainer] verl.step 1.235 s", "verl-otel [trainer] span 3 1.000 s"]


def test_what_identifies_the_work_is_shown():
    """Step number, sample, reward and the like stand behind the time, other attributes do not."""
    attributes = {attr.STEP_NUMBER: 7, attr.SAMPLE_UID: "u1", attr.REWARD_SCORE: 0.5, "private": "no"}
    assert lines_of(make_span(name="verl.step", attributes=attributes)) == [
        "verl-otel [trainer] verl.step 1.000 s number=7 uid=u1 score=0.5"
    ]


def test_a_failure_is_marked():
    """A root that failed is marked, with the type of the error; an ok one is not."""
    failed = make_span(name="verl.step", status=2, attributes={attr.ERROR_TYPE: "ValueError"})
    assert lines_of(failed, make_span(name="verl.step", status=1)) == [
        "verl-otel [trainer] verl.step 1.000 s FAILED type=ValueError",
        "verl-otel [trainer] verl.step 1.000 s",
    ]


@pytest.mark.full
def test_lines_go_to_standard_error(capsys):
    """Without a stream the lines go to standard error, and a flush or a close prints what waits, once."""
    exporter = ConsoleExporter()
    exporter.open(RESOURCE, SCOPE, MetricState())
    exporter.consume(Batch(NOW, (make_span(1),)))
    exporter.flush(time.monotonic())
    exporter.consume(Batch(NOW, (make_span(2),)))
    exporter.close(time.monotonic())
    printed = capsys.readouterr()
    assert printed.err == "verl-otel [trainer] span 1 1.000 s\nverl-otel [trainer] span 2 1.000 s\n"
    assert printed.out == ""


@pytest.mark.parametrize("fields", [{"name": "a\nb"}, {"attributes": {attr.SAMPLE_UID: "u\n1"}}])
def test_a_root_is_one_line_whatever_its_text(fields):
    """A line end in a name or attribute does not break the line."""
    assert len(lines_of(make_span(**fields))) == 1


def test_what_is_left_out_is_counted():
    """Roots that are not printed because too many wait are counted as dropped."""
    exporter = ConsoleExporter(io.StringIO())
    exporter.open(RESOURCE, SCOPE, MetricState())
    exporter.consume(Batch(NOW, tuple(make_span(number) for number in range(1, 1201))))
    assert sum(exporter.dropped("spans").values()) == 200


def test_a_broken_stream_does_not_raise(swallow):
    """A stream that cannot be written any more costs the lines only: other exporters go on in the same round."""
    stream = io.StringIO()
    stream.close()
    exporter = ConsoleExporter(stream)
    exporter.open(RESOURCE, SCOPE, MetricState())
    exporter.consume(Batch(NOW, (make_span(),)))
    exporter.poll()


def test_a_stream_that_nothing_reads_is_not_waited_for():
    """Spans wait for the next drain; those that are left at the end are counted."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb", buffering=0) as pipe, os.fdopen(writing, "w", buffering=1) as stream:

        def fill():
            try:
                while True:
                    os.write(writing, b"x" * 4096)
            except BlockingIOError:
                os.set_blocking(writing, True)

        exporter = ConsoleExporter(stream)
        exporter.open(RESOURCE, SCOPE, MetricState())
        fill()
        exporter.consume(Batch(NOW, (make_span(1),)))
        exporter.poll()
        pipe.read(1 << 20)
        exporter.poll()
        assert pipe.read(1 << 20) == b"verl-otel [trainer] span 1 1.000 s\n"
        os.set_blocking(writing, False)
        fill()
        exporter.consume(Batch(NOW, (make_span(2),)))
        exporter.close(0.0)
        assert sum(exporter.dropped("spans").values()) == 1
