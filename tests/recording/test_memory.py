# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What waits for a drain takes little memory, and no more than it may."""

import gc
import sys
import tracemalloc

import pytest

import verl_otel
from tests.fakes.fold_locks import hold
from verl_otel.recording import series, state
from verl_otel.recording.instruments import timer_series
from verl_otel.recording.sampled_timers import find_sampled_timer
from verl_otel.recording.series import CEILING
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
    assert held(spans, 1000) / 1000 < 200
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


@pytest.mark.full
def test_a_buffer_that_nobody_folds_stays_within_the_limit(recorded):
    """However often a timed function is called while somebody else folds for ever, its buffer is bounded."""
    work = verl_otel.timed("memory.timed")(lambda: None)
    timed = timer_series("memory.timed")

    def call(number):
        with hold(timed.lock):
            for _ in range(number):
                work()

    assert held(call, 5 * CEILING) < 40 * CEILING
    assert recorded.value("memory.timed") + series.dropped() == 5 * CEILING + 10


def wide(index):
    """128 attributes of 4,096 characters."""
    with verl_otel.span("wide") as span:
        for number in range(128):
            span.set_attribute(f"{index} {number}", f"{index} {number} ".ljust(4096, "x"))


def eventful(index):
    """128 events with 128 attributes of 4,096 characters each, of which a few suffice here."""
    with verl_otel.span("eventful") as span:
        for number in range(128):
            span.add_event(
                f"{index} {number}", {f"{index} {key}": f"{index} {key}".ljust(4096, "x") for key in range(8)}
            )


def crowded(index):
    """Many small attributes with keys and values of their own."""
    with verl_otel.span("crowded") as span:
        for number in range(200):
            span.set_attribute(f"{index} {number}", f"{index} {number} of a small value")


def nested(index):
    """Sequences of texts, in the attributes of the verb and of links, and long names."""
    texts = [f"{index} {number} ".ljust(4096, "\u20ac") for number in range(128)]
    with verl_otel.span(
        f"{index} ".ljust(10_000, "x"), attributes={"a": texts, "b": [texts], "c": {"d": texts}}
    ) as span:
        for number in range(128):
            span.add_link(span.get_span_context(), {f"{index} {number}": texts})


def scored(index):
    """Many scores of a batch."""
    verl_otel.reward("math")(lambda: [index + number / 7 for number in range(20_000)])()


def replaced(index):
    """One attribute that is set again and again."""
    with verl_otel.span("replaced") as span:
        for number in range(100):
            span.set_attribute("key", f"{index} {number} ".ljust(4096, "x"))


@pytest.mark.full
@pytest.mark.parametrize("make", [wide, eventful, crowded, nested, scored, replaced])
def test_what_is_said_about_spans_stays_within_the_limit(recorded, make):
    """Attributes of spans that are never drained take a small multiple of the memory that spans may take."""
    RECORDER.capacity = 256  # half of VERL_OTEL_MEMORY_MIB=1
    number = 100
    taken = held(lambda count: [make(index) for index in range(count)], number)
    assert taken < 2 << 20
    assert RECORDER.bytes <= RECORDER.byte_limit * 5 // 4
    spans = recorded.spans
    assert len(spans) + sum(RECORDER.dropped.values()) == number + 10
    assert RECORDER.bytes == 0
    assert sum(span.weight for span in spans) <= RECORDER.byte_limit * 5 // 4


def test_what_found_no_room_is_counted_in_the_record(recorded):
    """Attributes, events and links that were dropped are counted as OpenTelemetry does, and those of an event beside it."""
    with verl_otel.span("full") as span:
        for number in range(200):
            span.set_attribute(f"key {number}", number)
            span.add_event("event", {f"key {each}": each for each in range(130 if number == 0 else 1)})
            span.add_link(span.get_span_context())
    record = recorded.span("full")
    assert record.dropped == (72, 72, 72)
    assert (len(record.attributes), len(record.events), len(record.links)) == (128, 128, 128)
    assert (len(record.events[0].attributes), record.events[0].dropped) == (128, 2)


def test_an_attribute_that_is_replaced_counts_once(recorded):
    """A large value that replaces another one takes its room, and a span that is full takes what says how it ended."""
    with pytest.raises(ValueError, match="failed"), verl_otel.span("replaced") as span:  # noqa: PT012 - the span is what is looked at
        for number in range(1000):
            span.set_attribute("key", f"{number} ".ljust(4096, "x"))
        assert span.attributes["key"].startswith("999 ")
        for number in range(128):
            span.set_attribute(f"key {number}", f"{number} ".ljust(4096, "x"))
        raise ValueError("failed")
    record = recorded.span("replaced")
    assert record.attributes["error.type"] == "ValueError"
    assert record.events[-1].name == "exception"
    assert record.dropped[0] > 50


def test_room_comes_back_with_a_drain(recorded):
    """What was drained takes no room any more; what is open goes on taking it."""
    RECORDER.capacity = 256
    with verl_otel.span("open") as span:
        span.set_attribute("key", "x" * 4096)
        for index in range(4):
            wide(index)
        first, *_, last = recorded.spans
        assert len(first.attributes) > len(last.attributes)
        assert first.dropped == (128 - len(first.attributes), 0, 0)
        assert 4096 <= RECORDER.bytes < 5000
        wide(0)
        assert len(recorded.spans[-1].attributes) == len(first.attributes)
