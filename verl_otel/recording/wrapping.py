# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Generates the wrapper of a decorated function, with the signature of the function. Switching recording exchanges its code.

The wrapper has the parameters of the function, so that CPython calls it without packing arguments. Wrappers are plain functions whose
closures survive pickling by value: Ray sends a user's class to its workers that way, and a proxy object, such as wrapt's, would arrive as
the undecorated function.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, TypeVar

from verl_otel._internal import error_boundary, process_state
from verl_otel.recording import bound_counters, generator_wrappers, wrapper_source
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import CONTEXT
from verl_otel.recording.decorated_objects import keep_attributes
from verl_otel.recording.otel_span import LEAKED
from verl_otel.recording.sampled_timers import SampledTimer
from verl_otel.recording.series import CHUNK
from verl_otel.recording.series_registry import record_failure, record_success
from verl_otel.recording.span import BareSpan, begin, clock, fail
from verl_otel.recording.state import RECORDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from verl_otel.recording.series import Histogram


# -- The parameters of a callable: as source text for a wrapper that has the same ones, and as names of the arguments of a call --


class Parameters(NamedTuple):
    """Source text with which a wrapper declares and passes its parameters."""

    declared: str
    passed: str
    names: tuple[str, ...]
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None


ANY: Final = Parameters("*args, **kwargs", "*args, **kwargs", ("args", "kwargs"), None, None)
"""For callables whose parameters cannot be written: builtins, partials, objects with ``__call__``."""


def is_readable(function: object) -> TypeGuard[FunctionType]:
    """Return whether the parameters of ``function`` can be written: it is a Python function with valid parameter names."""
    return isinstance(function, FunctionType) and all(map(str.isidentifier, function.__code__.co_varnames))


def read_parameters(function: FunctionType) -> Parameters:
    """Return the parameters of a Python function.

    Defaults are written as ``None`` and replaced by the real objects in ``__defaults__`` and ``__kwdefaults__``.
    """
    # A bare copy: a `__signature__` that Ray or a decorator has set may name parameters that the code does not take.
    bare = FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    kinds = inspect.Parameter
    declared: list[str] = []
    passed: list[str] = []
    starred = False
    parameters = list(inspect.signature(bare).parameters.values())
    for index, parameter in enumerate(parameters):
        name = parameter.name
        text = name if parameter.default is kinds.empty else f"{name}=None"
        if parameter.kind is kinds.VAR_POSITIONAL:
            declared.append(f"*{name}")
            passed.append(f"*{name}")
            starred = True
        elif parameter.kind is kinds.VAR_KEYWORD:
            declared.append(f"**{name}")
            passed.append(f"**{name}")
        elif parameter.kind is kinds.KEYWORD_ONLY:
            declared += [text] if starred else ["*", text]
            passed.append(f"{name}={name}")
            starred = True
        else:
            declared.append(text)
            passed.append(name)
            if parameter.kind is kinds.POSITIONAL_ONLY and not _is_positional_only(parameters, index + 1):
                declared.append("/")
    names = tuple(parameter.name for parameter in parameters)
    return Parameters(", ".join(declared), ", ".join(passed), names, function.__defaults__, function.__kwdefaults__)


def _is_positional_only(parameters: list[inspect.Parameter], index: int) -> bool:
    return index < len(parameters) and parameters[index].kind is inspect.Parameter.POSITIONAL_ONLY


def make_unique(name: str, taken: tuple[str, ...]) -> str:
    """Return ``name`` with underscores in front until it is none of ``taken``."""
    name = f"_{name}"
    while name in taken:
        name = f"_{name}"
    return name


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

    def bind_later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Mapping[str, Any]]:
        """Return a function that returns the arguments of a call by name. Most calls do not need it."""
        return functools.partial(self.bind, args, kwargs)


# -- Generates the wrapper of a decorated function, with the signature of the function. Switching recording exchanges its code --

F = TypeVar("F", bound="Callable[..., Any]")

MARK: Final = "__verl_otel__"
"""Attribute of a wrapper: its call site. Hooks do not wrap functions that have it."""

HOOKED: Final = "__verl_otel_hook__"
"""Attribute of a function that a hook wrapped by itself: a plain dict, in which a decorator sets ``superseded``."""

MEMBER: Final = "__verl_otel_member__"
_NAMES: Final = ("f", "a", "b", "get", "make_current", "reset", "token", "outer", "span", "result", "error")
_HELPERS: Final[dict[str, Any]] = {
    "bare": BareSpan,
    "base": BaseException,
    "clock": clock,
    "done": record_success,
    "fail": record_failure,
    "fail_span": fail,
    "context": CONTEXT,
    "leaked": LEAKED,
    "len": len,
    "misplaced": ValueError,
    "state": RECORDER,
    "type": type,
}
"""Globals of the generated wrappers."""
_SPANS: Final[dict[str, tuple[str, object]]] = {
    "async generator": (wrapper_source.ASYNC_GENERATOR, generator_wrappers.AsyncDriver),
    "generator": (wrapper_source.GENERATOR, generator_wrappers.Driver),
    "coroutine": (wrapper_source.SPAN, begin),
    "value": (wrapper_source.SPAN, begin),
}
"""By the kind of function: the template of a wrapper that makes spans, and the value of its global ``b``."""
_TIMERS: Final[dict[str, tuple[str, object]]] = {
    "async generator": (wrapper_source.ASYNC_GENERATOR, generator_wrappers.AsyncDriver),
    "generator": (wrapper_source.TIMED_GENERATOR, clock),
    "coroutine": (wrapper_source.TIMED, clock),
    "value": (wrapper_source.TIMED, clock),
}
"""The same for a wrapper that measures durations."""
_lock = threading.RLock()
_wrappers: weakref.WeakSet[Any] = weakref.WeakSet()
_codes: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()


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
    below = marked(function)
    if below is not None and below.hook and not site.hook:
        below.supersede()
    state = getattr(function, HOOKED, None)
    if isinstance(state, dict):
        state["superseded"] = True
    wrapper = _generate(_SPANS, function, site)
    setattr(wrapper, MARK, site)
    return wrapper  # type: ignore[no-any-return]  # a function of the same signature


def wrap_timed(function: F, series: Histogram | SampledTimer) -> F:
    """Return ``function`` such that the duration of each call is recorded to ``series``. Costs two clock readings."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap_timed(function.__func__, series))  # type: ignore[return-value]  # the same descriptor
    return _generate(_TIMERS, function, series)  # type: ignore[no-any-return]  # a function of the same signature


def marked(function: Any) -> CallSite | None:
    """Return the call site of the outermost verl-otel wrapper of a function, or None."""
    for _ in range(32):
        site = getattr(function, "__dict__", {}).get(MARK)
        if isinstance(site, CallSite):
            return site
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return None


def passive_code(function: Any) -> CodeType | None:
    """Return the code with which a wrapper only calls its function; None for anything but a wrapper."""
    codes = _codes.get(function) if isinstance(function, FunctionType) else None
    return codes[1] if codes is not None else None


def switch(*, on: bool) -> None:
    """Switch every existing wrapper and bound counter on or off by exchanging the code of wrappers."""
    with _lock:
        for wrapper in list(_wrappers):
            active, passive = _codes[wrapper]
            wrapper.__code__ = active if on else passive
    bound_counters.switch(on=on)


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


class _Membership:
    """Attribute of a wrapper that registers it for switching when it is unpickled in another process."""

    def __init__(self, wrapper: Any, helpers: dict[str, Any]) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._helpers = helpers

    def __reduce__(self) -> tuple[Any, ...]:
        wrapper = self._wrapper()
        return _join, (wrapper, *_codes[wrapper], self._helpers)


def _join(wrapper: Any, active: Any, passive: Any, helpers: dict[str, Any]) -> _Membership:
    wrapper.__globals__.update(helpers)  # a pickle holds the globals of the active code only
    with _lock:
        _codes[wrapper] = (active, passive)
        _wrappers.add(wrapper)
        wrapper.__code__ = active if RECORDER.on else passive
    return _Membership(wrapper, helpers)


def _generate(table: dict[str, tuple[str, object]], function: Callable[..., Any], a: Any) -> Any:
    """Return the generated wrapper of one callable. ``a`` is the value of global ``a`` of the template."""
    kind = _kind_of(function)
    template, b = table[kind]
    is_async = kind == "coroutine"
    extracts = isinstance(a, CallSite) and a.extract is not None
    parameters = read_parameters(function) if is_readable(function) else ANY
    unique = {name: make_unique(name, parameters.names) for name in (*_NAMES, *_HELPERS)}
    helpers = {unique["a"]: a, unique["b"]: b, **{unique[name]: helper for name, helper in _HELPERS.items()}}
    if parameters is not ANY:
        arguments = "{" + ", ".join(f"{name!r}: {name}" for name in parameters.names) + "}"
        module, label = function.__module__, function.__qualname__
    else:
        arguments = "_bind(args, kwargs)"
        helpers["_bind"] = ArgumentBinder(function).bind_later
        module, label = __name__, type(function).__name__
    source = template.format(
        **unique,
        declared=parameters.declared,
        passed=parameters.passed,
        arguments=arguments,
        read=f"{unique['a']}.read({unique['span']}, {arguments}, {unique['result']})" if extracts else "pass",
        async_="async " if is_async else "",
        await_="await " if is_async else "",
        chunk=CHUNK,
        check=f"{unique['span']} < {unique['a']}.threshold and " if isinstance(a, SampledTimer) else "",
    )
    namespace: dict[str, Any] = {"__name__": module, **helpers}
    exec(compile(source, f"{wrapper_source.FILE_PREFIX} of {label}>", "exec"), namespace)  # noqa: S102 - a template of ours
    active, passive = namespace["make"](function)
    wrapper: Any = functools.wraps(function)(active)
    wrapper.__defaults__, wrapper.__kwdefaults__ = parameters.defaults, parameters.keyword_defaults
    if parameters is ANY:
        try:
            keep_attributes(wrapper, function)
        except Exception as error:  # a proxy may raise anything
            error_boundary.may_propagate(error)
    setattr(wrapper, MEMBER, _join(wrapper, active.__code__, passive.__code__, helpers))
    return wrapper


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the thread that held it does not exist here


process_state.register(after_fork=_after_fork)
