# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What files hold of hardware: a value a minute of each series, and every value of all others."""

import json

import pytest

from tests.builders.exporting_records import RESOURCE, SCOPE, make_point
from verl_otel.exporting import files
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.files import Downsampler, FileExporter
from verl_otel.model import Batch


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock, in seconds, as one entry of a list."""
    now = [1000.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])
    return now


def select(downsampler, *points):
    return [(point.instrument.name, point.value) for point in downsampler.select(points)]


def test_hardware_is_chosen_once_a_minute(clock):
    """The latest value of each of its series, one that is new at once; others are chosen always, with every value, in their order."""
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
    assert select(downsampler, new) == [("hw.power", 7)]
    downsampler.release()
    assert select(downsampler) == [("hw.power", 2)]


def test_nothing_is_left_out_where_nothing_is_asked():
    """Without hardware every point is chosen."""
    points = [make_point("verl.a", "gauge", 1), make_point("hw.power", "gauge", 1)]
    assert Downsampler().select(points) == points


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
