# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What may stand below a decorator: each function decorates one kind of thing, calls it once and returns what it gave, 7."""

import abc
import asyncio
import contextlib
import functools
import inspect
import operator

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


def partial(decorate):
    made = decorate(functools.partial(operator.add, 3))
    assert made.args == (3,)
    return made(4)


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


def context_manager(decorate):
    @decorate
    @contextlib.contextmanager
    def get():
        yield 7

    with get() as found:
        return found


def descriptor_shape(name, descriptor):
    """Return the shape of a function in a descriptor."""

    def shape(decorate):
        return type("Owner", (), {"get": decorate(descriptor(lambda *_owner: 7))})().get()

    shape.__name__ = name
    return shape


SHAPES = [
    method, async_method, read_property, whole_property, partial, dispatched, least_recently_used, wrapped_by_another,
    builtin, callable_object, bound_method, python_bound_method, abstract, context_manager,
    descriptor_shape("static", staticmethod),
    descriptor_shape("of_class", classmethod),
]  # fmt: skip
