# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of callables that users decorate, and what a caller can see of each."""

import asyncio
import contextlib
import functools
import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import Any

SHAPES = {}


@dataclass
class Shape:
    build: Any
    """Makes the decorated thing, given a decorator."""
    observe: Any
    """Returns what a caller gets from the thing."""
    may_be_refused: bool = False
    """Whether ``TypeError`` at the decoration is as good: no wrapper can have the behaviour of every such thing."""

    def look(self, thing):
        """Return what can be seen of a thing, by aspect; what it raises is part of it."""
        try:
            seen = {"result": self.observe(thing)}
        except Exception as error:
            seen = {"result": (type(error).__name__, str(error))}
        return {**seen, **describe(thing)}


def describe(thing):
    """Return the metadata of a function, or of the function that is a method of a class; of other objects the behaviour counts."""
    target = inspect.getattr_static(thing, "method", None) if inspect.isclass(thing) else thing
    if isinstance(target, (staticmethod, classmethod)):
        target = target.__func__
    if not isinstance(target, FunctionType):
        return {}
    seen = {name: getattr(target, name, None) for name in ("__name__", "__qualname__", "__doc__", "__module__")}
    seen["annotations"] = getattr(target, "__annotations__", None)
    try:
        seen["signature"] = str(inspect.signature(target))
    except (TypeError, ValueError):
        seen["signature"] = ""
    for test in ("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction"):
        seen[test] = getattr(inspect, test)(target)
    seen["attributes"] = sorted(name for name in getattr(target, "__dict__", {}) if not name.startswith("__"))
    return seen


def shape(observe, *, may_be_refused=False):
    def register(build):
        name = build.__name__ + ("" if build.__name__ not in SHAPES else f" {len(SHAPES)}")
        SHAPES[name] = Shape(build, observe, may_be_refused)
        return build

    return register


def call(*args, **kwargs):
    return lambda thing: thing(*args, **kwargs)


def run(*args):
    return lambda thing: asyncio.run(awaited(thing, args))


async def awaited(thing, args):
    return await thing(*args)


def collect(*args):
    return lambda thing: asyncio.run(gathered(thing, args))


async def gathered(thing, args):
    return [item async for item in thing(*args)]


# -- functions ---------------------------------------------------------------------------------------------------------


@shape(call(1, 2))
def plain(verb):
    @verb
    def add(a: int, b: int = 3) -> int:
        """Add."""
        return a + b

    return add


@shape(call(1))
def default(verb):
    @verb
    def add(a, b=3):
        return a + b

    return add


@shape(call(1, 2))
def positional_only(verb):
    @verb
    def add(a, b, /):
        return a + b

    return add


@shape(call(a=1, b=2))
def positional_only_by_name(verb):
    @verb
    def add(a, b, /):
        return a + b

    return add


@shape(call(1, b=2))
def keyword_only(verb):
    @verb
    def add(a, *, b, c=5):
        return a + b + c

    return add


@shape(call(1, 2, 3, k=4, self=5))
def everything(verb):
    @verb
    def take(a, /, *args, **kwargs):
        return a, args, kwargs

    return take


@shape(call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
def names_of_the_wrapper(verb):
    @verb
    def take(f, a, b, get, token, outer, span, result, error, store, clock, base):
        return f, a, b, get, token, outer, span, result, error, store, clock, base

    return take


@shape(call())
def missing_argument(verb):
    @verb
    def add(a, b):
        return a + b

    return add


@shape(call(1))
def raising(verb):
    @verb
    def fail(a):
        raise KeyError(a)

    return fail


@shape(call(1))
def with_attributes(verb):
    def inner(a):
        return a

    inner.flag = 1
    inner.dispatch_mode = "x"
    return verb(inner)


@shape(call(3))
def recursive(verb):
    @verb
    def count(n):
        return 0 if n == 0 else 1 + count(n - 1)

    return count


@shape(call(1))
def anonymous(verb):
    return verb(lambda a: a + 1)


@shape(call(2))
def closure(verb):
    factor = 5

    @verb
    def scale(a):
        return a * factor

    return scale


@shape(call(1))
def twice(verb):
    @verb
    @verb
    def add(a):
        return a + 1

    return add


@shape(call(1))
def wraps_below(verb):
    def outer(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args) * 2

        return inner

    @verb
    @outer
    def add(a):
        return a + 1

    return add


@shape(call(1))
def wraps_above(verb):
    def outer(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args) * 2

        return inner

    @outer
    @verb
    def add(a):
        return a + 1

    return add


# -- generators and coroutines ---------------------------------------------------------------------------------------------


@shape(lambda thing: list(thing(3)))
def generator(verb):
    @verb
    def count(n):
        yield from range(n)

    return count


@shape(lambda thing: drive_generator(thing()))
def generator_protocol(verb):
    @verb
    def talk():
        got = yield 1
        try:
            yield got
        except KeyError:
            yield "caught"
        return "end"

    return talk


def drive_generator(talk):
    seen = [next(talk), talk.send("x"), talk.throw(KeyError("k"))]
    try:
        next(talk)
    except StopIteration as stop:
        seen.append(stop.value)
    return seen


@shape(run(1))
def coroutine(verb):
    @verb
    async def add(a):
        await asyncio.sleep(0)
        return a + 1

    return add


@shape(run(1))
def raising_coroutine(verb):
    @verb
    async def fail(a):
        raise KeyError(a)

    return fail


@shape(collect(3))
def async_generator(verb):
    @verb
    async def count(n):
        for i in range(n):
            yield i

    return count


@shape(lambda thing: enter(thing(1)))
def context_manager_above(verb):
    @contextlib.contextmanager
    @verb
    def hold(a):
        yield a

    return hold


@shape(lambda thing: enter(thing(1)))
def context_manager_below(verb):
    @verb
    @contextlib.contextmanager
    def hold(a):
        yield a

    return hold


def enter(manager):
    with manager as value:
        return value
