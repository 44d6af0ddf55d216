# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Async generator functions: as for plain ones, and closed by other tasks and by the event loop as well."""

import asyncio
import contextlib
import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import verl_otel
from verl_otel.recording.span import current_span
from verl_otel.recording.state import RECORDER
from verl_otel.testing import capture

ACTIONS = st.lists(st.sampled_from(["go on", "fail", "return", "catch", "catch twice", "fail on close"]), max_size=4)
OPERATIONS = st.lists(
    st.sampled_from(["next", "send", "throw ValueError", "throw KeyError", "throw StopAsyncIteration", "close"]),
    max_size=8,
)


async def machine(actions, log):
    """An async generator that does at each ``yield`` what the list says, and logs what it sees."""
    for action in actions:
        try:
            await asyncio.sleep(0)
            log.append((yield action))
            await asyncio.sleep(0)
            if action == "fail":
                raise KeyError("own")
            if action == "return":
                return
        except ValueError as error:
            log.append(f"caught {error}")
            if action == "catch twice":
                yield "again"
            elif action != "catch":
                raise
        except GeneratorExit:
            log.append("closing")
            await asyncio.sleep(0)
            if action == "fail on close":
                raise KeyError("closing") from None
            raise
        finally:
            await asyncio.sleep(0)
            log.append("left")


async def operate(generator, operation):
    """Do one operation and return what came out: a value, or the exception's class and arguments."""
    word, _, argument = operation.partition(" ")
    try:
        if word == "next":
            return await generator.__anext__()
        if word == "send":
            return await generator.asend(5)
        if word == "throw":
            errors = {"ValueError": ValueError, "KeyError": KeyError}
            return await generator.athrow(errors.get(argument, StopAsyncIteration)("t"))
        return await generator.aclose()
    except BaseException as error:
        return type(error), error.args


@pytest.mark.full
@given(ACTIONS, OPERATIONS)
@settings(deadline=None, max_examples=150, database=None)
def test_a_decorated_async_generator_does_what_the_plain_one_does(actions, operations):
    """Any sequence of operations, each in a task of its own, gives the same results and leaves no context behind."""

    async def main(decorate):
        log = []
        generator = decorate(machine)(actions, log)
        results = []
        for operation in [*operations, "close"]:
            results.append(await asyncio.ensure_future(operate(generator, operation)))
            assert trace.get_current_span() is trace.INVALID_SPAN
        return results, log

    with capture() as captured:
        plain = asyncio.run(main(lambda function: function))
        decorated = asyncio.run(main(verl_otel.span("g")))
        assert not RECORDER.opened
        assert len(captured.spans) <= 1
    assert plain == decorated


async def test_children_belong_to_the_generator_or_to_its_consumer(recorded):
    """What the body opens is below the generator, what the consumer opens is not, however they take turns."""

    @verl_otel.span("g")
    async def produce():
        for number in range(2):
            with verl_otel.span("in body"):
                await asyncio.sleep(0)
            yield number

    with verl_otel.step(1):
        async for _ in produce():
            with verl_otel.span("in consumer"):
                await asyncio.sleep(0)
    parents = {span.name: span.parent_id for span in recorded.spans}
    assert parents["in consumer"] == parents["g"] == recorded.span("verl.step").span_id
    assert parents["in body"] == recorded.span("g").span_id


async def test_many_generators_at_once_do_not_mix(recorded):
    """50 tasks that each consume a generator of their own see their own spans only."""

    @verl_otel.span
    async def produce(key):
        for _ in range(5):
            mine = current_span()
            await asyncio.sleep(0)
            assert current_span() is mine
            yield key

    async def consume(key):
        return [item async for item in produce(key)]

    results = await asyncio.gather(*(consume(key) for key in range(50)))
    assert results == [[key] * 5 for key in range(50)]
    assert len(recorded.spans) == 50


async def test_a_generator_may_be_closed_by_another_task(recorded):
    """`aclose` in another task ends the span as cancelled and leaves the contexts of both tasks alone."""

    @verl_otel.span("g")
    async def produce():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    generator = produce()
    await generator.__anext__()

    async def close():
        with verl_otel.span("closer") as span:
            await generator.aclose()
            assert trace.get_current_span() is span

    await asyncio.create_task(close())
    assert current_span() is None
    assert recorded.span("g").attributes["verl.outcome"] == "cancelled"
    assert recorded.span("closer").parent_id == recorded.span("g").parent_id == 0


@pytest.mark.full
async def test_a_half_consumed_generator_is_closed_by_the_loop(recorded):
    """An async generator that is collected half consumed is closed by the event loop, and its span ends."""
    closed = []

    @verl_otel.span("g")
    async def produce():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    generator = produce()
    await generator.__anext__()
    del generator
    gc.collect()
    for _ in range(1000):
        if closed and not RECORDER.opened:
            break
        await asyncio.sleep(0)
    assert closed == [True]
    assert recorded.span("g").attributes["verl.outcome"] == "cancelled"
    assert current_span() is None


async def test_a_cancelled_consumer_ends_the_span(recorded):
    """A task that is cancelled while the body waits ends the span as cancelled."""
    waiting = asyncio.Event()

    @verl_otel.span("g")
    async def produce():
        waiting.set()
        await asyncio.Event().wait()
        yield 1

    async def consume():
        async for _ in produce():
            pass

    task = asyncio.create_task(consume())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorded.span("g").attributes["verl.outcome"] == "cancelled"


async def test_off_an_async_generator_is_only_passed_through():
    """With recording off a decorated async generator yields and takes the same, and opens nothing."""
    for verb in (verl_otel.span("g"), verl_otel.timed("g")):
        log = []
        generator = verb(machine)(["go on"], log)
        assert await generator.__anext__() == "go on"
        with pytest.raises(StopAsyncIteration):
            await generator.asend("sent")
        assert log == ["sent", "left"]
    assert not RECORDER.opened


async def test_a_timed_async_generator_is_measured_once(recorded):
    """A timed async generator makes one measurement: of its whole life, in the series of its outcome."""

    @verl_otel.timed("lives")
    async def produce(error):
        yield 1
        if error:
            raise error

    assert [item async for item in produce(None)] == [1]
    with pytest.raises(KeyError):
        assert [item async for item in produce(KeyError())]
    points = [point for point in recorded.points if point.instrument.name == "lives"]
    measured = {point.labels: point.value.samples for point in points}
    assert measured == {(): 1, (("error.type", "KeyError"),): 1}


def end_of_loop(decorate):
    """Run a loop that ends with a generator half consumed; return what was logged by the generator and the loop."""
    log, held = [], []

    @decorate
    async def produce():
        try:
            yield 1
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            log.append("cleaned up")

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: log.append(context["message"]))
        held.append(produce())
        await held[0].__anext__()

    asyncio.run(main())
    return log


@pytest.mark.parametrize("verb", [verl_otel.span("g"), verl_otel.timed("g")])
def test_the_end_of_a_loop_closes_a_decorated_generator_silently(recorded, verb):
    """A loop that ends closes a decorated generator as it closes a plain one: once, and without an error."""
    assert end_of_loop(verb) == ["cleaned up"]
    assert all(span.status == 0 for span in recorded.spans)


async def test_a_generator_may_survive_a_thrown_generator_exit(recorded):
    """A body that answers a thrown GeneratorExit with another item goes on, decorated or not."""

    @verl_otel.span("g")
    async def produce():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    generator = produce()
    await generator.__anext__()
    try:
        assert await generator.athrow(GeneratorExit()) == 2
    finally:
        await generator.aclose()


async def test_wrong_arguments_leave_nothing_open(recorded):
    """An async generator function that is called with wrong arguments raises, and leaves no open span behind."""

    @verl_otel.span("g")
    async def produce(needed):
        yield needed

    with pytest.raises(TypeError, match="needed"):
        await produce().__anext__()
    assert not RECORDER.opened


class Batch:
    """Stands for a tensor: it must be freed without the garbage collector, which memory of a GPU does not set off."""


@pytest.mark.parametrize("on", [True, False])
def test_a_generator_that_is_closed_early_frees_its_variables(on):
    """No cycle keeps what the body held, whether anything is recorded or not."""

    @verl_otel.span("batches")
    async def batches():
        batch = Batch()
        references.append(weakref.ref(batch))
        while True:
            yield batch

    async def consume():
        generator = batches()
        await anext(generator)
        await generator.aclose()
        assert references[0]() is None

    references = []
    with capture() if on else contextlib.nullcontext():
        gc.disable()
        try:
            asyncio.run(consume())
        finally:
            gc.enable()
