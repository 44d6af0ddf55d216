# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decoration of functions and of the descriptors of a class body.

A descriptor is replaced by one of the same kind whose function is wrapped. What cannot be wrapped raises `TypeError` at decoration, with a
form that works.
"""

from __future__ import annotations

import copy
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

from verl_otel._internal import error_boundary

Wrap = Callable[[Any, Any], Any]
"""``wrap(function, named)`` returns a wrapped function; its spans have the name of ``named``."""

_RAY = frozenset({"ray.actor", "ray.remote_function"})


def is_decorated(thing: object) -> bool:
    """Return whether the first argument of a verb is what it decorates, as in ``@verb``. Reads the type only."""
    if callable(thing):
        return True
    try:
        return hasattr(type(thing), "__get__")
    except Exception as error:  # a metaclass that raises
        error_boundary.may_propagate(error)
        return False


def decorate(thing: Any, wrap: Wrap, named: Any = None) -> Any:
    """Return a function, or a descriptor of the same kind, that is wrapped.

    Args:
        thing: A callable, or a descriptor of one.
        wrap: Wraps one function.
        named: The function whose name the spans have; the wrapped one if absent.

    Raises:
        TypeError: Wrapping would change its type.
    """
    kind = type(thing)
    if issubclass(kind, (staticmethod, classmethod)):
        return kind(decorate(thing.__func__, wrap, named))
    if issubclass(kind, functools.singledispatchmethod):
        return _Dispatched(thing, wrap)
    if issubclass(kind, functools.partialmethod):
        return kind(decorate(thing.func, wrap, named), *thing.args, **thing.keywords)
    if issubclass(kind, functools.cached_property):
        replacement = copy.copy(thing)
        replacement.func = decorate(thing.func, wrap, named)
        return replacement
    if issubclass(kind, (property, types.DynamicClassAttribute)) and thing.fget is not None:
        return thing.getter(decorate(thing.fget, wrap, named))
    reason = _explain_refusal(thing, kind)
    if reason:
        raise TypeError(f"verl-otel: {reason}")
    return wrap(thing, thing if named is None else named)


def _explain_refusal(thing: Any, kind: type) -> str:
    """Return why something cannot be decorated, with a form that works; empty if it can."""
    if issubclass(kind, type):
        name = type.__dict__["__qualname__"].__get__(thing)  # not through a metaclass, which may raise
        return f"the class {name} cannot be decorated: decorate its methods"
    if any(base.__module__ in _RAY for base in kind.__mro__):
        name = getattr(thing, "_function_name", None) or kind.__name__
        return f"{name} belongs to Ray already: write @ray.remote above, and this decorator directly at the function or method"
    if not callable(thing):
        return f"{kind.__qualname__!r} objects cannot be decorated: decorate the function inside, below the other decorator"
    return ""


class _Dispatched(functools.singledispatchmethod):  # type: ignore[type-arg]  # of what its functions return
    """A ``singledispatchmethod`` that records every implementation, also those that are registered later."""

    def __init__(self, original: Any, wrap: Wrap) -> None:
        self._named = original.func
        self._wrap = wrap
        super().__init__(decorate(original.func, wrap))
        for kind, function in original.dispatcher.registry.items():
            if kind is not object:
                self.dispatcher.register(kind, func=decorate(function, wrap, self._named))

    def register(self, cls: Any, method: Any = None) -> Any:
        if method is not None:
            return super().register(cls, decorate(method, self._wrap, self._named))
        if isinstance(cls, (type, types.UnionType)) or typing.get_origin(cls) is not None:
            return lambda function: self.register(cls, function)
        return super().register(decorate(cls, self._wrap, self._named))  # its annotation names the type


def keep_attributes(wrapper: Any, function: Any) -> None:
    """Copy the methods that the type of a wrapped callable adds to a function, such as ``cache_info`` of an ``lru_cache``.

    `functools.wraps` has copied the object's own dictionary.
    """
    kind = type(function)
    if issubclass(kind, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
        return
    names = ("func", "args", "keywords") if issubclass(kind, functools.partial) else ()
    for name in (*names, *(method for method in dir(kind) if not method.startswith("_") and _is_method(kind, method))):
        if not hasattr(wrapper, name):
            setattr(wrapper, name, getattr(function, name))


def _is_method(kind: type, name: str) -> bool:
    for base in kind.__mro__:
        if name in vars(base):
            return isinstance(
                vars(base)[name], (types.FunctionType, types.MethodDescriptorType, classmethod, staticmethod)
            )
    return False
