# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds in one process: what a loop runs, how often, in which order."""

import time
from itertools import pairwise

import pytest

from benchmarks import rounds
from benchmarks.case import Operation


@pytest.mark.parametrize("count", [10, 1000, 2500])
def test_a_loop_runs_its_statement_as_often_as_it_is_told(count):
    """Every pass is the statement ten times; between batches of a thousand ``before`` is called."""
    seen, emptied = [], []
    made = rounds.loop("add(1)", before=lambda: emptied.append(len(seen)), add=seen.append)
    assert made.run(count) > 0
    assert len(seen) == count
    assert emptied == list(range(0, count, 1000))


def test_what_stands_before_a_batch_is_off_the_clock():
    """The clock is read around the loop alone."""
    now = [0.0]

    def slow():
        now[0] += 100.0

    def step():
        now[0] += 1.0

    made = rounds.loop("step()", before=slow, clock=lambda: now[0], step=step)
    assert made.run(2000) == 2000.0


def test_a_statement_may_have_several_lines():
    """Blocks, too; names are local."""
    seen = []
    rounds.loop("x = y\nif x:\n    add(x)", y=3, add=seen.append).run(20)
    assert seen == [3] * 20


def test_an_operation_is_calibrated_to_about_a_millisecond():
    """A cheap one runs in whole batches, an expensive one ten times at least, one of a fixed number as often as it says."""
    cheap = rounds.calibrate(Operation(lambda count: count * 1e-7))
    assert cheap * 1e-7 == pytest.approx(rounds.ROUND_SECONDS, rel=0.1)
    assert cheap % rounds.BATCH == 0
    assert rounds.calibrate(Operation(lambda count: count * 1.0)) == rounds.UNROLLED
    assert rounds.calibrate(Operation(lambda count: count * 1e-7, 77)) == 77


def test_rounds_take_turns():
    """Each round measures every variant once, and begins with another one than the round before."""
    order = []

    def operation(name):
        return Operation(lambda count: order.append(name) or 0.5 * count, 10)

    found = rounds.measure({name: operation(name) for name in "abc"}, 6)
    assert found == {name: [0.5] * 6 for name in "abc"}
    measured = order[3:]  # the calibration comes first
    turns = [measured[begin : begin + 3] for begin in range(0, len(measured), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert all(left[0] != right[0] for left, right in pairwise(turns))


def test_another_process_begins_with_another_variant():
    """Where a process has one round only, its number says who is first: nobody is always the last, when the machine is warm."""
    order = []

    def operation(name):
        return Operation(lambda count: order.append(name) or 0.5 * count, 1, warm=False)

    for first in range(4):
        rounds.measure({name: operation(name) for name in "abc"}, 1, first)
    assert "".join(order) == "abcbcacababc"


@pytest.mark.alone
def test_a_dearer_statement_is_found_dearer():
    """The harness sees work: the same call twice costs about twice as much as once, the loop itself next to nothing."""

    def work():
        return None

    operations = {
        "nothing": rounds.loop("pass"),
        "once": rounds.loop("f()", f=work),
        "twice": rounds.loop("f(); f()", f=work),
    }
    least = {name: min(values) for name, values in rounds.measure(operations, 15).items()}
    assert least["nothing"] < least["once"] / 3
    assert 1.5 < (least["twice"] - least["nothing"]) / (least["once"] - least["nothing"]) < 3


def test_the_clock_of_a_loop_is_monotonic_time():
    """As long as the machine says that it took, from outside."""
    made = rounds.loop("f()", f=lambda: None)
    begin = time.perf_counter()
    inside = made.run(5000)
    assert 0 < inside <= time.perf_counter() - begin
