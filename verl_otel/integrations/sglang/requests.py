# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests: each takes the trace headers of its caller. verl hands SGLang a request object and no HTTP request."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.bridge import make_headers
from verl_otel.integrations.patch import argument, replace
from verl_otel.recording.store import Store

_FIELD: Final = "external_trace_header"
"""Where SGLang looks first; it keeps what is there until the request has ended, also when it is aborted."""


def _send_headers(original: Any) -> Any:
    """Wrap ``generate_request``: no generator around its own, so that closing it works as before."""

    @functools.wraps(original)
    def generate_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        if Store.on:
            with _guard.swallowed("sglang request"):
                if self.server_args.enable_trace:
                    _add_headers(argument(args, kwargs, 0, "obj"), argument(args, kwargs, 1, "request"))
        return original(self, *args, **kwargs)

    return generate_request


def _add_headers(obj: Any, request: Any) -> None:
    if getattr(obj, _FIELD, True):
        return  # the caller gave some, or this release has no such field
    if request is not None and "traceparent" in request.headers:
        return  # SGLang reads them
    headers = make_headers()
    if headers is not None:
        setattr(obj, _FIELD, headers)


def patch(module: ModuleType) -> None:
    """Have every request carry the current span."""
    replace(module.TokenizerManager, "generate_request", _send_headers)
