# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests: each carries the trace headers of its caller until its span is created.

The engine's core returns the headers with the last output of a request, except for aborted requests, and verl aborts requests before every
weight sync. So the headers are stored on the state of the request in this process, and are freed with it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import add_callbacks, argument, replace
from verl_otel.integrations.propagation import make_headers
from verl_otel.integrations.vllm.engine import is_tracing

_HEADERS: Final = "_verl_otel_headers"
"""Attribute of vLLM's ``RequestState``."""


def _send_headers(original: Any) -> Any:
    """Wrap ``generate``. The call returns the host's own generator: tokens cost nothing, and closing it works as before."""

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("trace_headers") is None and is_tracing(self):
            headers = make_headers()
            if headers is not None:
                kwargs["trace_headers"] = headers
        return original(self, *args, **kwargs)

    return generate


def _keep_headers(args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any) -> None:
    request = argument(args, kwargs, 1, "request")
    headers = getattr(request, "trace_headers", None)
    if headers:
        state = args[0].request_states.get(request.request_id)
        if state is not None:
            setattr(state, _HEADERS, headers)


def _trace_safely(original: Any) -> Any:
    """Wrap the creation of the ``llm_request`` span. It runs in the task that serves every request: an exception would end the engine."""

    @functools.wraps(original)
    def do_tracing(self: Any, *args: Any, **kwargs: Any) -> None:
        output = argument(args, kwargs, 0, "engine_core_output")
        state = argument(args, kwargs, 1, "req_state")
        if getattr(state, "stats", None) is None or argument(args, kwargs, 2, "iteration_stats") is None:
            error_boundary.warn_once(
                "vllm stats", "verl-otel: vLLM keeps no statistics, of which its llm_request spans are made"
            )
            return
        try:
            if output.trace_headers is None:
                output.trace_headers = getattr(state, _HEADERS, None)
            if output.trace_headers:
                original(self, *args, **kwargs)
            else:
                _run_detached(original, self, *args, **kwargs)
        except Exception as error:
            error_boundary.record_internal_error("vllm tracing", error)

    return do_tracing


def _run_detached(function: Any, *args: Any, **kwargs: Any) -> None:
    """Call a function without a current span.

    The task runs in the context in which the engine was created, so a request without headers would become a child of the span that
    launched the server. Without a current span it is the root of a trace of its own.
    """
    from opentelemetry import context

    token = context.attach(context.Context())
    try:
        function(*args, **kwargs)
    finally:
        context.detach(token)


def patch_generate(module: ModuleType) -> None:
    """Add the current span to every request."""
    replace(module.AsyncLLM, "generate", _send_headers)


def patch_add(module: ModuleType) -> None:
    """Store the headers of every request on its state."""
    replace(module.OutputProcessor, "add_request", add_callbacks("vllm request", after=_keep_headers))


def patch_tracing(module: ModuleType) -> None:
    """Give the span of every request its parent, and suppress errors."""
    replace(module.OutputProcessor, "do_tracing", _trace_safely)
