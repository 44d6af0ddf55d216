# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a callable: as source text for a wrapper that has the same ones, and as names of the arguments of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeGuard

from verl_otel._internal import error_boundary


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
