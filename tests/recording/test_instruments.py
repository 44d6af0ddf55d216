# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges, histograms and timers that a user names."""

import itertools
import math
import re
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import api
from verl_otel.recording.instruments import valid_bounds, valid_name
from verl_otel.semconv import buckets

_number = itertools.count()


@pytest.fixture
def fresh():
    """Return a metric name that nobody has used in this process: series live as long as it does."""
    return f"test.instrument.{next(_number)}"


def test_a_counter_counts_by_labels(recorded, fresh):
    """A counter has one sum per set of labels; their order does not matter, and their values become text."""
    done = verl_otel.counter(fresh, unit="{sample}", description="what")
    done.add(2, reason="a", flag=True)
    done.add(3, flag=True, reason="a")
    done.add(reason="b")
    assert recorded.value(fresh, reason="a", flag="True") == 5
    assert recorded.value(fresh, reason="b") == 1
    (instrument,) = {point.instrument for point in recorded.points}
    assert instrument == (fresh, "counter", "{sample}", "what")


def test_labels_that_were_given_before_lead_to_the_same_series(recorded, fresh):
    """In any order; a number, a Boolean and their text have the labels that they have the first time, and a list does not raise."""
    counter = verl_otel.counter(fresh)
    for _ in range(2):
        counter.add(1, a="x", b="y")
        counter.add(1, b="y", a="x")
        for value in ("1", 1, True, "True", [1]):
            counter.add(1, a=value)
    assert recorded.value(fresh, a="x", b="y") == 4
    assert [recorded.value(fresh, a=text) for text in ("1", "True")] == [4, 4]


def test_a_gauge_is_the_last_value(recorded, fresh):
    """A gauge is what it was set to last, NaN too."""
    size = verl_otel.gauge(fresh)
    size.set(3)
    size.set(-1.5)
    assert recorded.value(fresh) == -1.5
    size.set(math.nan)
    assert math.isnan(recorded.value(fresh))


def test_a_histogram_has_the_users_bounds(recorded, fresh):
    """A histogram has the bounds that were given, and those of durations if none were."""
    verl_otel.histogram(fresh, bounds=(64, 256)).record(100)
    verl_otel.histogram(f"{fresh}.default").record(1)
    bounds = {point.instrument.name: point.value.bounds for point in recorded.points}
    assert bounds == {fresh: (64.0, 256.0), f"{fresh}.default": buckets.TINY}


@pytest.mark.parametrize("value", [np.float32(2), np.int64(2), np.array(2), Decimal(2), 2, True + 1])
def test_numbers_of_other_libraries_are_numbers(recorded, fresh, value):
    """Numpy's numbers and 0-dim tensors count like plain ones, in every instrument."""
    verl_otel.counter(fresh).add(value)
    verl_otel.gauge(f"{fresh}.gauge").set(value)
    verl_otel.histogram(f"{fresh}.histogram").record(value)
    assert (recorded.value(fresh), recorded.value(f"{fresh}.gauge"), recorded.value(f"{fresh}.histogram")) == (2, 2, 1)


@pytest.mark.parametrize("value", ["text", None, [1, 2], object(), SimpleNamespace(is_cpu=False, item=lambda: 1)])
def test_what_is_no_number_is_ignored(recorded, fresh, value):
    """A value that is no number, or lies on an accelerator, is not recorded, and nothing is raised."""
    verl_otel.counter(fresh).add(value)
    verl_otel.gauge(fresh).set(value)
    verl_otel.histogram(fresh).record(value)
    assert recorded.points == []


def test_a_name_of_the_catalogue_is_not_taken(recorded, caplog):
    """A user's instrument with the name of one of ours gets a prefix, and that is said once."""
    for _ in range(3):
        verl_otel.counter("verl.training.steps").add(1)
    with verl_otel.step(1):
        pass
    assert recorded.value("user.verl.training.steps") == 3
    assert recorded.value("verl.training.steps") == 1
    assert len(caplog.records) == 1
    assert "cannot be used" in caplog.text


@pytest.mark.full
@given(st.text(max_size=300))
@settings(deadline=None, max_examples=150, database=None)
def test_every_name_becomes_a_valid_one(name):
    """Whatever the name, what comes out is valid for OpenTelemetry, and does not change any more."""
    valid = valid_name(name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.\-/]{0,254}", valid)
    assert valid_name(valid) == valid


@pytest.mark.full
@given(st.lists(st.floats(), max_size=10).map(tuple))
@settings(deadline=None, max_examples=100, database=None)
def test_bounds_become_finite_and_rising(bounds):
    """Whatever the bounds, what comes out is finite, rising and not empty."""
    made = valid_bounds(bounds)
    assert made
    assert all(map(math.isfinite, made))
    assert all(low < high for low, high in itertools.pairwise(made))


def test_one_name_is_one_kind(recorded, fresh, caplog):
    """An instrument or timer with the name of another kind records nothing, says so once, and does not raise."""
    verl_otel.counter(fresh).add(2)
    assert verl_otel.timed(fresh)(lambda: 1)() == 1
    for _ in range(2):
        verl_otel.gauge(fresh).set(5)
        verl_otel.histogram(fresh).record(5, key="value")
    assert recorded.value(fresh) == 2
    assert "already" in caplog.text
    assert len(caplog.records) == 1


@pytest.fixture
def ticking(monkeypatch):
    """Have the timers' clock go on by one second at each look."""
    ticks = itertools.count(100.0)
    monkeypatch.setattr(api, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


def seconds(captured, name):
    """Return the sums of the durations under one name, by their labels."""
    return {point.labels: point.value.total for point in captured.points if point.instrument.name == name}


def test_a_timed_block(recorded, fresh, ticking):
    """A timed block is one duration in the histogram of its name, or of its name and its error."""
    with verl_otel.timed(fresh):
        pass
    with pytest.raises(KeyError), verl_otel.timed(fresh):
        raise KeyError
    assert seconds(recorded, fresh) == {(): 1.0, (("error.type", "KeyError"),): 1.0}
    assert recorded.spans == []


def test_a_timer_may_be_used_inside_itself(recorded, fresh, ticking):
    """A timer that is used again, or inside its own block, in recursion or by several tasks, times each block by itself."""
    timer = verl_otel.timed(fresh)
    for _ in range(2):
        with timer, timer:
            pass
    assert seconds(recorded, fresh) == {(): 2 * (1.0 + 3.0)}


def test_a_bare_timer_is_named_after_the_function(recorded):
    """`@timed` takes the qualified name of the function."""

    @verl_otel.timed
    def work():
        return 1

    work()
    (point,) = recorded.points
    assert point.instrument.name == "test_a_bare_timer_is_named_after_the_function.work"
    assert (point.instrument.unit, point.instrument.kind) == ("s", "histogram")
