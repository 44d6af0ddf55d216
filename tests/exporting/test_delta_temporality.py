# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Differences: of every series they add up to the whole, whatever is exported when."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Counter as SdkCounter
from opentelemetry.sdk.metrics import Histogram, MeterProvider, ObservableCounter, UpDownCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE, make_histogram, make_point, steady
from verl_otel.exporting.otlp import protobuf
from verl_otel.exporting.otlp.exporter import Deltas

SECOND = 10**9
whole = st.integers(0, 1 << 62)
parts = st.floats(0, 1e300, allow_subnormal=False)


def at(seconds, value, kind="counter", name="verl.test"):
    """Return the point of a series that began at ``NOW``."""
    return make_point(name, kind, value)._replace(start_ns=NOW, time_ns=NOW + seconds * SECOND)


@pytest.mark.full
@steady
@given(st.lists(whole, max_size=8))
def test_differences_of_integers_add_up(amounts):
    """The differences of a counter of integers add up to its value, exactly."""
    deltas, total, received = Deltas("delta"), 0, 0
    for number, amount in enumerate(amounts):
        total += amount
        received += sum(point.value for point in deltas.convert([at(number + 1, total)]))
        assert received == total


@pytest.mark.full
@steady
@given(st.lists(parts, max_size=30))
def test_differences_of_floats_do_not_drift(amounts):
    """What a receiver has added up is the sum but for one rounding, however many exports there were."""
    deltas, total, received = Deltas("delta"), 0.0, 0.0
    for number, amount in enumerate(amounts):
        total += amount
        for point in deltas.convert([at(number + 1, total)]):
            received += point.value
        assert abs(received - total) <= math.ulp(total)


@pytest.mark.full
@steady
@given(st.lists(st.lists(st.floats(0, 100), max_size=5), max_size=6))
def test_differences_of_a_histogram_add_up(exports):
    """Samples, sum and every bucket of a histogram's differences add up to those of the whole."""
    deltas, values = Deltas("delta"), []
    counts, total, samples = Counter(), 0.0, 0
    for number, more in enumerate(exports):
        values += more
        found = deltas.convert([at(number + 1, make_histogram(*values), "histogram")])
        assert len(found) == bool(more)
        for point in found:
            counts.update(dict(enumerate(point.value.counts)))
            total, samples = total + point.value.total, samples + point.value.samples
    expected = make_histogram(*values)
    assert [counts[index] for index in range(4)] == list(expected.counts)
    assert samples == len(values)
    assert total == pytest.approx(expected.total, rel=1e-12)


def test_intervals_follow_each_other():
    """Each difference begins where the one before it ended; the first begins with the series."""
    deltas = Deltas("delta")
    spans = [deltas.convert([at(seconds, seconds)])[0] for seconds in (1, 5, 9)]
    assert [(each.start_ns - NOW, each.time_ns - NOW) for each in spans] == [
        (0, SECOND), (SECOND, 5 * SECOND), (5 * SECOND, 9 * SECOND),
    ]  # fmt: skip


def test_what_did_not_move_is_not_sent():
    """A counter and a histogram without anything new make no point; the first one of a counter is sent even if it is 0."""
    deltas = Deltas("delta")
    points = [at(1, 0), at(1, make_histogram(0.5), "histogram", "verl.h")]
    assert len(deltas.convert(points)) == 2
    assert deltas.convert(points) == []


def test_a_series_that_begins_anew_is_sent_whole():
    """After a reset the difference is all there is, from the new beginning; a counter that has less than before counts as reset."""
    deltas = Deltas("delta")
    deltas.convert([at(1, 10)])
    later = make_point("verl.test", "counter", 3)._replace(start_ns=NOW + 7 * SECOND, time_ns=NOW + 8 * SECOND)
    assert deltas.convert([later]) == [later]
    (back,) = deltas.convert([later._replace(value=2, time_ns=NOW + 9 * SECOND)])
    assert (back.value, back.start_ns) == (2, NOW + 8 * SECOND)


@pytest.mark.parametrize("kind", ["gauge", "updown"])
def test_last_values_stay(kind):
    """Gauges and up-down counters are sent as they are, each time."""
    deltas, point = Deltas("delta"), at(1, 5, kind)
    assert deltas.convert([point]) == deltas.convert([point]) == [point]


def test_infinity_and_what_follows_are_numbers():
    """A sum that has become infinite makes no difference that is no number."""
    deltas = Deltas("delta")
    found = [point.value for value in (1.0, math.inf, math.inf) for point in deltas.convert([at(1, value)])]
    assert found == [1.0, math.inf]


def test_only_the_first_interval_knows_its_extremes():
    """Minimum and maximum are of the whole, so those of a later interval are left out of the message."""
    deltas, found = Deltas("delta"), []
    for values in ((0.5,), (0.5, 2.0)):
        points = deltas.convert([at(len(values), make_histogram(*values), "histogram")])
        message = ExportMetricsServiceRequest.FromString(
            protobuf.encode_metrics(RESOURCE, SCOPE, points, deltas.is_delta)
        )
        histogram = message.resource_metrics[0].scope_metrics[0].metrics[0].histogram
        assert histogram.aggregation_temporality == 1
        found.append((histogram.data_points[0].HasField("min"), histogram.data_points[0].sum))
    assert found == [(True, 0.5), (False, 2.0)]


@pytest.mark.parametrize("preference", ["delta", "lowmemory"])
def test_which_kinds_are_differences_is_what_the_sdk_does(preference, monkeypatch):
    """For each kind of instrument the temporality is the one that the SDK's own OTLP exporter chooses."""
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", preference)
    theirs = exporter.OTLPMetricExporterMixin()._get_temporality({})
    ours = Deltas(preference, asked={"asked"})
    kinds = {
        SdkCounter: ("counter", "verl.test"), Histogram: ("histogram", "verl.test"),
        UpDownCounter: ("updown", "verl.test"), ObservableCounter: ("counter", "asked"),
    }  # fmt: skip
    for instrument, (kind, name) in kinds.items():
        is_delta = ours.is_delta(at(1, 0, kind, name))
        assert is_delta == (theirs.get(instrument) is AggregationTemporality.DELTA), (preference, kind, name)


def test_the_sdk_counts_the_same():
    """The differences of some measurements are those of the SDK's reader that was asked for differences."""
    reader = InMemoryMetricReader(preferred_temporality={SdkCounter: AggregationTemporality.DELTA})
    counter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test").create_counter("done")
    deltas, total, ours, theirs = Deltas("delta"), 0, [], []
    for number, amount in enumerate((3, 4, 1 << 40)):
        total += amount
        counter.add(amount)
        ours += [point.value for point in deltas.convert([at(number + 1, total)])]
        data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data
        theirs += [point.value for point in data.data_points]
    assert ours == theirs
