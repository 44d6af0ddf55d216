# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import threading
import time

import pytest

import verl_otel
from verl_otel.recording import recorder, store
from verl_otel.recording.store import Store


def spans(number):
    for index in range(number):
        with verl_otel.span("s", attributes={"index": index}):
            pass


def dropped():
    return sum(Store.dropped.values())


@pytest.mark.parametrize("number", [9, 10, 11, 250])
def test_spans_beyond_the_capacity_are_dropped_and_counted(recorded, number):
    """The first spans up to the capacity are kept; each one beyond it is dropped, counted, and still measured."""
    Store.capacity = 10
    spans(number)
    assert dropped() == max(0, number - 10)
    assert [span.attributes["index"] for span in recorded.spans] == list(range(min(number, 10)))


def test_after_a_drain_there_is_room_again(recorded):
    """A drain makes room for as many spans as before."""
    Store.capacity = 10
    for _ in range(3):
        spans(10)
        assert len(recorder.drain().spans) == 10
    assert dropped() == 0


def test_metrics_of_dropped_spans_are_kept(recorded):
    """A span that is dropped for want of room is in the metrics."""
    Store.capacity = 1
    for _ in range(5):
        with verl_otel.tool("python"):
            pass
    assert recorded.value("verl.tool.call.duration") == 5
    assert len(recorded.spans) == 1


def test_drops_of_several_threads_are_all_counted(recorded):
    """Each thread counts its own drops, and their sum is exact."""
    Store.capacity = 5
    threads = [threading.Thread(target=spans, args=(100,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = len(recorded.spans)
    assert 5 <= kept <= 5 + 4
    assert kept + dropped() == 400


def test_the_offset_turns_monotonic_time_into_the_time_of_day():
    """Monotonic time plus the offset is the time of day."""
    now = time.time_ns()
    assert abs(int(time.perf_counter() * 1e9) + store.wall_offset_ns() - now) < 1_000_000_000


def test_clearing_forgets_everything(recorded):
    """After clearing there are no spans, neither ended nor open, and no drops."""
    Store.capacity = 1
    spans(3)
    block = verl_otel.span("open")
    block.__enter__()
    store.clear()
    assert (Store.finished, Store.opened, Store.dropped) == ([], {}, {})
    block.discard()
    block.__exit__(None, None, None)
