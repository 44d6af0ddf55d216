# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests: each carries the trace headers of its caller. verl passes SGLang a request object and no HTTP request."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from verl_otel.integrations.api import RECORDER
from verl_otel.integrations.patch import add_callbacks, argument, replace
from verl_otel.integrations.propagation import make_headers

_FIELD: Final = "external_trace_header"
"""The field that SGLang reads first, and keeps until the request has ended or is aborted."""


def _before_generate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if RECORDER.on and args[0].server_args.enable_trace:
        _add_headers(argument(args, kwargs, 1, "obj"), argument(args, kwargs, 2, "request"))


def _add_headers(obj: Any, request: Any) -> None:
    if getattr(obj, _FIELD, True):
        return  # the caller set headers, or this release has no such field
    if request is not None and "traceparent" in request.headers:
        return  # SGLang reads them
    headers = make_headers()
    if headers is not None:
        setattr(obj, _FIELD, headers)


def patch(module: ModuleType) -> None:
    """Add the current span to every request."""
    # The call returns the host's own generator, so that closing it works as before.
    replace(module.TokenizerManager, "generate_request", add_callbacks("sglang request", before=_before_generate))
