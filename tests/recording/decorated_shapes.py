# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What may stand below a decorator: each function decorates one kind of thing, calls it once and returns what it gave, 7."""

import abc
import asyncio
import contextlib
import dataclasses
import enum
import functools
import inspect
import math
import operator
import types
import typing

import pytest


def method(decorate):
    class Owner:
        @decorate
        def get(self, a: int = 3, /, *, b: int = 4) -> int:
            """Seven."""
            return a + b

    assert str(inspect.signature(Owner.get)) == "(self, a: int = 3, /, *, b: int = 4) -> int"
    assert Owner.get.__qualname__.endswith("Owner.get")
    assert Owner.get.__doc__ == "Seven."
    return Owner().get()


def async_method(decorate):
    class Owner:
        @decorate
        async def get(self):
            return 7

    assert inspect.iscoroutinefunction(Owner.get)
    return asyncio.run(Owner().get())


def calls_super(decorate):
    class Base:
        def get(self):
            return 6

    class Derived(Base):
        @decorate
        def get(self):
            return super().get() + 1

    return Derived().get()


def read_property(decorate):
    class Owner:
        @decorate
        @property
        def value(self):
            """Seven."""
            return 7

    assert isinstance(Owner.value, property)
    assert Owner.value.__doc__ == "Seven."
    return Owner().value


def property_with_setter(decorate):
    class Owner:
        @decorate
        @property
        def value(self):
            return self._value

        @value.setter
        def value(self, value):
            self._value = value

        @value.deleter
        def value(self):
            del self._value

    owner = Owner()
    owner.value = 7
    found = owner.value
    del owner.value
    assert not vars(owner)
    return found


def whole_property(decorate):
    class Owner:
        def _get(self):
            return self._value

        def _set(self, value):
            self._value = value

        def _delete(self):
            del self._value

        value = decorate(property(_get, _set, _delete, "Its value."))

    owner = Owner()
    owner.value = 7
    found = owner.value
    del owner.value
    assert Owner.value.__doc__ == "Its value."
    return found


def cached(decorate):
    class Owner:
        @decorate
        @functools.cached_property
        def value(self):
            return [7]

    owner = Owner()
    assert owner.value is owner.value
    assert isinstance(Owner.value, functools.cached_property)
    return owner.value[0]


def partial(decorate):
    made = decorate(functools.partial(operator.add, 3))
    assert made.args == (3,)
    return made(4)


def partial_method(decorate):
    class Owner:
        def add(self, a, b):
            return a + b

        add_three = decorate(functools.partialmethod(add, 3))

    assert isinstance(vars(Owner)["add_three"], functools.partialmethod)
    return Owner().add_three(4)


def dispatched_method(decorate):
    class Owner:
        @decorate
        @functools.singledispatchmethod
        def get(self, value):
            raise NotImplementedError

        @get.register
        def _(self, value: int):
            return value

        @get.register(str)
        def _(self, value):
            return int(value)

    assert isinstance(vars(Owner)["get"], functools.singledispatchmethod)
    return Owner().get("7")


def dispatched_method_afterwards(decorate):
    class Owner:
        @functools.singledispatchmethod
        def get(self, value):
            raise NotImplementedError

        @get.register
        def _(self, value: int):
            return value

        get = decorate(get)

    return Owner().get(7)


def dispatched(decorate):
    @decorate
    @functools.singledispatch
    def get(value):
        raise NotImplementedError

    @get.register
    def _(value: int):
        return value

    assert get.dispatch(int) is not get.dispatch(str)
    return get(7)


def least_recently_used(decorate):
    @decorate
    @functools.lru_cache(maxsize=4)
    def get():
        return 7

    found = get()
    assert get.cache_info().currsize == 1
    get.cache_clear()
    assert get.cache_info().currsize == 0
    assert get.cache_parameters()["maxsize"] == 4
    return found


def cached_method(decorate):
    class Owner:
        @functools.lru_cache  # noqa: B019 - in a test
        @decorate
        def get(self):
            return 7

    assert Owner.get.cache_info().currsize == 0
    return Owner().get()


def wrapped_by_another(decorate):
    def original():
        return 7

    @functools.wraps(original)
    def outer():
        return original()

    outer.tag = "kept"
    made = decorate(outer)
    assert made.tag == "kept"
    assert inspect.unwrap(made) is original
    return made()


def builtin(decorate):
    return decorate(len)("seven77")


def c_function(decorate):
    return decorate(math.floor)(7.5)


def callable_object(decorate):
    class Callable:
        limit = 6

        def __call__(self):
            self.limit += 1
            return self.limit

        def describe(self):
            return "described"

    made = decorate(Callable())
    assert made.describe() == "described"
    return made()


def async_callable_object(decorate):
    class Callable:
        async def __call__(self):
            return 7

    return asyncio.run(awaited(decorate(Callable())))


async def awaited(function):
    return await function()


def bound_method(decorate):
    return decorate([7].pop)()


def python_bound_method(decorate):
    class Owner:
        def get(self):
            return 7

    return decorate(Owner().get)()


def abstract(decorate):
    class Base(abc.ABC):
        @decorate
        @abc.abstractmethod
        def get(self):
            return 7

        @decorate
        @property
        @abc.abstractmethod
        def value(self):
            return 0

    with pytest.raises(TypeError, match="abstract"):
        Base()

    class Derived(Base):
        value = 0

        def get(self):
            return super().get()

    return Derived().get()


def overloaded(decorate):
    @typing.overload
    def get(value: int) -> int: ...
    @typing.overload
    def get(value: str) -> int: ...
    @decorate
    def get(value):
        return int(value)

    return get("7")


def context_manager(decorate):
    @decorate
    @contextlib.contextmanager
    def get():
        yield 7

    with get() as found:
        return found


def async_context_manager(decorate):
    @decorate
    @contextlib.asynccontextmanager
    async def get():
        yield 7

    async def main():
        async with get() as found:
            return found

    return asyncio.run(main())


def data_class(decorate):
    @dataclasses.dataclass
    class Owner:
        value: int = 7

        @decorate
        def get(self):
            return self.value

    return Owner().get()


def enumeration(decorate):
    class Kind(enum.Enum):
        SEVEN = 7

        @decorate
        def get(self):
            return self.value

    assert list(Kind) == [Kind.SEVEN]
    return Kind.SEVEN.get()


def descriptor_shape(name, descriptor, *, outside=False):
    """Return the shape of a function in a descriptor, which is decorated, or ``outside`` of the decorated function."""

    def shape(decorate):
        def get(*_owner):
            return 7

        attribute = descriptor(decorate(get)) if outside else decorate(descriptor(get))
        found = type("Owner", (), {"get": attribute})().get
        return found() if callable(found) else found

    shape.__name__ = name
    return shape


SHAPES = [
    method, async_method, calls_super, read_property, property_with_setter, whole_property, cached, partial,
    partial_method, dispatched_method, dispatched_method_afterwards, dispatched, least_recently_used, cached_method,
    wrapped_by_another, builtin, c_function, callable_object, async_callable_object, bound_method, python_bound_method,
    abstract, overloaded, context_manager, async_context_manager, data_class, enumeration,
    descriptor_shape("static", staticmethod),
    descriptor_shape("static_outside", staticmethod, outside=True),
    descriptor_shape("of_class", classmethod),
    descriptor_shape("of_class_outside", classmethod, outside=True),
    descriptor_shape("property_outside", property, outside=True),
    descriptor_shape("class_attribute", types.DynamicClassAttribute),
]  # fmt: skip
