# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of callables that are methods, descriptors and objects; `shapes` knows them once this module is imported."""

import abc
import asyncio
import functools
import inspect
import operator
from dataclasses import dataclass

from tests.attack.shapes import call, method, run, shape

# -- methods and descriptors -------------------------------------------------------------------------------------------------


@shape(method(1))
def plain_method(verb):
    class Worker:
        base = 10

        @verb
        def method(self, a):
            return self.base + a

    return Worker


@shape(lambda thing: asyncio.run(thing().method(1)))
def async_method(verb):
    class Worker:
        @verb
        async def method(self, a):
            return a

    return Worker


@shape(lambda thing: (thing.method(1), thing().method(1)))
def static_above(verb):
    class Worker:
        @staticmethod
        @verb
        def method(a):
            return a

    return Worker


@shape(lambda thing: (thing.method(1), thing().method(1)))
def static_below(verb):
    class Worker:
        @verb
        @staticmethod
        def method(a):
            return a

    return Worker


@shape(lambda thing: (thing.method(1)[0] is thing, thing().method(1)[1]))
def class_above(verb):
    class Worker:
        @classmethod
        @verb
        def method(cls, a):
            return cls, a

    return Worker


@shape(lambda thing: (thing.method(1)[0] is thing, thing().method(1)[1]))
def class_below(verb):
    class Worker:
        @verb
        @classmethod
        def method(cls, a):
            return cls, a

    return Worker


@shape(lambda thing: thing().method)
def property_above(verb):
    class Worker:
        @property
        @verb
        def method(self):
            return 7

    return Worker


@shape(lambda thing: thing().method, may_be_refused=True)
def property_below(verb):
    class Worker:
        @verb
        @property
        def method(self):
            return 7

    return Worker


@shape(lambda thing: set_and_get(thing()), may_be_refused=True)
def property_with_setter(verb):
    class Worker:
        value = 0

        def read(self):
            return self.value

        def write(self, value):
            self.value = value

        method = verb(property(read, write))

    return Worker


def set_and_get(worker):
    worker.method = 9
    return worker.method


@shape(lambda thing: cached_values(thing()))
def cached_property_above(verb):
    class Worker:
        calls = 0

        @functools.cached_property
        @verb
        def method(self):
            self.calls += 1
            return 7

    return Worker


@shape(lambda thing: cached_values(thing()), may_be_refused=True)
def cached_property_below(verb):
    class Worker:
        calls = 0

        @verb
        @functools.cached_property
        def method(self):
            self.calls += 1
            return 7

    return Worker


def cached_values(worker):
    return worker.method, worker.method, worker.calls


@shape(method(1), may_be_refused=True)
def partial_method(verb):
    class Worker:
        def add(self, a, b):
            return a + b

        method = verb(functools.partialmethod(add, 2))

    return Worker


@shape(method(1), may_be_refused=True)
def single_dispatch_method(verb):
    class Worker:
        @verb
        @functools.singledispatchmethod
        def method(self, a):
            return "other"

    return Worker


@shape(lambda thing: (inspect.isabstract(thing), thing.__abstractmethods__))
def abstract_above(verb):
    class Worker(abc.ABC):
        @abc.abstractmethod
        @verb
        def method(self):
            return 1

    return Worker


@shape(lambda thing: (inspect.isabstract(thing), thing.__abstractmethods__))
def abstract_below(verb):
    class Worker(abc.ABC):
        @verb
        @abc.abstractmethod
        def method(self):
            return 1

    return Worker


@shape(method(1))
def super_call(verb):
    class Base:
        def method(self, a):
            return a

    class Worker(Base):
        @verb
        def method(self, a):
            return super().method(a) + 1

    return Worker


# -- other callables ---------------------------------------------------------------------------------------------------------


@shape(call(1), may_be_refused=True)
def partial(verb):
    return verb(functools.partial(operator.add, 2))


@shape(lambda thing: (thing(1), thing(1), thing.cache_info().hits, thing.cache_clear()), may_be_refused=True)
def lru_cache_below(verb):
    @verb
    @functools.lru_cache
    def add(a):
        return a + 1

    return add


@shape(lambda thing: (thing(1), thing(1), thing.cache_info().hits))
def lru_cache_above(verb):
    @functools.lru_cache
    @verb
    def add(a):
        return a + 1

    return add


@shape(lambda thing: (thing(1), thing("a"), thing.dispatch(str)("a")), may_be_refused=True)
def single_dispatch(verb):
    @functools.singledispatch
    def describe_it(a):
        return "other"

    @describe_it.register
    def _(a: str):
        return "text"

    return verb(describe_it)


@shape(lambda thing: (isinstance(thing, type), type(thing()).__name__, isinstance(thing(), thing)), may_be_refused=True)
def class_itself(verb):
    @verb
    class Worker:
        pass

    return Worker


@shape(lambda thing: (isinstance(thing, type), thing(1) == thing(1)), may_be_refused=True)
def data_class(verb):
    @verb
    @dataclass
    class Point:
        x: int

    return Point


@shape(call(1), may_be_refused=True)
def callable_object(verb):
    class Add:
        def __call__(self, a):
            return a + 1

    return verb(Add())


@shape(lambda thing: (thing(1), thing(1)), may_be_refused=True)
def callable_object_with_state(verb):
    class Add:
        count = 0

        def __call__(self, a):
            self.count += 1
            return a + self.count

    return verb(Add())


@shape(run(1), may_be_refused=True)
def async_callable_object(verb):
    class Add:
        async def __call__(self, a):
            return a + 1

    return verb(Add())


@shape(call([1, 2]), may_be_refused=True)
def builtin(verb):
    return verb(len)


@shape(call(1), may_be_refused=True)
def bound_method(verb):
    class Worker:
        def add(self, a):
            return a + 1

    return verb(Worker().add)
