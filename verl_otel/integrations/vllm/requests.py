# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests: each takes the trace headers of its caller, and keeps them until its span is made.

The engine's core sends the headers back with a request's last output, except when it aborts the request, as verl has it do before
every weight sync. So they are kept on the request's own state in this process: what ends, is cancelled or is forgotten by vLLM
takes them with it, and no list of ours can grow.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.bridge import make_headers
from verl_otel.integrations.patch import argument, replace
from verl_otel.integrations.vllm.engine import is_tracing

_HEADERS: Final = "_verl_otel_headers"
"""Attribute of vLLM's ``RequestState``."""


def _send_headers(original: Any) -> Any:
    """Wrap ``generate``: no generator around its own, so tokens cost nothing and closing it works as before."""

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("trace_headers") is None and is_tracing(self):
            headers = make_headers()
            if headers is not None:
                kwargs["trace_headers"] = headers
        return original(self, *args, **kwargs)

    return generate


def _keep_headers(original: Any) -> Any:
    @functools.wraps(original)
    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        with _guard.swallowed("vllm request"):
            request = argument(args, kwargs, 0, "request")
            headers = getattr(request, "trace_headers", None)
            if headers:
                state = self.request_states.get(request.request_id)
                if state is not None:
                    setattr(state, _HEADERS, headers)
        return result

    return add_request


def _trace_safely(original: Any) -> Any:
    """Wrap what makes the ``llm_request`` span, in the task that serves every request: what it raises ends the engine."""

    @functools.wraps(original)
    def do_tracing(self: Any, *args: Any, **kwargs: Any) -> None:
        output = argument(args, kwargs, 0, "engine_core_output")
        state = argument(args, kwargs, 1, "req_state")
        if getattr(state, "stats", None) is None or argument(args, kwargs, 2, "iteration_stats") is None:
            _guard.say("vllm stats", "verl-otel: vLLM keeps no statistics, of which its llm_request spans are made")
            return
        try:
            if output.trace_headers is None:
                output.trace_headers = getattr(state, _HEADERS, None)
            if output.trace_headers:
                original(self, *args, **kwargs)
            else:
                _run_detached(original, self, *args, **kwargs)
        except Exception as error:
            _guard.report("vllm tracing", error)

    return do_tracing


def _run_detached(function: Any, *args: Any, **kwargs: Any) -> None:
    """Call a function without a current span.

    The task holds the context in which the engine was created: a request without headers would become a child of whatever
    launched the server. This way it is the root of its own trace, and the engine's start stays where it belongs.
    """
    from opentelemetry import context

    token = context.attach(context.Context())
    try:
        function(*args, **kwargs)
    finally:
        context.detach(token)


def patch_generate(module: ModuleType) -> None:
    """Have every request carry the current span."""
    replace(module.AsyncLLM, "generate", _send_headers)


def patch_add(module: ModuleType) -> None:
    """Have every request remember what it carries."""
    replace(module.OutputProcessor, "add_request", _keep_headers)


def patch_tracing(module: ModuleType) -> None:
    """Have the span of every request find its parent and harm nobody."""
    replace(module.OutputProcessor, "do_tracing", _trace_safely)
