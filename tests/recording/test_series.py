# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import math
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel
from tests.fakes.fold_locks import hold
from verl_otel.model import Exemplar, Instrument
from verl_otel.recording import series
from verl_otel.recording.series import CEILING, CHUNK, Counter, Histogram

BOUNDS = (0.1, 1.0, 10.0)
VALUES = st.lists(st.floats(-1e9, 1e9) | st.sampled_from([0.1, 1.0, 10.0, math.nan]), max_size=40)


def histogram(bounds=BOUNDS):
    return Histogram(Instrument("h", "histogram", "s", ""), (), bounds)


def counter():
    return Counter(Instrument("c", "counter", "", ""), ())


def folded(measured):
    """Fold what was recorded and return the value of the series."""
    measured.fold()
    return measured.point(1).value


@pytest.mark.full
@given(st.lists(VALUES, max_size=5), st.lists(st.floats(-1e6, 1e6), max_size=8, unique=True).map(sorted).map(tuple))
@settings(deadline=None, max_examples=200, database=None)
def test_a_histogram_is_what_its_values_say(chunks, bounds):
    """Count, sum, extremes and buckets are those of all values but NaN, however they were cut into chunks and folded."""
    measured = histogram(bounds)
    for chunk in chunks:
        for value in chunk:
            measured.record(value)
        measured.fold()
    values = [value for chunk in chunks for value in chunk if not math.isnan(value)]
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    found = folded(measured)
    assert found.samples == sum(found.counts) == len(values)
    assert found.counts == tuple(counts)
    assert found.bounds == bounds
    assert math.isclose(found.total, math.fsum(values), rel_tol=1e-9, abs_tol=1e-3)
    assert found.minimum == min(values, default=math.inf)
    assert found.maximum == max(values, default=-math.inf)


@pytest.mark.parametrize("number", [CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3])
def test_no_value_is_lost_at_the_edge_of_a_chunk(number):
    """All values are counted when there are nearly, exactly or more than as many as a chunk has; without a drain the caller folds."""
    measured = histogram()
    for index in range(number):
        measured.record(index % 20)
        assert len(measured.buffer) <= CHUNK
    found = folded(measured)
    assert found.samples == number
    assert found.total == sum(index % 20 for index in range(number))


def test_an_enormous_integer_does_not_stop_the_drain(recorded):
    """An integer too large for a float costs no other measurement and no span."""
    with verl_otel.step(1):
        series.histogram("verl.rollout.turns").record(10**400)
    with contextlib.suppress(OverflowError):
        recorded.refresh()
    assert recorded.value("verl.training.steps") == 1
    assert len(recorded.spans) == 1


def test_a_counter_of_integers_stays_an_integer():
    """A counter of integers has an exact integer as its value, beyond what a float can hold."""
    measured = counter()
    measured.record(1 << 53)
    measured.record(1)
    assert folded(measured) == (1 << 53) + 1
    assert isinstance(folded(measured), int)


def fill(measured, number):
    """Record while somebody else folds."""
    with hold(measured.lock):
        for index in range(number):
            measured.record(index)


@pytest.mark.parametrize("number", [CEILING - 1, CEILING, CEILING + 1, CEILING + 5000])
def test_a_buffer_never_exceeds_its_ceiling(recorded, number):
    """While a fold is running a buffer grows to its ceiling; what comes then is dropped, and exactly that is counted; then it goes on."""
    measured = series.counter("verl.training.steps")
    fill(measured, number)
    assert len(measured.buffer) == min(number, CEILING)
    measured.record(7)
    assert series.dropped() == max(0, number - CEILING)
    assert recorded.value("verl.training.steps") == sum(range(min(number, CEILING))) + 7


def exemplar(value, seconds=0.0, trace_id=1):
    return Exemplar(value, int(seconds * 1e9), trace_id, 2)


def test_an_exemplar_is_the_slowest_of_its_bucket():
    """Each bucket shows the trace of its slowest measurement, whatever the order in which they came."""
    measured = histogram()
    offered = [0.05, 0.02, 0.1, 0.7, 0.3, 5.0, 50.0, 20.0]
    for trace_id, value in enumerate(offered):
        measured.offer(exemplar(value, trace_id=trace_id))
    shown = {each.value: each.trace_id for each in measured.point(1).exemplars}
    assert shown == {0.1: 2, 0.7: 3, 5.0: 5, 50.0: 6}


class ResetBetweenReads(dict):
    """Exemplars of a series that another thread resets after the first read."""

    def get(self, key):
        held = super().get(key)
        self.clear()
        return held


def test_a_reset_during_the_question_is_no_error():
    """Telemetry may stop in one thread while another one asks whether an exemplar is needed."""
    measured = histogram()
    measured.offer(exemplar(0.9))
    measured.exemplars = ResetBetweenReads(measured.exemplars)
    assert not measured.wants(0.5, 0)


def test_an_exemplar_gives_way_after_half_a_minute():
    """A faster measurement replaces an exemplar that is older than half a minute, and none before."""
    measured = histogram()
    measured.offer(exemplar(0.9, seconds=100))
    measured.offer(exemplar(0.5, seconds=129))
    assert [each.value for each in measured.point(1).exemplars] == [0.9]
    measured.offer(exemplar(0.4, seconds=131))
    assert [each.value for each in measured.point(1).exemplars] == [0.4]


def test_a_point_says_when_its_series_began():
    """Points are cumulative since the series began: the start stays, the time moves on."""
    measured = counter()
    measured.record(1)
    first, second = measured.point(10), measured.point(20)
    assert first.start_ns == second.start_ns > 0
    assert (first.time_ns, second.time_ns) == (10, 20)
