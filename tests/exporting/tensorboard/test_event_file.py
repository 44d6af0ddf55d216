# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Event files, read back by TensorBoard's own reader."""

import math

import pytest

from verl_otel.exporting.tensorboard import event_file

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
)


@pytest.fixture
def read(tmp_path):
    """Write records and read them with TensorBoard."""

    def reader(*records):
        (tmp_path / "events.out.tfevents.1.x").write_bytes(b"".join(records))
        accumulator = accumulators.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "histograms": 0})
        return accumulator.Reload()

    return reader


def steps(accumulator, tag):
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_scalars(read):
    """Steps, times and values are those that were written, in 32 bits."""
    events = read(
        event_file.encode_start(1.5),
        event_file.encode_step(2.5, 1, {"a/b": 0.5, "c": math.nan}),
        event_file.encode_step(3.5, 300, {"a/b": -1e300, "ü": 1}),
    )
    assert steps(events, "a/b") == [(1, 0.5), (300, -math.inf)]
    assert events.Scalars("a/b")[0].wall_time == 2.5
    assert math.isnan(events.Scalars("c")[0].value)
    assert steps(events, "ü") == [(300, 1.0)]


def test_a_histogram(read):
    """Counts, bounds and sums are those of the values."""
    histogram = event_file.make_distribution([0.0, 1.0, 1.0, 2.0], bins=2)
    events = read(event_file.encode_start(1.0), event_file.encode_step(2.0, 7, {}, {"h": histogram}))
    (event,) = events.Histograms("h")
    value = event.histogram_value
    assert (event.step, value.min, value.max, value.num, value.sum, value.sum_squares) == (7, 0, 2, 4, 4, 6)
    assert (value.bucket_limit, value.bucket) == ([1.0, 2.0], [1, 3])


def test_one_value_is_a_histogram(read):
    """Equal values have one bin."""
    events = read(
        event_file.encode_start(1.0), event_file.encode_step(2.0, 1, {}, {"h": event_file.make_distribution([3.0])})
    )
    assert events.Histograms("h")[0].histogram_value.bucket == [1.0]


def test_a_restart_forgets_what_came_after(read):
    """After a restart at a step, TensorBoard has only the later values from there on."""
    events = read(
        event_file.encode_start(1.0),
        *(event_file.encode_step(number, number, {"a": number}) for number in (1, 2, 3, 4)),
        event_file.encode_restart(5.0, 3),
        event_file.encode_step(6.0, 3, {"a": 30}),
    )
    assert steps(events, "a") == [(1, 1), (2, 2), (3, 30)]


def test_a_file_that_is_cut_off(read):
    """What was written before a kill is read."""
    whole = event_file.encode_step(3.0, 2, {"a": 2})
    events = read(event_file.encode_start(1.0), event_file.encode_step(2.0, 1, {"a": 1}), whole[:-5])
    assert steps(events, "a") == [(1, 1)]


def test_texts(read):
    """The reader has them as tensors of the plugin for texts, whatever their characters."""
    written = {"rollout/sample_0": "ünï — <b>", "rollout/sample_1": ""}
    events = read(event_file.encode_start(1.0), event_file.encode_texts(2.0, 7, written))
    for tag, content in written.items():
        (event,) = events.Tensors(tag)
        assert (event.step, event.wall_time) == (7, 2.0)
        assert [each.decode() for each in event.tensor_proto.string_val] == [content]
        assert [dim.size for dim in event.tensor_proto.tensor_shape.dim] == [1]
        assert events.SummaryMetadata(tag).plugin_data.plugin_name == "text"
