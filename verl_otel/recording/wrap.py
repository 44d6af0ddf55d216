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
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel.recording import bound, generators, templates
from verl_otel.recording.context import KERNEL
from verl_otel.recording.leaves import Leaf
from verl_otel.recording.plain import wrap_plain
from verl_otel.recording.registry import record_failure, record_success
from verl_otel.recording.series import CHUNK
from verl_otel.recording.signatures import make_unique, read_parameters
from verl_otel.recording.site import Site
from verl_otel.recording.span import BareSpan, begin, clock
from verl_otel.recording.store import Store
from verl_otel.recording.surface import LEAKED

if TYPE_CHECKING:
    from collections.abc import Callable

    from verl_otel.recording.series import Histogram

F = TypeVar("F", bound="Callable[..., Any]")

MARK: Final = "__verl_otel__"
"""Attribute of a wrapper: the site that it records at. Hooks look for it and leave such functions alone."""

HOOKED: Final = "__verl_otel_hook__"
"""Attribute of a function that a hook wrapped with nothing of ours in it: a plain dict in which we say that we take over."""

MEMBER: Final = "__verl_otel_member__"
_NAMES: Final = ("f", "a", "b", "get", "make_current", "reset", "token", "outer", "span", "result", "error")
_HELPERS: Final[dict[str, Any]] = {
    "bare": BareSpan,
    "base": BaseException,
    "clock": clock,
    "done": record_success,
    "fail": record_failure,
    "kernel": KERNEL,
    "leaked": LEAKED,
    "len": len,
    "misplaced": ValueError,
    "store": Store,
    "type": type,
}
"""What the templates use besides the names of one wrapper; its globals."""
_SPANS: Final[dict[str, tuple[str, object]]] = {
    "async generator": (templates.ASYNC_GENERATOR, generators.AsyncDriver),
    "generator": (templates.GENERATOR, generators.Driver),
    "coroutine": (templates.SPAN, begin),
    "value": (templates.SPAN, begin),
}
"""By what a call of the function gives: the template of a wrapper that makes spans, and what its cell ``b`` holds."""
_TIMERS: Final[dict[str, tuple[str, object]]] = {
    "async generator": (templates.ASYNC_GENERATOR, generators.AsyncDriver),
    "generator": (templates.TIMED_GENERATOR, clock),
    "coroutine": (templates.TIMED, clock),
    "value": (templates.TIMED, clock),
}
"""The same of a wrapper that measures durations."""
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
        below.supersede()
    state = getattr(function, HOOKED, None)
    if isinstance(state, dict):
        state["superseded"] = True
    wrapper = _generate(_SPANS, function, site)
    setattr(wrapper, MARK, site)
    return wrapper  # type: ignore[no-any-return]  # a function of the same signature


def wrap_timed(function: F, series: Histogram | Leaf) -> F:
    """Return ``function`` such that the duration of each call goes to ``series``, at the price of two clock reads."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap_timed(function.__func__, series))  # type: ignore[return-value]  # the same descriptor
    return _generate(_TIMERS, function, series)  # type: ignore[no-any-return]  # a function of the same signature


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


def switch(*, on: bool) -> None:
    """Have every wrapper and bound counter made so far record, or pass through: the code of wrappers is exchanged."""
    with _lock:
        for wrapper in list(_wrappers):
            active, passive = _codes[wrapper]
            wrapper.__code__ = active if on else passive
    bound.switch(on=on)


def _is_coroutine(function: Any) -> bool:
    """Return whether calling ``function`` gives something to await."""
    if inspect.iscoroutinefunction(function):
        return True
    if isinstance(function, FunctionType):
        return bool(function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the function itself is looked at
    return not isinstance(function, type) and inspect.iscoroutinefunction(call)


def can_generate(function: Callable[..., Any]) -> bool:
    """Return whether a wrapper can have the very parameters of ``function``: it is written in Python, by a person."""
    return isinstance(function, FunctionType) and all(map(str.isidentifier, function.__code__.co_varnames))


def _kind_of(function: Callable[..., Any]) -> str:
    """Return what a call of ``function`` gives, in the words of `wrap_plain`."""
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if _is_coroutine(function):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(function) else "value"


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


def _generate(table: dict[str, tuple[str, object]], function: Callable[..., Any], a: Any) -> Any:
    """Fill the template that a table has for one function; ``a`` is what the other one of its two cells holds."""
    kind = _kind_of(function)
    if not can_generate(function):
        return wrap_plain(function, a, kind)
    template, b = table[kind]
    is_async = kind == "coroutine"
    extracts = isinstance(a, Site) and a.extract is not None
    parameters = read_parameters(function)
    unique = {name: make_unique(name, parameters.names) for name in (*_NAMES, *_HELPERS)}
    arguments = ", ".join(f"{name!r}: {name}" for name in parameters.names)
    source = template.format(
        **unique,
        declared=parameters.declared,
        passed=parameters.passed,
        arguments=arguments,
        read=f"{unique['a']}.read({unique['span']}, {{{arguments}}}, {unique['result']})" if extracts else "pass",
        async_="async " if is_async else "",
        await_="await " if is_async else "",
        chunk=CHUNK,
        check=f"{unique['span']} < {unique['a']}.threshold and " if isinstance(a, Leaf) else "",
    )
    label = getattr(function, "__qualname__", type(function).__name__)
    helpers = {unique[name]: helper for name, helper in _HELPERS.items()}
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
