# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a function as source text, for a wrapper that has the very same ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple


class Parameters(NamedTuple):
    """How a wrapper declares its parameters and how it passes them on."""

    declared: str
    passed: str
    names: tuple[str, ...]
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None


ANY = Parameters("*args, **kwargs", "*args, **kwargs", ("args", "kwargs"), None, None)
"""For what cannot be introspected: builtins, partials, objects with ``__call__``."""


def read_parameters(function: Callable[..., Any]) -> Parameters:
    """Return the parameters of ``function``; `ANY` if it is no plain Python function.

    Defaults are written as ``None`` and replaced by the real objects in ``__defaults__`` and ``__kwdefaults__``.
    """
    if not isinstance(function, FunctionType):
        return ANY
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
