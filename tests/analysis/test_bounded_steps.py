# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Of a long run the detail of some steps is kept: the slowest, those that were asked for, and some all over it."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis import bounded_steps
from verl_otel.analysis.bounded_steps import Slowest, Steps
from verl_otel.analysis.model import Activity, DeviceTime, Segment, Step, Trajectory, sum_causes


def trajectory(length, number=0):
    """A trajectory of which only the length matters."""
    path = (Segment(0, length, "tool", "x"),)
    calls = (Activity("tool", "x", "a", 0, length),)
    return Trajectory(number, "u", 0, None, False, 0, length, None, False, True, path=path, activities=calls)


def step(number, length):
    """A step with a path of one part."""
    slow = (trajectory(length),)
    path = (Segment(0, length, "phase", "gen"),)
    groups = (("phase", "gen", length),)
    begin = number * 10**12
    return Step(number, number, begin, begin + length, False, (), 0.0, (7,), 0, 0, 0, path, groups, slowest=slow)


def keep(lengths, asked=None):
    """The steps that are kept of a run."""
    steps = Steps()
    steps.asked = asked or frozenset()
    for number, length in enumerate(lengths):
        steps.add(step(number, length))
    return steps.all()


def test_of_a_short_run_everything_is_kept():
    """Up to the limit every step has its detail."""
    found = keep([5] * bounded_steps.MAX_DETAILED)
    assert all(each.path and each.trajectories and each.slowest[0].activities for each in found)


@pytest.mark.parametrize("count", [501, 1000, 3000])
def test_of_a_long_run_some_are_kept(count):
    """The slowest and the asked ones are kept whole, the others evenly; what is short keeps its sums."""
    chance = random.Random(3)
    lengths = [chance.randrange(10**9) for _ in range(count)]
    asked = frozenset(range(0, 100, 13))
    found = keep(lengths, asked)
    assert [each.number for each in found] == list(range(count))
    whole = [each.number for each in found if each.path]
    assert len(whole) <= bounded_steps.MAX_DETAILED
    assert asked <= set(whole)
    slowest = sorted(range(count), key=lambda number: -lengths[number])[: bounded_steps.SLOWEST_STEPS]
    assert set(slowest) <= set(whole)
    gaps = [second - first for first, second in itertools.pairwise(whole)]
    assert max(gaps) <= 2 * count // 100
    for each in found:
        assert each.groups
        assert each.seconds == lengths[each.number] / 1e9
        assert bool(each.path) == bool(each.trajectories) == bool(each.slowest[0].path)


def test_asked_for_more_than_are_kept():
    """Whoever asks for all of a long run gets all."""
    found = keep([5] * 800, frozenset(range(800)))
    assert all(each.path for each in found)


def test_steps_come_out_in_the_order_of_time():
    """Steps that became known in another order are sorted."""
    steps = Steps()
    for number in (3, 1, 2):
        steps.add(step(number, 5))
    assert [each.number for each in steps.all()] == [1, 2, 3]


@pytest.mark.full
@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 10))
@settings(deadline=None)
def test_the_slowest_are_those_of_a_sort(lengths, count):
    """What is kept of a stream equals what a sort of all of it begins with; of equals the first one."""
    slowest = Slowest(count)
    for number, length in enumerate(lengths):
        slowest.add(trajectory(length, number))
    expected = sorted(enumerate(lengths), key=lambda each: (-each[1], each[0]))[:count]
    assert [each.trace_id for each in slowest.all()] == [number for number, _ in expected]


@pytest.mark.full
@given(
    st.integers(0, 10**6).flatmap(
        lambda window: st.lists(st.lists(st.integers(0, window), max_size=4).map(sorted), min_size=1, max_size=9).map(
            lambda cuts: (window, cuts)
        )
    )
)
@settings(deadline=None)
def test_what_is_short_keeps_the_mean_of_its_gpus(drawn):
    """However many GPUs there were, one entry stays that sums up to the window, each cause within nanoseconds of its mean."""
    window, cuts = drawn
    causes = ("train", "rollout", "data", "tail_wait", "unknown")
    parts = [[after - before for before, after in itertools.pairwise([0, *each, window])] for each in cuts]
    devices = tuple(
        DeviceTime(f"g{number}", dict(zip(causes, each, strict=False))) for number, each in enumerate(parts)
    )
    (found,) = bounded_steps.shorten(step(1, 5)._replace(devices=devices)).devices
    assert found.gpus == len(devices)
    assert sum_causes([found]).total() == sum_causes(devices).total()
    assert sum(found.nanoseconds.values()) == window
    for cause in causes:
        mean = sum(each.nanoseconds.get(cause, 0) for each in devices) / len(devices)
        assert abs(found.nanoseconds.get(cause, 0) - mean) <= len(causes)
