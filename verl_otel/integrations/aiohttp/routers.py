# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's own reward router: its requests join the trace of the caller.

The router forwards the headers that it receives. Its own client spans would replace them, so the caller's context is extracted and made
current around each request.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from verl_otel._internal import error_boundary
from verl_otel.integrations.aiohttp.client import Client, switch_on
from verl_otel.integrations.patch import add_callbacks, replace


def _resume(original: Any) -> Any:
    @functools.wraps(original)
    async def make_async_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = None
        if Client.on:
            with error_boundary.suppress_errors("reward router"):
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
        return None  # newer releases of FastAPI, or the user's instrumentation, have extracted it
    return context.attach(propagate.extract(request.headers))


def patch_init(module: ModuleType) -> None:
    """Switch the instrumentation on in the router's process."""
    replace(module.NaiveRouter, "__init__", add_callbacks("aiohttp", before=lambda *_: switch_on()))


def patch_request(module: ModuleType) -> None:
    """Make the caller's context current around each request."""
    replace(module.NaiveRouter, "_make_async_request", _resume)
