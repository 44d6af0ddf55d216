# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest
from opentelemetry import trace

import verl_otel
from verl_otel.recording import collection, span
from verl_otel.recording.span import Span, current_span
from verl_otel.recording.state import RECORDER


def test_spans_have_the_time_of_the_wall_clock(recorded, monkeypatch):
    """A span's times are Unix times: what the wall clock said when its trace began, and monotonic time after that."""
    ticks = iter([100.0, 101.0, 103.5])
    monkeypatch.setattr(span, "clock", lambda: next(ticks))
    monkeypatch.setattr("verl_otel.recording.span.wall_offset_ns", lambda: 1_000_000_000_000)
    with verl_otel.step(1) as made, verl_otel.phase("gen"):
        monkeypatch.setattr(span, "clock", lambda: 102.0)
    assert (made.start_ns, made.end_ns, made.error) == (1_100_000_000_000, 1_102_000_000_000, "")
    gen, step = recorded.span("verl.phase.gen"), recorded.span("verl.step")
    assert (step.start_ns, step.end_ns) == (1_100_000_000_000, 1_102_000_000_000)
    assert (gen.start_ns, gen.end_ns) == (1_101_000_000_000, 1_102_000_000_000)


def test_a_block_that_is_off_is_not_current(is_outside):
    """A block entered while recording is off is not current, and may be written to and left without effect."""
    with verl_otel.step(1) as step:
        step.set_attribute("key", "value")
        step.add_event("event")
        assert is_outside()
        assert current_span() is None
        assert not step.is_recording()
    assert not RECORDER.opened
    batch = collection.collect()
    assert (batch.spans, batch.points, batch.open_spans) == ((), (), ())


def test_a_block_that_ends_after_recording_was_switched_off_does_no_harm(is_outside):
    """A span that is open when recording ends can be left later, and restores the context."""
    from verl_otel.testing import capture

    with capture():
        block = verl_otel.step(1)
        block.__enter__()
    block.__exit__(None, None, None)
    assert is_outside()


def test_end_ends_the_span_before_its_block(recorded, monkeypatch):
    """After `end` the span has its duration and records nothing twice; it stays current until the block is left."""
    with verl_otel.step(1) as step:
        step.end()
        assert not step.is_recording()
        assert trace.get_current_span() is step
        assert len(recorded.spans) == 1
    assert len(recorded.spans) == 1
    assert recorded.value("verl.step.duration") == 1


def test_a_discarded_span_leaves_nothing(recorded, is_outside):
    """A span that is discarded before it ends makes no span, no metric, and no open span."""
    with verl_otel.step(1) as step:
        step.discard()
    assert is_outside()
    assert recorded.spans == []
    assert recorded.points == []
    assert not RECORDER.opened


def test_a_phase_outside_of_everything_makes_no_trace(recorded):
    """It is measured: neither a span nor ids, which cost as much as the rest of it."""
    with verl_otel.phase("gen") as phase:
        pass
    assert recorded.spans == []
    assert phase.ids is None
    assert recorded.value("verl.phase.duration", verl_phase="gen") == 1


def test_a_phase_between_two_steps_of_an_own_loop_is_a_span(recorded):
    """A checkpoint there delays the next step, from the first one on."""
    for number in range(1, 3):
        with verl_otel.step(number):
            pass
        with verl_otel.phase("save_checkpoint"):
            pass
    assert [span.name for span in recorded.spans] == ["verl.step", "verl.phase.save_checkpoint"] * 2


def test_a_verbs_object_is_for_one_block(recorded, caplog):
    """An object that a verb returned records the first block for which it is used; that it was used again is said once."""
    python = verl_otel.tool("python")
    for _ in range(3):
        with python:
            pass
    assert len(recorded.spans) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "verl-otel: 'execute_tool python' was entered twice; call the verb again for each block"
    ]


@pytest.mark.full
def test_a_chain_of_callbacks_does_not_hold_all_its_spans(recorded, alive_spans):
    """A traced callback that schedules its own next call, as heartbeats do, holds no more than its latest spans."""

    async def main():
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        @verl_otel.span("tick")
        def tick(left):
            if left % 100 == 0:
                collection.collect()
            if left:
                loop.call_soon(tick, left - 1)
            else:
                done.set_result(None)

        tick(3000)
        await asyncio.wait_for(done, 60)
        return alive_spans()

    assert asyncio.run(main()) < 300


def test_a_span_is_always_true(recorded):
    """A span is true although it has a length as a context, so that `if span:` means what it seems to mean."""
    with verl_otel.step(1) as step:
        assert bool(step) is True
    assert isinstance(step, Span)
