# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Work in several processes comes back complete and in order; what fails is said, and who dies is replaced by this process."""

import math
import os

import pytest

from verl_otel.analysis.io import slices


@pytest.mark.parametrize("processes", [0, 2])
def test_results_come_in_the_order_of_the_tasks(processes):
    """Every result is there once, in order, with or without other processes."""
    assert list(slices.map_ordered(math.factorial, range(20), processes)) == [
        math.factorial(number) for number in range(20)
    ]


@pytest.mark.parametrize("processes", [0, 1])
def test_what_fails_is_raised(processes):
    """An error in another process is an error here."""
    with pytest.raises(ValueError, match="negative"):
        list(slices.map_ordered(math.factorial, [3, -1], processes))


def test_no_more_is_begun_than_can_wait():
    """Tasks are asked for when there is room: what is done and not taken yet stays bounded."""
    begun = []

    def tasks():
        for number in range(100):
            begun.append(number)
            yield number

    found = slices.map_ordered(math.factorial, tasks(), 1)
    for expected in range(10):
        next(found)
        assert len(begun) <= expected + 1 + 2
    found.close()


def test_a_dead_worker_costs_nothing_but_time():
    """A process that is killed, by the kernel for its memory say, is done without: this one goes on."""
    task = f"(p := __import__('os').getpid()) == {os.getpid()} or __import__('os').kill(p, 9)"
    assert list(slices.map_ordered(eval, [task] * 5, 1)) == [True] * 5


def test_one_core_needs_no_worker(monkeypatch):
    """Where there is one core, or nobody says how many, there are sensible numbers."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert slices.count_workers() == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert slices.count_workers() == slices.MAX_WORKERS
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert slices.count_workers() == 0
