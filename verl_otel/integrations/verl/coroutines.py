# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Coroutines that verl may run elsewhere than where they were called.

``@auto_await`` lets a synchronous caller call a coroutine. Where an event loop runs already (the one-step-off and fully asynchronous
trainers), it runs the coroutine in a thread of its own, which knows nothing of the caller's context: a validation's trajectories would belong
to nobody.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from verl_otel.recording.context import kernel
from verl_otel.recording.store import Store


def wrap_awaited(original: Any, wrap: Callable[[Any], Any] | None = None) -> Any:
    """Return an ``@auto_await`` method that carries its caller's context, with ``wrap`` around the coroutine function in it.

    Ours goes inside: ``@auto_await`` looks at its caller's frame to see whether it will be awaited, so a wrapper around it breaks
    asynchronous callers (seen). A method that is no such method is only wrapped.
    """
    from verl.utils.ray_utils import auto_await

    inner = getattr(original, "__wrapped__", None)
    if inner is None or not inspect.iscoroutinefunction(inner):
        return original if wrap is None else wrap(original)
    return auto_await(_carry(inner if wrap is None else wrap(inner)))


def _carry(function: Any) -> Any:
    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        if not Store.on or not inspect.iscoroutine(coroutine):
            return coroutine
        return _run_in(kernel().get(), coroutine)

    return start


async def _run_in(context: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    now = kernel()
    token = now.set(context)
    try:
        return await coroutine
    finally:
        with contextlib.suppress(ValueError):  # closed by another task
            now.reset(token)
