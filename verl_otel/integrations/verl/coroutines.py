# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Coroutines that verl may run in another thread than that of the caller.

``@auto_await`` lets a synchronous caller call a coroutine. If an event loop is running already (the one-step-off and fully asynchronous
trainers), it runs the coroutine in a new thread without the caller's context: the trajectories of a validation would lose their parent.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from verl_otel.recording.context import context_access as otel_context
from verl_otel.recording.state import RECORDER


def wrap_awaited(original: Any, wrap: Callable[[Any], Any] | None = None) -> Any:
    """Return an ``@auto_await`` method that runs in its caller's context, with ``wrap`` around the coroutine function in it.

    The wrapper goes inside: ``@auto_await`` inspects its caller's frame to see whether it will be awaited, so a wrapper around it breaks
    asynchronous callers (seen). Another method is only wrapped.
    """
    from verl.utils.ray_utils import auto_await

    inner = getattr(original, "__wrapped__", None)
    if inner is None or not inspect.iscoroutinefunction(inner):
        return original if wrap is None else wrap(original)
    return auto_await(_keep_context(inner if wrap is None else wrap(inner)))


def _keep_context(function: Any) -> Any:
    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        if not RECORDER.on or not inspect.iscoroutine(coroutine):
            return coroutine
        return _run_in(otel_context().get(), coroutine)

    return start


async def _run_in(context: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    current = otel_context()
    token = current.set(context)
    try:
        return await coroutine
    finally:
        with contextlib.suppress(ValueError):  # closed by another task
            current.reset(token)
