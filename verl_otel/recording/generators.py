# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of generator functions: the span lasts as long as the generator, and is current only while its body runs.

OpenTelemetry's ``start_as_current_span`` around a ``yield`` leaks the context into the consumer
(open-telemetry/opentelemetry-python#2606). Here each resumption enters a copy of the context in which the body runs, so
that what the body sets is kept from one resumption to the next and never seen outside.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from verl_otel.recording.context import kernel
from verl_otel.recording.registry import record_failure, record_success
from verl_otel.recording.span import Span, clock
from verl_otel.recording.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from verl_otel.recording.series import Histogram
    from verl_otel.recording.site import Site


class _Body:
    """The span of one generator, entered for every resumption and left at every ``yield``."""

    __slots__ = ("_inner", "_outer", "_token", "span")

    def __init__(self, site: Site) -> None:
        self.span = Span(site)
        self._inner: Any = None
        self._outer: Any = None
        self._token: Any = None

    def begin(self) -> None:
        """Open the span; it is left at once and entered by each resumption."""
        now = kernel()
        self._outer = now.get()
        self.span.__enter__()
        self._inner = now.get()
        now.set(self._outer)

    def __enter__(self) -> None:
        if self._inner is not None:
            now = kernel()
            self._outer = now.get()
            now.set(self._inner)

    def __exit__(self, *_: object) -> None:
        if self._inner is not None:
            now = kernel()
            self._inner = now.get()
            now.set(self._outer)

    def end(self, error: BaseException | None) -> None:
        """Close the span, whoever resumes the generator for the last time."""
        if self._inner is not None:
            with self:
                self.span.close(error)


def wrap_generator(function: Callable[..., Generator[Any, Any, Any]], site: Site) -> Any:
    """Return a generator function whose generators are spans."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if not Store.on or site.superseded:
            return (yield from function(*args, **kwargs))
        body = _Body(site)
        body.begin()
        generator = function(*args, **kwargs)
        try:
            with body:
                item = next(generator)
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    with body:
                        generator.close()
                    raise
                except BaseException as thrown:
                    with body:
                        item = generator.throw(thrown)
                else:
                    with body:
                        item = generator.send(sent)
        except StopIteration as stop:
            site.read(body.span, {"args": args, "kwargs": kwargs}, stop.value)
            body.end(None)
            return stop.value
        except BaseException as error:
            body.end(error)
            raise

    return wrapper


def wrap_async_generator(function: Callable[..., AsyncGenerator[Any, Any]], site: Site) -> Any:
    """Return an async generator function whose generators are spans."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = _Body(site)
        if Store.on and not site.superseded:
            body.begin()
        generator = function(*args, **kwargs)
        try:
            item = await _resume(body, generator.__anext__())
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    await _resume(body, generator.aclose())
                    raise
                except BaseException as thrown:
                    item = await _resume(body, generator.athrow(thrown))
                else:
                    item = await _resume(body, generator.asend(sent))
        except StopAsyncIteration:
            site.read(body.span, {"args": args, "kwargs": kwargs}, None)
            body.end(None)
        except BaseException as error:
            body.end(error)
            raise

    return wrapper


def wrap_timed_generator(function: Callable[..., Any], series: Histogram) -> Any:
    """Return a generator function that records how long each of its generators lived."""
    if inspect.isasyncgenfunction(function):
        return _wrap_timed_async_generator(function, series)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        start = clock()
        try:
            result = yield from function(*args, **kwargs)
        except BaseException as error:
            record_failure(series, clock() - start, error)
            raise
        record_success(series, clock() - start)
        return result

    return wrapper


def _wrap_timed_async_generator(function: Callable[..., AsyncGenerator[Any, Any]], series: Histogram) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        start = clock()
        generator = function(*args, **kwargs)
        try:
            item = await generator.__anext__()
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    await generator.aclose()
                    raise
                except BaseException as thrown:
                    item = await generator.athrow(thrown)
                else:
                    item = await generator.asend(sent)
        except StopAsyncIteration:
            record_success(series, clock() - start)
        except BaseException as error:
            record_failure(series, clock() - start, error)
            raise

    return wrapper


async def _resume(body: _Body, step: Any) -> Any:
    """Run one resumption up to its ``yield``, in the body's context between its awaits too."""
    with body:
        return await step
