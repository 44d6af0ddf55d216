# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``torch.compile``: decorated functions in a region that is compiled are traced as if recording were off.

The verbs need no hook, see `verl_otel.recording.compiled_regions`. What is patched here are internals of PyTorch: a
release that has others traces what it would trace anyway, and a line of level DEBUG says so. Calls that are not traced
stay as they are.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, register, replace
from verl_otel.recording.decorate import is_wrapper
from verl_otel.recording.series import BoundCounter

_OWN_FILES: Final = f"{Path(__file__).parents[1]}/"


def install() -> None:
    """Patch PyTorch's compiler when it is imported, which is at the first use of ``torch.compile``."""
    register([Hook("torch._dynamo", "*", _patch, "compiled regions are traced with what records in them")])


def _patch(dynamo: ModuleType) -> None:
    for patch in (_trace_decorated_functions, _run_own_frames, _trace_bound_counters_as_objects):
        try:
            patch(dynamo)
        except Exception as error:
            error_boundary.may_propagate(error)
            logging.getLogger("verl_otel").debug("verl-otel: torch.compile: %s: %r", patch.__name__, error)


def _trace_decorated_functions(dynamo: Any) -> None:
    """Trace in the place of a wrapper the function that it wraps."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: Any, fn: Any, *args: Any, source: Any = None, **kwargs: Any) -> None:
            while is_wrapper(fn) and isinstance(fn.__wrapped__, FunctionType):
                fn = fn.__wrapped__
                source = source and dynamo.source.AttrSource(source, "__wrapped__")
            original(self, fn, *args, source=source, **kwargs)

        return init

    replace(dynamo.variables.functions.UserFunctionVariable, "__init__", wrap)


def _run_own_frames(dynamo: Any) -> None:
    """Compile no frame of verl-otel. A decorated function that is itself compiled records, and calls the function, which is compiled."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def check(given: Any, *args: Any, **kwargs: Any) -> Any:
            is_own = isinstance(given, CodeType) and given.co_filename.startswith(_OWN_FILES)
            return is_own or original(given, *args, **kwargs)

        return check

    replace(dynamo.trace_rules, "check", wrap)


def _trace_bound_counters_as_objects(dynamo: Any) -> None:
    """Trace a bound counter not as the list that it is: guards on its length would fail after each ``add`` and each drain."""
    handlers = dynamo.variables.builder.VariableBuilder._type_dispatch()
    handlers[BoundCounter] = lambda builder, value: builder.wrap_user_defined(value)
