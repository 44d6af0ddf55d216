# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every wrapper: around a function that a user decorates, or that a hook replaces in a host. And what keeps a decorated object what it is.

A wrapper is a plain closure over the function and its call site: a function, a coroutine function, a generator or an async generator function,
as what it wraps. Its cells can be pickled by value, as Ray sends a user's class to its workers; a proxy object, such as wrapt's, would arrive
as the undecorated function. What a closure costs is in docs/explanation/decisions/0034-wrap-functions-in-plain-closures.md.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel._internal import error_boundary
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import context_access
from verl_otel.recording.series import record_failure
from verl_otel.recording.span import Span, clock
from verl_otel.recording.state import RECORDER

if TYPE_CHECKING:
    from verl_otel.recording.sampled_timers import SampledTimer
    from verl_otel.recording.series import Histogram

F = TypeVar("F", bound="Callable[..., Any]")

MARK: Final = "__verl_otel__"
"""Attribute of a wrapper: its call site. Hooks do not wrap functions that have it."""

HOOKED: Final = "__verl_otel_hook__"
"""Attribute of a function that a hook wrapped by itself: a plain dict, in which a decorator sets ``superseded``."""


def wrap(function: F, site: CallSite) -> F:
    """Return ``function`` such that each call is a span of ``site``.

    The result has the same type, signature, name and kind (sync, async, generator, async generator). Decorating a function
    that a hook already wraps replaces the hook's span.

    Args:
        function: A function or method, also as ``staticmethod`` or ``classmethod`` object.
        site: Its call site.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap(function.__func__, site))  # type: ignore[return-value]  # the same descriptor type
    below = find_callsite(function)
    if below is not None and below.hook and not site.hook:
        below.superseded = True
    state = getattr(function, HOOKED, None)
    if isinstance(state, dict):
        state["superseded"] = True
    binder = None if site.extract is None else ArgumentBinder(function)
    wrapper = _finish(_SPANS[_kind_of(function)](function, site, binder), function)
    setattr(wrapper, MARK, site)
    return wrapper  # type: ignore[no-any-return]  # a function of the same signature


def wrap_timed(function: F, series: Histogram | SampledTimer) -> F:
    """Return ``function`` such that the duration of each call is recorded to ``series``. Costs two clock readings."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap_timed(function.__func__, series))  # type: ignore[return-value]  # the same descriptor
    return _finish(_TIMERS[_kind_of(function)](function, series), function)  # type: ignore[no-any-return]  # as above


def find_callsite(function: Any) -> CallSite | None:
    """Return the call site of the outermost verl-otel wrapper of a function, or None."""
    for _ in range(32):
        site = getattr(function, "__dict__", {}).get(MARK)
        if isinstance(site, CallSite):
            return site
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return None


def is_wrapper(function: Any) -> bool:
    """Return whether something is a wrapper of this module, also after it has been pickled."""
    return isinstance(function, FunctionType) and function.__code__ in _CODES


def _finish(wrapper: Any, function: Any) -> Any:
    """Return a wrapper with the name, the documentation and the attributes of its function."""
    wrapper = functools.wraps(function)(wrapper)
    try:
        _keep_attributes(wrapper, function)
    except Exception as error:  # a proxy may raise anything
        error_boundary.may_propagate(error)
    return wrapper


def _is_coroutine(function: Any) -> bool:
    """Return whether a call of ``function`` returns an awaitable."""
    if inspect.iscoroutinefunction(function):
        return True
    if isinstance(function, FunctionType):
        return bool(function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the function is needed, not whether there is one
    return not isinstance(function, type) and inspect.iscoroutinefunction(call)


def _kind_of(function: Callable[..., Any]) -> str:
    """Return the kind of ``function``: ``value``, ``coroutine``, ``generator`` or ``async generator``."""
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if _is_coroutine(function):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(function) else "value"


class ArgumentBinder:
    """Names the arguments of calls. The signature is read once, and again after unpickling: defaults may not be picklable."""

    __slots__ = ("_function", "_signature")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except Exception as error:  # C functions have none, and a proxy may raise anything
            error_boundary.may_propagate(error)
            self._signature = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ArgumentBinder, (self._function,)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call by parameter name, or as ``args`` and ``kwargs`` if the parameters are unknown."""
        if self._signature is None:
            return {"args": args, "kwargs": kwargs}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return {"args": args, "kwargs": kwargs}
        bound.apply_defaults()
        return bound.arguments


# -- Wrappers that make spans. A span whose site has an extractor reads the arguments and the result of its call. --


def _span_of_value(function: Any, site: CallSite, binder: ArgumentBinder | None) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on or site.superseded:
            return function(*args, **kwargs)
        span = Span(site)
        try:
            span.__enter__()
            result = function(*args, **kwargs)
            if binder is not None:
                site.read(span, partial(binder.bind, args, kwargs), result)
            span.__exit__(None, None, None)
        except BaseException as error:
            span.close(error)
            raise
        return result

    return wrapper


def _span_of_coroutine(function: Any, site: CallSite, binder: ArgumentBinder | None) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on or site.superseded:
            return await function(*args, **kwargs)
        span = Span(site)
        try:
            span.__enter__()
            result = await function(*args, **kwargs)
            if binder is not None:
                site.read(span, partial(binder.bind, args, kwargs), result)
            span.__exit__(None, None, None)
        except BaseException as error:
            span.close(error)
            raise
        return result

    return wrapper


def _span_of_generator(function: Any, site: CallSite, binder: ArgumentBinder | None) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on or site.superseded:
            return (yield from function(*args, **kwargs))
        body = _Body(site, binder, args, kwargs)
        steps = _Steps(body, function(*args, **kwargs))
        try:
            while steps.resume():
                try:
                    steps.sent = yield steps.take()
                except BaseException as error:
                    steps.thrown = error
            return steps.take()
        except BaseException as error:
            body.end(error)
            raise

    return wrapper


def _span_of_async_generator(function: Any, site: CallSite, binder: ArgumentBinder | None) -> Any:
    return _record_async_generator(
        function, lambda args, kwargs: _NOTHING if site.superseded else _Body(site, binder, args, kwargs)
    )


def _record_async_generator(function: Any, begin: Callable[..., _Body | _Clock | _Nothing]) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        body = begin(args, kwargs) if RECORDER.on else _NOTHING
        steps = _AsyncSteps(body, function(*args, **kwargs))
        try:
            while await steps.resume():
                try:
                    steps.sent = yield steps.take()
                except BaseException as error:
                    steps.thrown = error
        except BaseException as error:
            body.end(error)
            raise

    return wrapper


_SPANS: Final[dict[str, Callable[[Any, CallSite, ArgumentBinder | None], Any]]] = {
    "value": _span_of_value,
    "coroutine": _span_of_coroutine,
    "generator": _span_of_generator,
    "async generator": _span_of_async_generator,
}

# -- Wrappers that measure durations --


def _time_of_value(function: Any, series: Histogram | SampledTimer) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on:
            return function(*args, **kwargs)
        start = clock()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            record_failure(series, clock() - start, error)
            raise
        series.record(clock() - start)
        return result

    return wrapper


def _time_of_coroutine(function: Any, series: Histogram | SampledTimer) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on:
            return await function(*args, **kwargs)
        start = clock()
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            record_failure(series, clock() - start, error)
            raise
        series.record(clock() - start)
        return result

    return wrapper


def _time_of_generator(function: Any, series: Histogram | SampledTimer) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not RECORDER.on:
            return (yield from function(*args, **kwargs))
        start = clock()
        try:
            # It has no current span, so CPython hands its items on itself.
            result = yield from function(*args, **kwargs)
        except BaseException as error:
            record_failure(series, clock() - start, error)
            raise
        series.record(clock() - start)
        return result

    return wrapper


def _time_of_async_generator(function: Any, series: Histogram | SampledTimer) -> Any:
    return _record_async_generator(function, lambda *_: _Clock(series))


_TIMERS: Final[dict[str, Callable[[Any, Histogram | SampledTimer], Any]]] = {
    "value": _time_of_value,
    "coroutine": _time_of_coroutine,
    "generator": _time_of_generator,
    "async generator": _time_of_async_generator,
}

_CODES: Final = frozenset(
    constant
    for make in (*_SPANS.values(), *_TIMERS.values(), _record_async_generator)
    for constant in make.__code__.co_consts
    if isinstance(constant, types.CodeType)
)
"""The code of every wrapper."""

# -- Generators: the span lasts as long as the generator, and is current only while its body runs.
# OpenTelemetry's ``start_as_current_span`` around a ``yield`` leaks the context into the consumer (open-telemetry/opentelemetry-python#2606).
# Here each resumption sets the context of the body, and each ``yield`` restores that of the consumer, so that context values of the body
# persist between resumptions and are not visible outside. --


class _Body:
    """The span of one generator, made current at every resumption and left at every ``yield``."""

    __slots__ = ("_arguments", "_inner", "_inside", "_outer", "span")

    def __init__(self, site: CallSite, binder: ArgumentBinder | None, args: Any, kwargs: Any) -> None:
        self.span = Span(site)
        self._arguments: Any = None if binder is None else partial(binder.bind, args, kwargs)
        self._inner: Any = None
        self._outer: Any = None
        self._inside = False

    def enter(self) -> None:
        """Set the context of the body. The first call opens the span."""
        access = context_access()
        self._outer = access.get()
        self._inside = True
        if self._inner is None:
            self.span.__enter__()
        else:
            access.set(self._inner)

    def leave(self) -> None:
        """Restore the context of the consumer."""
        if self._inside:
            access = context_access()
            self._inner = access.get()
            access.set(self._outer)
            self._inside = False

    def succeed(self, result: object) -> None:
        """Read the return value of the generator and close the span."""
        self.span.site.read(self.span, self._arguments, result)
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Close the span, in whatever context the generator is resumed for the last time."""
        self.leave()  # after a time-out in the code of this module
        if self._inner is not None:
            self.enter()
            self.span.close(error)
            self.leave()


class _Clock:
    """Counterpart of `_Body` for a histogram: measures the lifetime of the generator."""

    __slots__ = ("_series", "_start")

    def __init__(self, series: Histogram | SampledTimer) -> None:
        self._series = series
        self._start = clock()

    def enter(self) -> None:
        pass

    leave = enter

    def succeed(self, _result: object) -> None:
        self._series.record(clock() - self._start)

    def end(self, error: BaseException) -> None:
        record_failure(self._series, clock() - self._start, error)


class _Nothing:
    """Counterpart of `_Body` while nothing is recorded."""

    def enter(self, *_: object) -> None:
        pass

    leave = succeed = end = enter


_NOTHING: Final = _Nothing()


class _Steps:
    """Runs a generator step by step and records it. The wrapper yields the item of each step."""

    __slots__ = ("_begun", "_body", "_generator", "_item", "sent", "thrown")

    def __init__(self, body: _Body | _Clock | _Nothing, generator: Any) -> None:
        self._body = body
        self._generator = generator
        self._begun = False
        self._item: Any = None
        self.sent: Any = None
        self.thrown: BaseException | None = None

    def take(self) -> Any:
        """Return the item of the last step, or the return value at the end, and release it: it may be large."""
        item, self._item = self._item, None
        return item

    def resume(self) -> bool:
        """Run one step; return whether it yielded an item."""
        sent, thrown, self.sent, self.thrown = self.sent, self.thrown, None, None
        body = self._body
        try:
            body.enter()
            self._item = self._generator.send(sent) if thrown is None else self._generator.throw(thrown)
            body.leave()
        except StopIteration as stop:
            body.leave()
            self._item = stop.value
            body.succeed(stop.value)
            return False
        except BaseException:
            body.leave()
            raise
        finally:
            # its traceback has this frame and those of the generator: a cycle that would keep their variables
            del thrown
        return True


class _AsyncSteps(_Steps):
    """Runs an async generator step by step and records it."""

    __slots__ = ()

    async def resume(self) -> bool:  # type: ignore[override]  # the same for async generators
        """Run one step; return whether it yielded an item."""
        sent, thrown, self.sent, self.thrown = self.sent, self.thrown, None, None
        if not self._begun:
            self._begun = True
            # Without the hooks the event loop does not see the inner generator; else it would close both.
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(None, None)
            try:
                step = self._generator.asend(None)
            finally:
                sys.set_asyncgen_hooks(*hooks)
        else:
            step = self._generator.asend(sent) if thrown is None else self._generator.athrow(thrown)
        body = self._body
        try:
            body.enter()
            self._item = await step
            body.leave()
        except StopAsyncIteration:
            body.leave()
            body.succeed(None)
            return False
        except BaseException:
            body.leave()
            raise
        finally:
            del thrown, step  # as above; `step` holds the exception, too
        return True


# -- Wrappers of hooks: a generator of ours runs around each call of a host's function --

Wrapping = Callable[[Any], Any]
"""Takes a function and returns what wraps it."""
Steps = Generator[None, Any, None]
Around = Callable[[tuple[Any, ...], dict[str, Any]], Steps]
"""``around(args, kwargs)`` runs to its ``yield`` before a call, which returns the result of the call or raises what it raised.

``args`` holds ``self`` of a method, too. A change of ``kwargs`` is one of the arguments. A return before the ``yield`` leaves the call alone.
"""


class Call:
    """One call of a host's function, with ours around it. Errors of ours are reported under their location, and never reach the host."""

    __slots__ = ("_location", "_steps", "result")

    def __init__(self, location: str, around: Around, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._location = location
        self._steps = around(args, kwargs)
        self.result: Any = None
        """What the function returned."""

    def __enter__(self) -> Call:
        try:
            next(self._steps, None)
        except Exception as error:
            error_boundary.record_internal_error(self._location, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._steps.send(self.result)
            else:
                self._steps.throw(error)
        except StopIteration:
            return
        except BaseException as raised:
            # A generator that passes a `StopIteration` on raises an error that it causes.
            if error is not None and (raised is error or raised.__cause__ is error):
                error.__traceback__ = trace
            elif isinstance(raised, Exception):
                error_boundary.record_internal_error(self._location, raised)
            else:
                raise


Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
"""``before(args, kwargs)`` runs before a call."""
After = Callable[[tuple[Any, ...], dict[str, Any], Any, "BaseException | None"], None]
"""``after(args, kwargs, result, error)`` runs after it; ``error`` is what the call raised, or None."""


def make_wrapper(function: Any, open_call: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    """Return what calls a function, sync or async, within ``open_call(args, kwargs)``: a `Call`, or what can stand for one.

    The wrapper refers to nothing of this package but by ``open_call``: Ray pickles a user's class by value.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            with open_call(args, kwargs) as call:
                call.result = await function(*args, **kwargs)
            return call.result

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with open_call(args, kwargs) as call:
            call.result = function(*args, **kwargs)
        return call.result

    return wrapper


def surround(location: str, around: Around) -> Wrapping:
    """Return what wraps a function, sync or async, with a generator around each call.

    Example:
        replace(module.Tracking, "log", surround("scalars", _record))
    """
    return functools.partial(make_wrapper, open_call=functools.partial(Call, location, around))


def surround_shortly(location: str, after: After, before: Before | None = None) -> Wrapping:
    """Return what wraps a function, sync or async, with two functions around each call. For frequent calls: a generator costs more."""

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if before is not None:
            try:
                before(args, kwargs)
            except Exception as error:
                error_boundary.record_internal_error(location, error)

    def end(_begun: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, error: Any) -> None:
        try:
            after(args, kwargs, result, error)
        except Exception as failure:
            error_boundary.record_internal_error(location, failure)

    return functools.partial(wrap_frequent, begin=begin, end=end)


def wrap_frequent(
    function: Any,
    begin: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    end: Callable[[Any, tuple[Any, ...], dict[str, Any], Any, BaseException | None], None],
) -> Any:
    """Return what calls a function, sync or async, between two of ours, at half the cost of a `with` block.

    Args:
        function: A host's function.
        begin: ``begin(args, kwargs)`` runs before it, and returns what ``end`` gets. A Python function: after a builtin, such as a partial,
            CPython runs signal handlers, and what one raises there would leave a span open.
        end: ``end(begun, args, kwargs, result, error)`` runs after it, and again if a signal handler has interrupted it.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            begun = begin(args, kwargs)
            try:
                result = await function(*args, **kwargs)
                end(begun, args, kwargs, result, None)
            except BaseException as error:
                end(begun, args, kwargs, None, error)
                raise
            return result

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begun = begin(args, kwargs)
        try:
            result = function(*args, **kwargs)
            end(begun, args, kwargs, result, None)
        except BaseException as error:
            end(begun, args, kwargs, None, error)
            raise
        return result

    return wrapper


# -- The descriptors of a class body: each is replaced by one of the same kind whose function is wrapped --

Wrap = Callable[[Any, Any], Any]
"""``wrap(function, named)`` returns a wrapped function; its spans have the name of ``named``."""

_RAY: Final = frozenset({"ray.actor", "ray.remote_function"})


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
    if issubclass(kind, property) and thing.fget is not None:
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


def _keep_attributes(wrapper: Any, function: Any) -> None:
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
