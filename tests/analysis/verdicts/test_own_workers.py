# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Workers of an own loop: the one that began late or took long is named, whether or not they have ranks and collectives."""

import pytest

from tests.analysis.verdicts.test_stragglers import node
from verl_otel.analysis.verdicts import own_workers


def worker(number, begin, end, **attributes):
    name = "verl.worker Learner.update"
    return node(name, begin, end, instance=f"actor-{number}", verl__worker__method="update", **attributes)


def step(*workers, lineage="submitted"):
    return node(
        "verl.step", 0, 100, node("verl.phase.update", 0, 50, *workers), **({"verl__step__lineage": lineage} if lineage else {})
    )  # fmt: skip


def found(root, **more):
    return [(each.rank, each.evidence, pytest.approx(each.seconds)) for each in own_workers.find(root, **more)]


def test_the_worker_that_took_longer_is_named():
    """Without a collective the others end in time, and the slow one holds the phase."""
    workers = [worker(number, 0.01 * number, 3.0 if number == 2 else 1.0) for number in range(4)]
    assert found(step(*workers)) == [(2, "took", pytest.approx(1.99))]


def test_the_worker_that_began_late_is_named():
    """With a collective all end together; the one that began late is the cause."""
    workers = [worker(number, 2.0 if number == 2 else 0.0, 5.0) for number in range(4)]
    assert found(step(*workers)) == [(2, "began", 2.0)]


def test_workers_in_a_call_of_a_worker_group_are_compared():
    """Under verl's worker group, too, the one that took longer is named; late arrival is left to the ranks."""
    took = [worker(number, 0.0, 3.0 if number == 2 else 1.0) for number in range(3)]
    began = [worker(number, 2.0 if number == 2 else 0.0, 5.0) for number in range(3)]
    assert found(step(node("verl.call update", 0, 9, *took))) == [(2, "took", 2.0)]
    assert found(step(node("verl.call update", 0, 9, *began))) == []


def test_a_recorded_rank_is_its_number():
    """The rank of the worker's object counts, not the number of its process."""
    workers = [worker(4000 + rank, 0, 3.0 if rank == 1 else 1.0, verl__rank=rank) for rank in range(3)]
    assert [each.rank for each in own_workers.find(step(*workers))] == [1]


def test_workers_in_threads_of_one_process_are_told_apart_by_their_rank():
    """Objects of three ranks, called at the same time in one process: the slow one is named."""
    workers = [worker(7, 0, 3.0 if rank == 1 else 1.0, verl__rank=rank) for rank in range(3)]
    assert found(step(*workers)) == [(1, "took", 2.0)]
    assert found(step(*(worker(7, 0, 3.0 if number == 1 else 1.0) for number in range(3)))) == []


def test_the_second_calls_are_compared_with_each_other():
    """Each worker is called twice in a phase; one second call is slow."""
    workers = [worker(number, 2 * call, 2 * call + (1.9 if (number, call) == (0, 1) else 1.0)) for number in range(3) for call in range(2)]  # fmt: skip
    assert found(step(*workers)) == [(0, "took", pytest.approx(0.9))]


@pytest.mark.parametrize(
    "workers",
    [
        [worker(number, 2.0 * number, 2.0 * number + 1.9) for number in range(3)],
        [worker(number, 0, 2 + 0.05 * number) for number in range(4)],
        [worker(0, 0, 9)],
    ],
    ids=["one after the other", "equal", "alone"],
)
def test_workers_that_delay_nobody_are_not_named(workers):
    """Workers that are called in turn, and small differences, give no late worker."""
    assert own_workers.find(step(*workers)) == ()


def test_steps_of_verl_are_left_to_its_ranks():
    """A step without the mark of an own loop has no late workers of its own."""
    workers = [worker(number, 0.0, 3.0 if number == 2 else 1.0) for number in range(4)]
    assert own_workers.find(step(*workers, lineage="")) == ()


def test_a_delay_within_the_uncertainty_of_the_clocks_is_none():
    """Another host whose clock may be two seconds off is not late."""
    workers = [worker(number, 2.0 if number == 2 else 0.0, 5.0) for number in range(4)]
    assert found(step(*workers), uncertainty=2.0) == []
