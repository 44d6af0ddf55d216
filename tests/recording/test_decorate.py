# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What may be decorated, and that it stays what it was."""

import asyncio
import functools
import gc
import inspect
import types

import pytest

import verl_otel
from verl_otel.recording import decorate
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import find_callsite
from verl_otel.recording.state import RECORDER

VERBS = [
    pytest.param(lambda: verl_otel.tool("t"), id="span"),
    pytest.param(lambda: verl_otel.timed("verb.timed"), id="timed"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_the_kind_of_a_function_stays(verb):
    """A decorated function is to `inspect` and `asyncio` what the plain one is."""

    def sync(): ...
    async def coroutine(): ...
    def generator():
        yield

    async def async_generator():
        yield

    tests = [inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isfunction]
    for function in (sync, coroutine, generator, async_generator):
        decorated = verb()(function)
        assert [test(decorated) for test in tests] == [test(function) for test in tests]


def test_an_async_callable_is_measured_until_it_is_awaited(recorded):
    """A partial of a coroutine function is a coroutine function: its span lasts until the result is there."""

    async def work(number):
        await asyncio.sleep(0)
        assert len(RECORDER.opened) == 1
        return number

    decorated = verl_otel.tool("t")(functools.partial(work, 5))
    assert inspect.iscoroutinefunction(decorated)
    assert asyncio.run(decorated()) == 5
    assert len(recorded.spans) == 1


def test_the_span_of_an_async_callable_object_lasts_until_it_is_done(recorded):
    """An object whose `__call__` is a coroutine function has a span that lasts until the result is there."""

    class Tool:
        async def __call__(self):
            await asyncio.sleep(0)
            return len(RECORDER.opened)

    assert asyncio.run(verl_otel.tool("t")(Tool())()) == 1


def test_a_generator_based_coroutine_may_be_awaited(recorded):
    """A function marked with `types.coroutine` can be awaited after decorating it."""

    @verl_otel.span("s")
    @types.coroutine
    def work():
        yield from asyncio.sleep(0).__await__()
        return 5

    async def main():
        return await work()

    assert asyncio.run(main()) == 5


@pytest.mark.full
def test_decorated_functions_are_freed(recorded):
    """Functions that are decorated in a loop and thrown away are not held."""

    def count():
        gc.collect()
        return sum(type(thing) is CallSite for thing in gc.get_objects())

    before = count()
    for number in range(300):
        assert verl_otel.span("s")(lambda number=number: number)() == number
    recorded.refresh()
    assert count() - before < 10


def test_our_wrapper_is_found_below_others():
    """A function is recognised as decorated by us below other decorators, and plain ones are not."""
    ours = verl_otel.tool("t")(lambda: 1)

    @functools.wraps(ours)
    def around():
        return ours()

    assert find_callsite(ours).name == find_callsite(around).name == "execute_tool t"
    assert find_callsite(len) is None
    assert find_callsite(lambda: 1) is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_decorator_takes_over_a_function_that_a_hook_wrapped(recorded, asynchronous):
    """A function that a hook has wrapped and a user decorates is one span: the user's."""

    async def coroutine():
        return 1

    function = coroutine if asynchronous else (lambda: 1)
    hooked = decorate.wrap(function, CallSite("worker", "verl.worker hook", hook=True))
    decorated = verl_otel.update("actor")(hooked)
    assert (asyncio.run(decorated()) if asynchronous else decorated()) == 1
    (span,) = recorded.spans
    assert span.attributes["verl.update.role"] == "actor"
    assert recorded.value("verl.worker.calls") == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_decorator_takes_over_a_generator_that_a_hook_wrapped(recorded, asynchronous):
    """A generator function that a hook has wrapped and a user decorates is one span, too."""

    async def async_produce():
        yield 1

    def produce():
        yield 1

    async def consume(generator):
        return [item async for item in generator]

    hooked = decorate.wrap(async_produce if asynchronous else produce, CallSite("turn", hook=True))
    generator = verl_otel.span("mine")(hooked)()
    assert (asyncio.run(consume(generator)) if asynchronous else list(generator)) == [1]
    assert [span.name for span in recorded.spans] == ["mine"]
