# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The TensorBoard exporter with a disk that fails and with a second thread; TensorBoard's own reader reads the files."""

import os
import time

import pytest

from tests.builders.exporting_records import RESOURCE, SCOPE, make_batch, make_point
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.tensorboard.exporter import TensorBoardExporter

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
)
SCALAR = "Scalar 'a/b' of verl's Tracking.log, unchanged."
TORN = 30
"""Bytes that are less than any write of these tests."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tensorboard"


@pytest.fixture
def exporter(tmp_path):
    made = TensorBoardExporter(tmp_path)
    made.open(RESOURCE, SCOPE, MetricState())
    yield made
    made.after_fork()


def log(exporter, *numbers):
    """Queue steps whose scalar has ten times their number."""
    for number in numbers:
        points = (
            make_point("verl.training.step", value=number),
            make_point("verl.a.b", value=10.0 * number, description=SCALAR),
        )
        exporter.consume(make_batch(points=tuple(point._replace(time_ns=point.time_ns + number) for point in points)))


def write(exporter, *numbers):
    """Write steps, each with a write of its own."""
    for number in numbers:
        log(exporter, number)
        exporter.poll()


def read(folder):
    accumulator = accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("a/b")]


def dropped(exporter):
    return sum(exporter.dropped("points").values())


def test_a_torn_write_costs_its_step_only(exporter, folder, disk):
    """Steps before and after the one that was cut off are read from the same file."""
    write(exporter, 1, 2)
    disk.room = TORN
    write(exporter, 3)
    disk.room = 1 << 30
    write(exporter, 4, 5)
    assert read(folder) == [(1, 10), (2, 20), (4, 40), (5, 50)]
    assert len(list(folder.iterdir())) == dropped(exporter) == 1


def test_a_torn_record_that_stays_ends_its_file(exporter, folder, disk, monkeypatch):
    """If the file cannot be cut, the next steps are in another one, also a second time and after a restart of the steps."""

    def refuse(*_):
        raise OSError(5, "I/O error")

    monkeypatch.setattr(os, "ftruncate", refuse)
    write(exporter, 1, 2, 3)
    for number in (4, 5):
        disk.room = TORN
        write(exporter, number)
        disk.room = 1 << 30
        write(exporter, number - 2)
    assert read(folder) == [(1, 10), (2, 20), (3, 30)]
    assert len(list(folder.iterdir())) == 3
    assert dropped(exporter) == 2


def test_a_failed_first_write_is_repeated_as_the_first(exporter, folder, disk):
    """The record that begins a file, and the one that replaces the steps of an earlier attempt, are written with the next step."""
    earlier = TensorBoardExporter(folder.parent)
    earlier.open(RESOURCE, SCOPE, MetricState())
    earlier._path = folder / "events.out.tfevents.0000000001.x"
    write(earlier, 1, 2, 3, 4)
    earlier.close(time.monotonic() + 60)
    disk.room = 0
    write(exporter, 2)
    disk.room = 1 << 30
    write(exporter, 3)
    assert read(folder) == [(1, 10), (2, 20), (3, 30)]
