# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import time

import pytest

import verl_otel
from verl_otel.recording import state
from verl_otel.recording.state import RECORDER


def spans(number):
    for index in range(number):
        with verl_otel.span("s", attributes={"index": index}):
            pass


def dropped():
    return sum(RECORDER.dropped.values())


@pytest.mark.parametrize("number", [9, 10, 11, 250])
def test_spans_beyond_the_capacity_are_dropped_and_counted(recorded, number):
    """The first spans up to the capacity are kept; each one beyond it is dropped and counted."""
    RECORDER.capacity = 10
    spans(number)
    assert dropped() == max(0, number - 10)
    assert [span.attributes["index"] for span in recorded.spans] == list(range(min(number, 10)))


def test_spans_that_are_open_take_no_room_from_those_that_end(recorded):
    """With as many spans open as may end, and more, none is forgotten, and as many others as ever are kept."""
    RECORDER.capacity = 20
    blocks = [verl_otel.tool("open") for _ in range(60)]
    for block in blocks:
        block.__enter__()
    recorded.refresh()
    spans(20)
    assert len(recorded.spans) == 20
    for block in reversed(blocks):
        block.__exit__(None, None, None)
    assert len(recorded.spans) == 80
    assert dropped() == 0
    assert recorded.value("verl.tool.call.duration") == 60


def test_the_number_of_open_spans_is_bounded(recorded):
    """Of too many open spans the newest are dropped, counted and measured; when the others have ended there is room again."""
    RECORDER.capacity = 5
    blocks = [verl_otel.tool("forgotten") for _ in range(25)]
    for block in blocks:
        block.__enter__()
    assert len(RECORDER.opened) == state.OPEN_FACTOR * RECORDER.capacity
    assert dropped() == 25 - len(RECORDER.opened)
    for block in reversed(blocks):
        block.__exit__(None, None, None)
    assert len(recorded.spans) == 25 - dropped()
    assert recorded.value("verl.tool.call.duration") == 25
    spans(1)
    assert recorded.spans[-1].name == "s"


@pytest.mark.full
def test_the_offset_turns_monotonic_time_into_the_time_of_day():
    """Monotonic time plus the offset is the time of day."""
    now = time.time_ns()
    assert abs(int(time.perf_counter() * 1e9) + state.wall_offset_ns() - now) < 1_000_000_000
