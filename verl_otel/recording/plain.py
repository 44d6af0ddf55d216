# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers without code generation: for what has no parameters to read (C functions, partials, objects with ``__call__``).

They do what those of `verl_otel.recording.templates` do, at about 150 ns more: arguments are packed, and a flag is looked at instead of
exchanging the code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from verl_otel.recording.generators import AsyncDriver, Driver
from verl_otel.recording.registry import record_failure
from verl_otel.recording.site import Site
from verl_otel.recording.span import begin, clock
from verl_otel.recording.store import Store

if TYPE_CHECKING:
    from verl_otel.recording.leaves import Leaf
    from verl_otel.recording.series import Histogram


def wrap_plain(function: Callable[..., Any], to: Site | Histogram | Leaf, kind: str) -> Callable[..., Any]:
    """Return ``function`` such that each call is recorded.

    Args:
        function: Anything that can be called.
        to: The site of its spans, or where its durations go.
        kind: What a call gives: ``value``, ``coroutine``, ``generator`` or ``async generator``.
    """
    parameters = Parameters(function)
    if kind == "generator":
        made = _wrap_generator(function, to, parameters)
    elif kind == "async generator":
        made = _wrap_async_generator(function, to, parameters)
    else:
        call = _Call if isinstance(to, Site) else _TimedCall
        made = (_wrap_coroutine if kind == "coroutine" else _wrap_value)(function, to, call, parameters)
    return functools.wraps(function)(made)


class Parameters:
    """The parameters of a function, read once. In a pickle they are read anew: their defaults may be what cannot be pickled."""

    __slots__ = ("_function", "_signature")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except Exception:  # C functions tell none, and a proxy may raise whatever it likes
            self._signature = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Parameters, (self._function,)

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """Return a call's arguments by the names of their parameters, or as ``args`` and ``kwargs`` where these are unknown."""
        if self._signature is None:
            return {"args": args, "kwargs": kwargs}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return {"args": args, "kwargs": kwargs}
        bound.apply_defaults()
        return bound.arguments

    def name_later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Mapping[str, Any]]:
        """Return what returns a call's arguments by name: most are never asked for."""
        return functools.partial(self.name, args, kwargs)


class _Call:
    """One call that is a span."""

    __slots__ = ("_span",)

    def __init__(self, site: Site) -> None:
        self._span = begin(site)

    def succeed(self, parameters: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        site = self._span.site
        if site.extract is not None:
            site.read(self._span, parameters.name_later(args, kwargs), result)

    def end(self) -> None:
        self._span.close()

    def fail(self, error: BaseException) -> None:
        self._span.close(error)


class _TimedCall:
    """One call that is a duration."""

    __slots__ = ("_start", "_to")

    def __init__(self, to: Histogram | Leaf) -> None:
        self._to = to
        self._start = clock()

    def succeed(self, *_: object) -> None:
        pass

    def end(self) -> None:
        self._to.record(clock() - self._start)

    def fail(self, error: BaseException) -> None:
        record_failure(self._to, clock() - self._start, error)


def _wrap_value(function: Callable[..., Any], to: Any, begin_call: Any, parameters: Parameters) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not Store.on:
            return function(*args, **kwargs)
        call = begin_call(to)
        try:
            result = function(*args, **kwargs)
            call.succeed(parameters, args, kwargs, result)
        except BaseException as error:
            call.fail(error)
            raise
        call.end()
        return result

    return wrapper


def _wrap_coroutine(
    function: Callable[..., Any], to: Any, begin_call: Any, parameters: Parameters
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not Store.on:
            return await function(*args, **kwargs)
        call = begin_call(to)
        try:
            result = await function(*args, **kwargs)
            call.succeed(parameters, args, kwargs, result)
        except BaseException as error:
            call.fail(error)
            raise
        call.end()
        return result

    return wrapper


def _wrap_generator(
    function: Callable[..., Any], to: Site | Histogram | Leaf, parameters: Parameters
) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if not Store.on:
            return (yield from function(*args, **kwargs))
        driver = Driver(to, function(*args, **kwargs), parameters.name_later(args, kwargs))
        while driver.resume():
            try:
                driver.sent = yield driver.take()
            except BaseException as error:
                driver.thrown = error
        return driver.take()

    return wrapper


def _wrap_async_generator(
    function: Callable[..., Any], to: Site | Histogram | Leaf, parameters: Parameters
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        driver = AsyncDriver(to, function(*args, **kwargs), parameters.name_later(args, kwargs))
        while await driver.resume():
            try:
                driver.sent = yield driver.take()
            except BaseException as error:
                driver.thrown = error

    return wrapper
