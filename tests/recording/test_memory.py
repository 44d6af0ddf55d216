# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What waits for a drain takes little memory, and no more than it may."""

import asyncio
import gc
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import verl_otel
from verl_otel.recording import registry, store
from verl_otel.recording.instruments import timer_series
from verl_otel.recording.leaves import find_leaf
from verl_otel.recording.series import CEILING
from verl_otel.recording.store import Store

BYTES = store.SPAN_BYTES * (1.0 if sys.version_info >= (3, 11) else 1.1)  # objects of Python 3.10 are larger


def spans(number):
    for _ in range(number):
        with verl_otel.span("memory"):
            pass


def trajectories(number):
    for index in range(number):
        with verl_otel.trajectory(f"uid-{index}", index, step=1000 + index, agent="tool_agent") as span:
            span.set_attribute("verl.rollout.turns", index)
            span.set_attribute("prompt", index + 1000)
            span.set_attribute("response", index + 2000)
            span.set_attribute("score", index / 7)
            span.set_attribute("reason", "stop")
            assert len(span.attributes) == 12


def held(make, number):
    """Return the bytes that ``make(number)`` leaves behind."""
    make(10)  # what is made once for all
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        make(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_a_span_without_attributes_is_small(recorded):
    """A span or leaf that nobody said anything about takes less than 200 bytes until it is drained."""
    leaf = find_leaf(timer_series("memory.leaf"))
    kept = []
    assert held(spans, 1000) / 1000 < 200
    assert held(lambda number: kept.extend(leaf._make(1.0) for _ in range(number)), 1000) / 1000 < 200


def test_a_trajectory_fits_what_is_reckoned_for_a_span(recorded):
    """A trajectory with a dozen attributes and a link takes less than the number of bytes by which memory is divided."""
    with verl_otel.step(1):
        assert held(trajectories, 1000) / 1000 < BYTES


def test_spans_that_nobody_drains_stay_within_the_limit(recorded):
    """However many spans end, what they hold is bounded; every one beyond it is counted, and measured all the same."""
    Store.capacity = 500
    with verl_otel.step(1):
        assert held(trajectories, 3000) < 750 * BYTES  # of roots half as many more
        assert held(trajectories, 3000) < 100 * BYTES  # buffers of what is measured
    dropped = sum(Store.dropped.values())
    assert recorded.value("verl.rollout.trajectory.duration") == 6020
    assert len(recorded.spans) + dropped == 6021


def test_a_buffer_that_nobody_folds_stays_within_the_limit(recorded):
    """However often a timed function is called while somebody else folds for ever, its buffer is bounded."""
    work = verl_otel.timed("memory.timed")(lambda: None)
    series = timer_series("memory.timed")

    def call(number):
        with series.lock:
            for _ in range(number):
                work()

    assert held(call, 5 * CEILING) < 40 * CEILING
    assert recorded.value("memory.timed") + registry.dropped() == 5 * CEILING + 10


def test_totals_of_many_series_threads_and_tasks_are_exact(recorded, fast_switching):
    """100 series that 8 threads and 256 tasks record to: every call is in a total or in the count of what was dropped."""
    works = [verl_otel.timed(f"memory.series.{index}", span=index % 2 == 0)(lambda: None) for index in range(100)]

    def call(_):
        for work in works:
            for _ in range(50):
                work()

    async def main():
        async def task():
            for work in works:
                work()
            await asyncio.sleep(0)
            with verl_otel.span("task"):
                await asyncio.sleep(0)

        await asyncio.gather(*(task() for _ in range(256)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    asyncio.run(main())
    points = [point for point in recorded.points if point.instrument.name.startswith("memory.series.")]
    assert sum(point.value.samples for point in points) + registry.dropped() == 100 * (8 * 50 + 256)
    assert sum(span.name == "task" for span in recorded.spans) == 256
