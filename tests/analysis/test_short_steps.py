# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A short step has the fields of the step that it was made of, and takes a fraction of its memory."""

import sys

from verl_otel.analysis import retention, step_lengths
from verl_otel.analysis.model import Cost, DeviceTime, Phase, Step, Straggler
from verl_otel.analysis.retention import Shortener, ShortStep


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
        assert retention.unpack_step(short) == step
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
    assert retention.unpack_step(later) == make_step(1, cost=cost, verdicts=("x",))


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
    assert retention.unpack_step(step) is step
