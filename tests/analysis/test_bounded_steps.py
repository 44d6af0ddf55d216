# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Of a long run the detail of some steps is kept: the slowest, those that were asked for, and some all over it."""

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis import bounded_steps, step_lengths
from verl_otel.analysis.bounded_steps import Shortener, ShortStep, Slowest, Steps
from verl_otel.analysis.model import Cost, DeviceTime, Phase, Segment, Step, Straggler, Trajectory
from verl_otel.cli.wording import device_seconds


def trajectory(length, number=0):
    """A trajectory of which only the length matters."""
    path = (Segment(0, length, "tool", "x"),)
    return Trajectory(number, "u", 0, None, False, 0, length, None, False, True, path=path, activities=(object(),))


def step(number, length):
    """A step with a path of one part."""
    slow = (trajectory(length),)
    path = (Segment(0, length, "phase", "gen"),)
    groups = (("phase", "gen", length),)
    begin = number * 10**12
    return Step(number, number, begin, begin + length, False, (), 0.0, (7,), 0, 0, 0, path, groups, slowest=slow)


def keep(lengths, asked=None):
    """The steps that are kept of a run."""
    steps = Steps(asked)
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
def test_what_is_short_keeps_the_mean_of_its_gpus(told):
    """However many GPUs there were, one entry stays that sums up to the window, each cause within nanoseconds of its mean."""
    window, cuts = told
    causes = ("train", "rollout", "data", "tail_wait", "unknown")
    parts = [[after - before for before, after in itertools.pairwise([0, *each, window])] for each in cuts]
    devices = tuple(
        DeviceTime(f"g{number}", dict(zip(causes, each, strict=False))) for number, each in enumerate(parts)
    )
    (found,) = bounded_steps.shorten(step(1, 5)._replace(devices=devices)).devices
    assert found.gpus == len(devices)
    assert device_seconds([found]) == pytest.approx(device_seconds(devices))
    assert sum(found.nanoseconds.values()) == window
    for cause in causes:
        mean = sum(each.nanoseconds.get(cause, 0) for each in devices) / len(devices)
        assert abs(found.nanoseconds.get(cause, 0) - mean) <= len(causes)


# -- A short step has the fields of the step that it was made of, and takes a fraction of its memory --


def make_step(number, **changed):
    """A step with everything that steps without detail have."""
    begin = number * 10**10
    step = Step(
        number, (1 << 100) + number, begin, begin + 9 * 10**9, False,
        (Phase("gen", 4.0 + number / 7, 0.4), Phase("update_actor", 3.0, 0.3)), 0.25, (), begin + 1, begin + 2, begin + 3,
        groups=(("server", "", 3 * 10**9 + number), ("worker", "update_actor", 2 * 10**9)),
        stragglers=(Straggler("update_actor", 3, "actor-3", 0.5, "tokens"),),
        devices=(DeviceTime("mean of 4 GPUs", {"rollout": 5 * 10**9, "train": 10**9 + number}, 4),),
        cost=Cost(36.0, 1820, {"zero_variance": 12}), quantiles=(1.0, 2.0, 3.0, 4.0, 5.0 + number), uncertainty=float("inf"),
        members=8, blind_spots=("arrival", "cpu"), next_ns=begin + 10**10, between_groups=(("between", "", 10**9),),
    )  # fmt: skip
    return step._replace(**changed)


def test_every_field_is_kept():
    """One by one and all together, for the first step, which is the dictionary, and for later ones."""
    shortener = Shortener()
    for number in (1, 2, 300):
        step = make_step(number)
        short = shortener.pack(step)
        assert isinstance(short, ShortStep)
        assert {name: getattr(short, name) for name in Step._fields} == step._asdict()
        assert bounded_steps.unpack_step(short) == step
        assert (short.seconds, short.between, short.is_starting) == (step.seconds, step.between, False)


def test_it_is_small():
    """A thousand steps take less than 0.7 kB each, the integers and the tuple included."""
    shortener = Shortener()
    shorts = [shortener.pack(make_step(number)) for number in range(1000)]
    sizes = sum(sys.getsizeof(short) + sum(sys.getsizeof(value) for value in short[:6]) for short in shorts)
    assert sizes < 700 * len(shorts)


def test_verdicts_and_costs_can_be_replaced():
    """The fields that become known later."""
    short = Shortener().pack(make_step(1))
    cost = Cost(1.0, 2, {"dropped": 3})
    later = short._replace(cost=cost, verdicts=("x",))
    assert (later.cost, later.verdicts, later.phases) == (cost, ("x",), make_step(1).phases)
    assert bounded_steps.unpack_step(later) == make_step(1, cost=cost, verdicts=("x",))


def test_a_restart_is_found_among_short_steps():
    """A long step whose devices started up."""
    starting = (DeviceTime("mean of 4 GPUs", {"start_up": 9 * 10**10}, 4),)
    steps = [make_step(number) for number in range(10)]
    steps[6] = make_step(6, end_ns=16 * 10**10, devices=starting)
    shortener = Shortener()
    found = step_lengths.find_start_up([shortener.pack(step) for step in steps])
    assert [step.number for step in found] == [6]


def test_numbers_of_damaged_files_are_left_as_they_are():
    """More than 64 bits cannot be encoded."""
    step = make_step(1, next_ns=1 << 70)
    assert Shortener().pack(step) is step
    assert bounded_steps.unpack_step(step) is step
