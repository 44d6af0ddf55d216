# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What waits for a drain takes little memory, and no more than it may."""

import gc
import sys
import tracemalloc

import pytest

import verl_otel
from verl_otel.recording import state
from verl_otel.recording.api import timer_series
from verl_otel.recording.sampled_timers import find_sampled_timer
from verl_otel.recording.state import RECORDER

BYTES = state.SPAN_BYTES * (1.0 if sys.version_info >= (3, 11) else 1.1)  # objects of Python 3.10 are larger


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


@pytest.mark.full
def test_a_span_without_attributes_is_small(recorded):
    """A span or leaf that nobody said anything about takes less than 200 bytes until it is drained."""
    leaf = find_sampled_timer(timer_series("memory.leaf"))
    kept = []
    # The least of three: a list or dictionary that other tests have filled may be moved meanwhile.
    assert min(held(spans, 1000) for _ in range(3)) / 1000 < 200
    assert held(lambda number: kept.extend(leaf._make(1.0) for _ in range(number)), 1000) / 1000 < 200


@pytest.mark.full
def test_a_trajectory_fits_what_is_reckoned_for_a_span(recorded):
    """A trajectory with a dozen attributes and a link takes less than the number of bytes by which memory is divided."""
    with verl_otel.step(1):
        assert held(trajectories, 1000) / 1000 < BYTES


@pytest.mark.full
def test_spans_that_nobody_drains_stay_within_the_limit(recorded):
    """However many spans end, what they hold is bounded; every one beyond it is counted, and measured all the same."""
    RECORDER.capacity = 500
    with verl_otel.step(1):
        assert held(trajectories, 3000) < 750 * BYTES  # of roots half as many more
        assert held(trajectories, 3000) < 100 * BYTES  # buffers of what is measured
    dropped = sum(RECORDER.dropped.values())
    assert recorded.value("verl.rollout.trajectory.duration") == 6020
    assert len(recorded.spans) + dropped == 6021


def wide(index):
    """16 attributes of 4,096 characters."""
    with verl_otel.span("large") as span:
        for number in range(16):
            span.set_attribute(f"{index} {number}", f"{index} {number} ".ljust(4096, "x"))


def eventful(index):
    """Events with large attributes."""
    with verl_otel.span("large") as span:
        for number in range(16):
            span.add_event(f"{index} {number}", {f"{index} {number}": f"{index} {number}".ljust(4096, "x")})


def crowded(index):
    """Many small attributes with keys and values of their own."""
    with verl_otel.span("large") as span:
        for number in range(128):
            span.set_attribute(f"{index} {number}", f"{index} {number} of a small value")


def nested(index):
    """Sequences of texts, in attributes and in those of links."""
    texts = [f"{index} {number} ".ljust(4096, "\u20ac") for number in range(128)]
    with verl_otel.span("large", attributes={"a": texts, "b": [texts]}) as span:
        span.add_link(span.get_span_context(), {f"{index}": texts})


def scored(index):
    """Many scores of a batch."""
    verl_otel.reward("math")(lambda: [index + number / 7 for number in range(2_000)])()


def replaced(index):
    """One attribute that is set again and again."""
    with verl_otel.span("large") as span:
        for number in range(100):
            span.set_attribute("key", f"{index} {number} ".ljust(4096, "x"))


@pytest.mark.full
@pytest.mark.parametrize("make", [wide, eventful, crowded, nested, scored, replaced])
def test_large_spans_that_are_never_drained_stay_within_the_limit(recorded, make):
    """However large ended spans are, they take the memory that spans may take: those without room are dropped and counted."""
    RECORDER.capacity = 256  # half of VERL_OTEL_MEMORY_MIB=1
    number = 200
    taken = held(lambda count: [make(index) for index in range(count)], number)
    assert taken < 2 * RECORDER.byte_limit
    spans = recorded.spans
    dropped = sum(RECORDER.dropped.values())
    assert spans
    assert dropped
    assert len(spans) + dropped == number + 10


def test_a_dropped_span_is_measured(recorded):
    """A span that finds no room when it ends is in the metrics all the same."""
    RECORDER.capacity = 1
    with verl_otel.step(1), verl_otel.phase("large") as span:
        span.set_attribute("text", "x" * 4096)
    assert recorded.value("verl.phase.duration", verl_phase="large") == 1
    assert [span.name for span in recorded.spans] == ["verl.step"]
    assert sum(RECORDER.dropped.values()) == 1


def test_what_found_no_room_is_counted_in_the_record(recorded):
    """Attributes, events and links that were dropped are counted as OpenTelemetry does, and those of an event beside it."""
    with verl_otel.span("full") as span:
        for number in range(200):
            span.set_attribute(f"key {number}", number)
            span.add_event("event", {f"key {each}": each for each in range(130 if number == 0 else 1)})
            span.add_link(span.get_span_context())
        span.set_attribute("key 7", "replaced")
    record = recorded.span("full")
    assert record.dropped == (72, 72, 72)
    assert (len(record.attributes), len(record.events), len(record.links)) == (128, 128, 128)
    assert record.attributes["key 7"] == "replaced"
    assert (len(record.events[0].attributes), record.events[0].dropped) == (128, 2)


@pytest.mark.full
def test_an_open_span_is_bounded_in_what_it_holds(recorded):
    """Half a megabyte of attributes, if all of them are texts, and as much in the attributes of an event."""
    with verl_otel.span("open") as span:

        def fill(number):
            for key in range(number):
                span.set_attribute(f"key {key}", f"{key} " * 10_000)
            span.add_event("event", {f"key {key}": f"{key} " * 10_000 for key in range(number)})

        assert held(fill, 1000) < 2 * 128 * (4096 + 300)


def test_spans_that_are_never_left_stay_within_the_limit(recorded):
    """Those beyond the number that may be open are not held by those that follow them."""
    RECORDER.capacity = 256  # half of VERL_OTEL_MEMORY_MIB=1

    blocks = [verl_otel.span("forgotten") for _ in range(state.OPEN_FACTOR * RECORDER.capacity)]
    for block in blocks:
        block.__enter__()
    assert held(lambda number: [verl_otel.span("forgotten").__enter__() and None for _ in range(number)], 5_000) < 2**16
    for block in reversed(blocks):
        block.__exit__(None, None, None)


def test_room_comes_back_with_a_drain(recorded):
    """What was drained takes no room any more."""
    RECORDER.capacity = 256
    for index in range(10):
        wide(index)
    first = len(recorded.spans)
    assert 0 < first < 10
    for index in range(10):
        wide(index)
    assert len(recorded.spans) == 2 * first
