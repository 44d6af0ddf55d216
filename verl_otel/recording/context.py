# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Where we are: OpenTelemetry's current context, read and set at the price of a context variable.

The OpenTelemetry API is imported by `kernel()` and not before, so that a process with the switch off never loads it.
OpenTelemetry keeps its context in a private `ContextVar`; using it directly saves about 150 ns a span over
``attach``/``detach``. It is looked for once; where it is missing the public functions do the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final


class Kernel:
    """The handful of functions that a span needs to enter and leave the current context.

    There is one, `KERNEL`, made before OpenTelemetry is imported and filled by `kernel`. Wrappers hold it and not the functions:
    context variables cannot be pickled, and Ray pickles by value what a user defines in ``__main__``.
    """

    __slots__ = ("get", "invalid", "key", "private", "reset", "set", "span_of")

    get: Callable[[], Any]
    """Return the current context."""
    set: Callable[[Any], Any]
    """Make a context current and return a token."""
    reset: Callable[[Any], None]
    """Go back to the context before the token. May raise `ValueError` in another task or thread."""
    key: str
    """The key under which a context holds its span."""
    span_of: Callable[[Any], Any]
    """Return the span of a context (OpenTelemetry's ``get_current_span``)."""
    invalid: Any
    """OpenTelemetry's span that stands for none."""
    private: bool
    """Whether the private context variable was found."""

    def __init__(self) -> None:
        self.private = False

    def __reduce__(self) -> str:
        return "KERNEL"  # that of the process it arrives in


KERNEL: Final = Kernel()


def kernel() -> Kernel:
    """Return this process's kernel; import the OpenTelemetry API at the first call."""
    if not hasattr(KERNEL, "key"):
        load()
    return KERNEL


def load() -> None:
    """Fill the kernel, by OpenTelemetry's private context variable if it is found, else by public functions."""
    from opentelemetry import context, trace

    made = KERNEL
    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    made.private = isinstance(variable, ContextVar)
    if isinstance(variable, ContextVar):
        made.get, made.set, made.reset = variable.get, variable.set, variable.reset
    else:
        # Not `context.detach`: it logs a failure and keeps it to itself.
        runtime = getattr(context, "_RUNTIME_CONTEXT", None)
        made.get, made.set = context.get_current, context.attach
        made.reset = runtime.detach if runtime is not None else context.detach
    made.span_of = trace.get_current_span
    made.invalid = trace.INVALID_SPAN
    from verl_otel.recording.surface import Surface

    trace.Span.register(Surface)
    made.key = span_key()


def span_key() -> str:
    """Return the key under which OpenTelemetry's contexts hold the span, found without private names."""
    from opentelemetry import context, trace

    return next(iter(trace.set_span_in_context(trace.INVALID_SPAN, context.Context())))


def bind_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` such that it runs in the context of this moment, in whatever thread it is called.

    Example:
        executor.submit(bind_context(work), item)
    """
    import contextvars

    captured = contextvars.copy_context()

    def run(*args: Any, **kwargs: Any) -> Any:
        return captured.copy().run(function, *args, **kwargs)  # one context cannot be entered twice at a time

    return run
