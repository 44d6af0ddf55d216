# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Counters bound to their labels."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel
from tests.fakes.fold_locks import hold
from verl_otel.recording import series
from verl_otel.recording.series import CEILING, CHUNK
from verl_otel.testing import capture

_number = itertools.count()


@pytest.fixture
def fresh():
    """Return a metric name that nobody has used in this process."""
    return f"test.bound.{next(_number)}"


def test_it_is_the_series_of_its_labels(recorded, fresh):
    """A bound counter and its family add to one sum."""
    family = verl_otel.counter(fresh, unit="{token}")
    prompt = family.bind(kind="prompt")
    prompt.add(3)
    prompt.add(0.5)
    family.add(2, kind="prompt")
    family.bind(kind="response").add(1)
    assert recorded.value(fresh, kind="prompt") == 5.5
    assert recorded.value(fresh, kind="response") == 1


@pytest.mark.parametrize("bound", [True, False])
def test_off_it_ignores_what_is_added(fresh, bound):
    """A counter, bound while recording is off or not at all, takes what is added while it is on, and nothing before or after."""
    count = verl_otel.counter(fresh)
    if bound:
        count = count.bind()
    count.add(1)
    for _ in range(2):
        with capture() as captured:
            count.add(2)
            assert captured.value(fresh) == 2
        count.add(4)
    with capture() as captured:
        assert captured.points == []


@pytest.mark.full
@settings(deadline=None, max_examples=50, database=None)
@given(st.lists(st.integers(-5, 10**6) | st.floats(-5, 1e6) | st.just(float("nan")), max_size=50))
def test_only_numbers_that_are_not_negative_count(values):
    """Whatever is added, the sum is that of the numbers that are not negative."""
    with capture() as captured:
        name = f"test.bound.{next(_number)}"
        count = verl_otel.counter(name).bind()
        count.add(0)
        for value in values:
            count.add(value)
        assert captured.value(name) == pytest.approx(sum(value for value in values if value >= 0))


def test_what_is_no_plain_number_harms_nobody(recorded, fresh):
    """Numpy's numbers count; text, None and objects are ignored; nothing is raised, now or when it is folded."""
    count = verl_otel.counter(fresh).bind()
    for value in (1, "text", None, object(), np.float32(2.5), True, [1]):
        count.add(value)
    assert recorded.value(fresh) == 4.5


@pytest.mark.parametrize("number", [CHUNK, CHUNK + 1, 50 * CHUNK])
def test_its_memory_is_bounded_without_a_drain(recorded, fresh, number):
    """Where nothing drains, who adds folds: the buffer stays within a chunk, and nothing is lost."""
    count = verl_otel.counter(fresh).bind()
    for _ in range(number):
        count.add(1)
        assert len(count) <= CHUNK
    assert recorded.value(fresh) == number


def test_while_somebody_folds_for_ever_it_is_bounded(recorded, fresh):
    """While somebody else folds, adding waits for nobody; beyond the ceiling it drops and counts."""
    count = verl_otel.counter(fresh).bind()
    with hold(count.series.lock):
        for _ in range(CEILING + 7):
            count.add(1)
    assert len(count) == CEILING
    assert series.dropped() == 7
    assert recorded.value(fresh) == CEILING


def test_its_family_loses_nothing_beside_it(recorded, fresh):
    """The family's ``add`` finds room, however much was added by the bound counter of the same labels."""
    family = verl_otel.counter(fresh)
    count = family.bind(kind="a")
    for _ in range(3 * CEILING):
        count.add(1)
        family.add(1, kind="a")
    assert series.dropped() == 0
    assert recorded.value(fresh, kind="a") == 6 * CEILING


@pytest.mark.parametrize("huge", [10**400, 1 << 64], ids=["beyond floats", "beyond 64 bits"])
def test_an_enormous_integer_spoils_nothing_else(recorded, fresh, huge):
    """An integer beyond 64 bits counts as a float, and the drain that meets it loses no span and no other series."""
    count = verl_otel.counter(fresh).bind()
    with verl_otel.step(1):
        count.add(huge)
        count.add(0.5)
    assert recorded.value(fresh) == pytest.approx(float("inf") if huge > 1 << 64 else 2.0**64)
    count.add(1)
    assert type(recorded.value(fresh)) is float
    assert recorded.value("verl.training.steps") == len(recorded.spans) == 1


def test_it_can_be_pickled(recorded, fresh):
    """A bound counter that was pickled adds to the series of the process where it arrives."""
    pickle.loads(pickle.dumps(verl_otel.counter(fresh).bind(kind="a"))).add(2)
    assert recorded.value(fresh, kind="a") == 2


def test_a_name_of_another_kind_records_nothing(recorded, fresh):
    """A bound counter whose name is that of a gauge ignores what is added, here and where it arrives."""
    verl_otel.gauge(fresh).set(1)
    bound = verl_otel.counter(fresh).bind()
    for each in (bound, pickle.loads(pickle.dumps(bound))):
        each.add(5)
    assert recorded.value(fresh) == 1
