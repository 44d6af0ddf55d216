# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the wrapper of a decorated function: its exact signature, recording around the call, off by swapping its code.

The wrapper has the parameters of the function itself, so that CPython calls it without packing arguments. Wrappers are plain
functions whose closure cells survive pickling by value: Ray ships a user's class to its workers that way, and a proxy object
would arrive as the undecorated function (seen with wrapt).
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel.recording import generators
from verl_otel.recording.registry import record_failure, record_success
from verl_otel.recording.series import CHUNK
from verl_otel.recording.signatures import make_unique, read_parameters
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span
from verl_otel.recording.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from verl_otel.recording.series import Histogram

F = TypeVar("F", bound="Callable[..., Any]")

MARK: Final = "__verl_otel__"
"""Attribute of a wrapper: the site that it records at. Hooks look for it and leave such functions alone."""

HOOKED: Final = "__verl_otel_hook__"
"""Attribute of a function that a hook wrapped with nothing of ours in it: a plain dict in which we say that we take over."""

# In both templates `active` and `passive` must have the same free variables, since their code is exchanged under one
# closure: hence the unreachable tuple after the `return`. Names in braces are made unique against the parameters.
_SPAN: Final = """
def make({f}, {a}, {b}):
    {async_}def active({declared}):
        {span} = {b}({a})
        try:
            {result} = {await_}{f}({passed})
            {read}
        except {base} as {error}:
            {span}.close({error})
            raise
        {span}.close()
        return {result}
    {async_}def passive({declared}):
        return {await_}{f}({passed})
        ({a}, {b})
    return active, passive
"""

# Two clock reads and one append; the rest is the call itself. The buffer's length is its bound on memory.
_TIMED: Final = """
def make({f}, {a}, {b}):
    {async_}def active({declared}):
        {span} = {b}()
        try:
            {result} = {await_}{f}({passed})
        except {base} as {error}:
            {fail}({a}, {b}() - {span}, {error})
            raise
        {span} = {b}() - {span}
        if {len}({a}.buffer) < {chunk}:
            {a}.buffer.append({span})
        else:
            {a}.spill({span})
        return {result}
    {async_}def passive({declared}):
        return {await_}{f}({passed})
        ({a}, {b})
    return active, passive
"""

# `a` is a site (of an async generator: or a series), `b` drives the generator: see `verl_otel.recording.generators`.
# `yield from` is all there is to do while off.
_GENERATOR: Final = """
def make({f}, {a}, {b}):
    def active({declared}):
        {span} = {b}({a}, {f}({passed}), {{{arguments}}})
        while {span}.resume():
            try:
                {span}.sent = yield {span}.take()
            except {base} as {error}:
                {span}.thrown = {error}
        return {span}.take()
    def passive({declared}):
        return (yield from {f}({passed}))
        ({a}, {b})
    return active, passive
"""

# Nothing is current in a timed generator's body, so CPython may hand the items on: no price by the item.
_TIMED_GENERATOR: Final = """
def make({f}, {a}, {b}):
    def active({declared}):
        {span} = {b}()
        try:
            {result} = yield from {f}({passed})
        except {base} as {error}:
            {fail}({a}, {b}() - {span}, {error})
            raise
        {done}({a}, {b}() - {span})
        return {result}
    def passive({declared}):
        return (yield from {f}({passed}))
        ({a}, {b})
    return active, passive
"""

_ASYNC_GENERATOR: Final = """
def make({f}, {a}, {b}):
    async def active({declared}):
        {span} = {b}({a}, {f}({passed}), {{{arguments}}})
        while await {span}.resume():
            try:
                {span}.sent = yield {span}.take()
            except {base} as {error}:
                {span}.thrown = {error}
    return active, active
"""

MEMBER: Final = "__verl_otel_member__"
_NAMES: Final = ("f", "a", "b", "span", "result", "error", "fail", "done", "len", "base")
_lock = threading.RLock()
_wrappers: weakref.WeakSet[Any] = weakref.WeakSet()
_codes: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def wrap(function: F, site: Site) -> F:
    """Return ``function`` such that each call is a span of ``site``.

    The result has the same type, signature, name and kind (sync, async, generator, async generator). Decorating a function
    that a hook already wraps replaces the hook's span: the decorator knows better.

    Args:
        function: A function or method, also as ``staticmethod`` or ``classmethod`` object.
        site: Where it records.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap(function.__func__, site))  # type: ignore[return-value]  # the same descriptor type
    below = marked(function)
    if below is not None and below.hook and not site.hook:
        below.superseded = True
    state = getattr(function, HOOKED, None)
    if isinstance(state, dict):
        state["superseded"] = True
    if inspect.isasyncgenfunction(function):
        wrapper = _generate(_ASYNC_GENERATOR, function, site, generators.AsyncDriver)
    elif inspect.isgeneratorfunction(function) and not _is_coroutine(function):
        wrapper = _generate(_GENERATOR, function, site, generators.Driver)
    else:
        wrapper = _generate(_SPAN, function, site, open_span, extracts=site.extract is not None)
    setattr(wrapper, MARK, site)
    return wrapper  # type: ignore[no-any-return]  # a function of the same signature


def wrap_timed(function: F, series: Histogram) -> F:
    """Return ``function`` such that the duration of each call goes to ``series``, at the price of two clock reads."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap_timed(function.__func__, series))  # type: ignore[return-value]  # the same descriptor
    if inspect.isasyncgenfunction(function):
        return _generate(_ASYNC_GENERATOR, function, series, generators.AsyncDriver)  # type: ignore[no-any-return]
    if inspect.isgeneratorfunction(function) and not _is_coroutine(function):
        return _generate(_TIMED_GENERATOR, function, series, time.perf_counter)  # type: ignore[no-any-return]  # as above
    return _generate(_TIMED, function, series, time.perf_counter)  # type: ignore[no-any-return]  # of the same signature


def marked(function: Any) -> Site | None:
    """Return the site of the outermost wrapper of ours around a function, or None."""
    for _ in range(32):
        site = getattr(function, "__dict__", {}).get(MARK)
        if isinstance(site, Site):
            return site
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return None


def open_span(site: Site) -> Span:
    """Begin the span of one call."""
    span = Span(site)
    if not site.superseded:
        span.__enter__()
    return span


def switch(*, on: bool) -> None:
    """Exchange the code of every wrapper made so far: recording, or passing through."""
    with _lock:
        for wrapper in list(_wrappers):
            active, passive = _codes[wrapper]
            wrapper.__code__ = active if on else passive


def _is_coroutine(function: Any) -> bool:
    """Return whether calling ``function`` gives something to await."""
    if inspect.iscoroutinefunction(function):
        return True
    if isinstance(function, FunctionType):
        return bool(function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the function itself is looked at
    return not isinstance(function, type) and inspect.iscoroutinefunction(call)


class _Membership:
    """Attribute of a wrapper that makes it switchable where it arrives when it was pickled by value."""

    def __init__(self, wrapper: Any, helpers: dict[str, Any]) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._helpers = helpers

    def __reduce__(self) -> tuple[Any, ...]:
        wrapper = self._wrapper()
        return _join, (wrapper, *_codes[wrapper], self._helpers)


def _join(wrapper: Any, active: Any, passive: Any, helpers: dict[str, Any]) -> _Membership:
    wrapper.__globals__.update(helpers)  # a pickle holds the globals of one of the two codes only
    with _lock:
        _codes[wrapper] = (active, passive)
        _wrappers.add(wrapper)
        wrapper.__code__ = active if Store.on else passive
    return _Membership(wrapper, helpers)


def _generate(template: str, function: Callable[..., Any], a: object, b: object, *, extracts: bool = False) -> Any:
    """Fill a template for one function; ``a`` and ``b`` are what its two cells hold."""
    is_async = _is_coroutine(function)
    parameters = read_parameters(function)
    names = {name: make_unique(name, parameters.names) for name in _NAMES}
    arguments = ", ".join(f"{name!r}: {name}" for name in parameters.names)
    source = template.format(
        **names,
        declared=parameters.declared,
        passed=parameters.passed,
        arguments=arguments,
        read=f"{names['a']}.read({names['span']}, {{{arguments}}}, {names['result']})" if extracts else "pass",
        async_="async " if is_async else "",
        await_="await " if is_async else "",
        chunk=CHUNK,
    )
    label = getattr(function, "__qualname__", type(function).__name__)
    helpers = {
        names["fail"]: record_failure,
        names["done"]: record_success,
        names["len"]: len,
        names["base"]: BaseException,
    }
    namespace: dict[str, Any] = {"__name__": getattr(function, "__module__", __name__), **helpers}
    exec(compile(source, f"<verl_otel wrapper of {label}>", "exec"), namespace)  # noqa: S102 - the template above
    active, passive = namespace["make"](function, a, b)
    wrapper: Any = functools.wraps(function)(active)
    wrapper.__defaults__, wrapper.__kwdefaults__ = parameters.defaults, parameters.keyword_defaults
    setattr(wrapper, MEMBER, _join(wrapper, active.__code__, passive.__code__, helpers))
    return wrapper


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # its holder does not exist here


os.register_at_fork(after_in_child=_after_fork_in_child)
