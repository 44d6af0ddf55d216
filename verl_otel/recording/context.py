# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fast access to OpenTelemetry's current context, and the ids of traces and spans.

`context_access` imports the OpenTelemetry API at its first call, so that a process with recording off never loads it. OpenTelemetry keeps
its context in a private `ContextVar`; using it directly saves about 150 ns a span over ``attach`` and ``detach``. Where that variable is
missing, the public functions are used.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final, NamedTuple

from verl_otel._internal import process_state


class ContextAccess:
    """The functions that a span needs to enter and leave the current context.

    There is one instance, `CONTEXT`, created before OpenTelemetry is imported and filled by `load`. Wrappers hold it and not its functions:
    context variables cannot be pickled, and Ray pickles by value what a user defines in ``__main__``.
    """

    __slots__ = ("get", "invalid", "key", "private", "read", "reset", "set", "span_of")

    get: Callable[[], Any]
    """Return the current context."""
    set: Callable[[Any], Any]
    """Make a context current and return a token."""
    read: Callable[[Context], Any]
    """Return the current context of a task or a thread, from its context variables; None: unknown."""
    reset: Callable[[Any], None]
    """Restore the context before a token. Raises `ValueError` in another task or thread than the one that set it."""
    key: str
    """The key under which a context holds its span."""
    span_of: Callable[[Any], Any]
    """Return the span of a context (OpenTelemetry's ``get_current_span``)."""
    invalid: Any
    """OpenTelemetry's invalid span, which stands for no span."""
    private: bool
    """Whether the private context variable is used."""

    def __init__(self) -> None:
        self.private = False

    def __reduce__(self) -> str:
        return "CONTEXT"  # unpickled as that of the process it arrives in


CONTEXT: Final = ContextAccess()


def context_access() -> ContextAccess:
    """Return `CONTEXT`; the first call imports the OpenTelemetry API and fills it."""
    if not hasattr(CONTEXT, "key"):
        load()
    return CONTEXT


def load() -> None:
    """Fill `CONTEXT` from OpenTelemetry's private context variable if there is one, else from the public functions."""
    from opentelemetry import context, trace

    access = CONTEXT
    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    access.private = isinstance(variable, ContextVar)
    if isinstance(variable, ContextVar):
        access.get, access.set, access.reset = variable.get, variable.set, variable.reset
        access.read = lambda variables: variables.get(variable)
    else:
        # Not `context.detach`: it logs a failure and does not raise it.
        runtime = getattr(context, "_RUNTIME_CONTEXT", None)
        access.get, access.set = context.get_current, context.attach
        access.reset = runtime.detach if runtime is not None else context.detach
        access.read = lambda _: None
    access.span_of = trace.get_current_span
    access.invalid = trace.INVALID_SPAN
    from verl_otel.recording.span import Span

    trace.Span.register(Span)
    access.key = span_key()


def span_key() -> str:
    """Return the key under which an OpenTelemetry context holds its span, found by public functions only."""
    from opentelemetry import context, trace

    return next(iter(trace.set_span_in_context(trace.INVALID_SPAN, context.Context())))


def bind_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` bound to OpenTelemetry's context of this call, for use in another thread.

    Other context variables stay those of the thread: the error state of numpy and the precision of `decimal` would change what it computes.

    Example:
        executor.submit(bind_context(work), item)
    """
    access = context_access()
    outer = access.get()

    def run(*args: Any, **kwargs: Any) -> Any:
        token = access.set(outer)
        try:
            return function(*args, **kwargs)
        finally:
            access.reset(token)

    return run


# -- Ids of traces and spans that do not depend on the user's random seeds. RL code seeds `random`, numpy and torch in every process with the same number.
# OpenTelemetry's default generator uses `random` and then produces the same ids in two processes (open-telemetry/opentelemetry-python#4376). This
# one has a generator of its own, seeded by the operating system, and again in a forked child --

_generator = random.SystemRandom()
_bits = random.Random(_generator.getrandbits(256)).getrandbits


def _reseed() -> None:
    global _bits
    _bits = random.Random(int.from_bytes(os.urandom(32), "big")).getrandbits


process_state.register(after_fork=_reseed)


def make_trace_id() -> int:
    """Return a random trace id: 128 bits, never 0."""
    return _bits(128) or 1


def make_span_id() -> int:
    """Return a random span id: 64 bits, never 0."""
    return _bits(64) or 1


def make_span_ids(count: int) -> tuple[int, ...]:
    """Return random span ids, each at a fifth of the cost of `make_span_id`. An id may be 0, once in 10^19: the caller replaces it by 1."""
    return struct.unpack(f"<{count}Q", _bits(64 * count).to_bytes(8 * count, "little")) if count else ()


def draw() -> float:
    """Return a random number in [0, 1)."""
    return _bits(53) / (1 << 53)


class SpanIds(NamedTuple):
    """Ids and trace flags of a span, and the clock offset of its trace in this process."""

    trace_id: int
    span_id: int
    parent_id: int
    flags: int
    state: str
    offset_ns: int
    """Unix time minus monotonic time, taken when the trace began in this process, so that long runs do not drift."""
