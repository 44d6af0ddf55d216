# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Many threads at once: nothing is lost, nothing is counted twice, nothing grows beyond its bound."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import verl_otel
from tests.fakes.fold_locks import hold
from verl_otel.model import HistogramValue, Instrument
from verl_otel.recording import collection, series
from verl_otel.recording.series import Counter
from verl_otel.recording.state import RECORDER

WRITERS, DRAINERS = 8, 4


class Drainers:
    """Threads that drain for as long as the block lasts, and what they got."""

    def __init__(self, number):
        self.batches = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(number)]

    def _run(self):
        while not self._stop.is_set():
            batch = collection.collect(wait=0)
            if batch is not None:
                self.batches.append(batch)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.batches.append(collection.collect())

    def last_value(self, name):
        """Return the largest value of a metric that any drain has shown: the total, since it is cumulative."""
        values = [point.value for batch in self.batches for point in batch.points if point.instrument.name == name]
        return max(value.samples if isinstance(value, HistogramValue) else value for value in values)


@pytest.mark.parametrize("span", [False, True])
def test_decorated_functions_are_exact_in_many_threads(recorded, fast_switching, span):
    """Every call of a timed function in 8 threads is measured or counted as dropped while others drain."""
    name = f"work.{span}"

    @verl_otel.timed(name, span=span)
    def work():
        return 1

    def call(_):
        return sum(work() for _ in range(5000))

    with Drainers(2) as drainers, ThreadPoolExecutor(WRITERS) as pool:
        assert sum(pool.map(call, range(WRITERS))) == WRITERS * 5000
    assert drainers.last_value(name) + series.dropped() == WRITERS * 5000


def test_every_span_is_drained_once(recorded, fast_switching):
    """Each span that 8 threads end comes out of exactly one drain."""

    def work(number):
        for index in range(500):
            with verl_otel.span("s", attributes={"key": f"{number}.{index}"}):
                pass

    with Drainers(DRAINERS) as drainers, ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))
    keys = [span.attributes["key"] for batch in drainers.batches for span in batch.spans]
    assert len(keys) == len(set(keys)) == WRITERS * 500


def test_rivals_for_a_new_series_get_the_same_one(recorded, fast_switching):
    """Threads that record to the same new labels at the same time share one series."""
    start = threading.Barrier(WRITERS, timeout=60)
    done = verl_otel.counter("done")

    def write(_):
        start.wait()
        for index in range(150):
            done.add(1, key=index)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    values = [point.value for point in recorded.points if point.instrument.name == "done"]
    assert sum(values) == WRITERS * 150


def test_only_one_drains_at_a_time(recorded):
    """A drain that only tries gives up while another one is at work, and loses nothing."""
    verl_otel.counter("done").add(1)
    with RECORDER.drain_lock:
        assert collection.collect(wait=0) is None
        assert collection.collect(wait=0.01) is None
    assert recorded.value("done") == 1


def test_a_drain_that_only_tries_takes_spans_while_a_caller_folds(recorded):
    """While a caller folds, a drain that only tries hands out what it can; the series are in the next one."""
    verl_otel.counter("done").add(1)
    with verl_otel.span("s"):
        pass
    with hold(series.find(Counter, Instrument("done", "counter", "", ""), ()).lock):
        batch = collection.collect(wait=0)
    assert [span.name for span in batch.spans] == ["s"]
    assert batch.points == ()
    assert recorded.value("done") == 1
