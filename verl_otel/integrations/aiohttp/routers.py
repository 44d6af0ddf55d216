# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's own reward router: what it passes on belongs to who asked it.

It hands on the headers that it gets, so a trace goes through it by itself. With client spans of its own they would be replaced:
so the caller's context is taken up around each request.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from verl_otel import _guard
from verl_otel.integrations.aiohttp.client import Client, switch_on
from verl_otel.integrations.patch import replace


def _wrap_init(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        switch_on()
        original(self, *args, **kwargs)

    return init


def _resume(original: Any) -> Any:
    @functools.wraps(original)
    async def make_async_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = None
        if Client.on:
            with _guard.swallowed("reward router"):
                token = _attach(kwargs["request"] if "request" in kwargs else args[0])
        try:
            return await original(self, *args, **kwargs)
        finally:
            if token is not None:
                from opentelemetry import context

                context.detach(token)

    return make_async_request


def _attach(request: Any) -> Any:
    from opentelemetry import context, propagate, trace

    if trace.get_current_span().get_span_context().is_valid:
        return None  # newer releases of FastAPI, or the user's instrumentation, have taken it up
    return context.attach(propagate.extract(request.headers))


def patch_init(module: ModuleType) -> None:
    """Switch the instrumentation on in the router's process."""
    replace(module.NaiveRouter, "__init__", _wrap_init)


def patch_request(module: ModuleType) -> None:
    """Take up the caller's context around each request."""
    replace(module.NaiveRouter, "_make_async_request", _resume)
