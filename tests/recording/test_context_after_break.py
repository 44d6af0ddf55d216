# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A block that a generator keeps open, as after a ``break``: its span is not current any more after the block around the loop."""

import contextlib

import verl_otel
from verl_otel.recording.span import current_span


def rollouts():
    with verl_otel.trajectory("prompt", 1):
        yield 1
        yield 2


async def stream():
    with verl_otel.trajectory("prompt", 1):
        yield 1
        yield 2


@contextlib.contextmanager
def step_of_the_user():
    with verl_otel.step(1):
        yield


def name_of_current():
    """Name of the span whose child a span would be that begins now."""
    span = current_span()
    return None if span is None else span.name


async def test_after_break_in_an_async_generator_nothing_is_current(recorded):
    """The event loop closes the generator later: what comes after the step is not part of its trajectory."""
    with verl_otel.step(1):
        async for _ in stream():
            break
    assert name_of_current() is None
    with verl_otel.step(2), verl_otel.span("train"):
        pass
    train = recorded.span("train")
    second = next(
        span for span in recorded.spans if span.name == "verl.step" and span.attributes["verl.step.number"] == 2
    )
    assert (train.trace_id, train.parent_id) == (second.trace_id, second.span_id)
    assert second.parent_id == 0


async def test_a_generator_that_is_closed_after_the_step_changes_nothing(recorded):
    """It is held, and closed while another span is current."""
    with verl_otel.step(1):
        generator = stream()
        async for _ in generator:
            break
    with verl_otel.step(2):
        await generator.aclose()
        assert name_of_current() == "verl.step"
    assert name_of_current() is None
    assert sorted(span.name for span in recorded.spans) == ["verl.step", "verl.step", "verl.trajectory"]


def test_a_generator_that_is_held_after_break_is_not_current(recorded):
    """The same without an event loop, and where the block of the step is itself written as a generator."""
    for block in (lambda: verl_otel.step(1), step_of_the_user):
        with block():
            held = rollouts()
            next(held)
        assert name_of_current() is None
        held.close()
        assert name_of_current() is None


def test_a_block_of_the_consumer_stays_current_when_the_generator_ends(recorded):
    """Here the block that ends stands in the generator, and the one inside it is still running."""
    with verl_otel.step(1):
        generator = rollouts()
        next(generator)
        with verl_otel.span("reward"):
            list(generator)
            assert name_of_current() == "reward"
        assert name_of_current() == "verl.step"
    assert name_of_current() is None
