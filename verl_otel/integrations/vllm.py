# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""vLLM: its own ``llm_request`` spans join the trajectory of the request. Its metrics stay unchanged.

Names are those of the V1 engine from 0.24 to 0.33. verl calls the engine in process and passes no trace headers.

There are two ways to get ``llm_request`` spans. If the user sets vLLM's own endpoint (``otlp_traces_endpoint``), only the statistics that
the spans need are enabled. With ``VERL_OTEL_ENGINE_TRACES`` the engine creates its spans with the global provider and without an endpoint,
and they are exported together with those of verl-otel. vLLM's exporter and its child processes are not involved, so no second destination
has to be configured and reachable.

Each request carries the trace headers of its caller until its span is created. The engine's core returns the headers
with the last output of a request, except for aborted requests, and verl aborts requests before every weight sync. So
the headers are stored on the state of the request in this process, and are freed with it.
"""

from __future__ import annotations

import copy
import functools
import os
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, argument, register
from verl_otel.integrations.spans import make_headers, open_provider
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.state import RECORDER
from verl_otel.session import current_session

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_NO_ENDPOINT: Final = "verl_otel"
_STATS: Final = 2
"""Position of ``log_stats`` among the engine's arguments."""
_HEADERS: Final = "_verl_otel_headers"
"""Attribute of vLLM's ``RequestState``."""


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        endpoint, use_global_provider = None, False
        inherited = os.environ.get(ENDPOINT)
        with error_boundary.suppress_errors("vllm engine"):
            endpoint = argument(args, kwargs, 0, "vllm_config").observability_config.otlp_traces_endpoint
            current = current_session()
            is_requested = RECORDER.on and current is not None and current.config.engine_traces
            use_global_provider = endpoint is None and is_requested
            if use_global_provider:
                open_provider()
            if use_global_provider or endpoint is not None:
                args, kwargs = _with_stats(args, kwargs)
        original(self, *args, **kwargs)
        if endpoint is not None:
            _restore(inherited)
        if use_global_provider:
            with error_boundary.suppress_errors("vllm engine"):
                _switch_on(self)

    return init


def _switch_on(engine: Any) -> None:
    """Enable spans of a constructed engine.

    Without an endpoint it drops the trace headers of its callers, so its copy of the configuration gets one. The endpoint is not used:
    the exporter would have been created by the constructor.
    """
    config = copy.copy(engine.observability_config)
    config.otlp_traces_endpoint = _NO_ENDPOINT
    engine.observability_config = config
    engine.output_processor.tracing_enabled = True


def _with_stats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Enable the engine's statistics, which verl disables and vLLM's spans need.

    With an endpoint and without statistics the first request that ends fails an assertion and terminates the engine
    (vLLM issue 25352). Enabled is vLLM's default; it adds the ``vllm:*`` metrics.
    """
    if len(args) > _STATS:
        return (*args[:_STATS], True, *args[_STATS + 1 :]), kwargs
    return args, {**kwargs, "log_stats": True}


def _restore(inherited: str | None) -> None:
    """Restore the variable that vLLM sets for its child processes, which have started by now.

    Exporters in this process may not have read it yet, and for them the user's value applies.
    """
    if inherited is not None:
        os.environ[ENDPOINT] = inherited
    else:
        os.environ.pop(ENDPOINT, None)


def _send_headers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Add headers to a call of ``generate``, which returns the host's own generator: tokens cost nothing."""
    is_tracing = getattr(getattr(args[0], "output_processor", None), "tracing_enabled", True)
    if kwargs.get("trace_headers") is None and is_tracing:
        headers = make_headers()
        if headers is not None:
            kwargs["trace_headers"] = headers
    yield


def _keep_headers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    yield
    request = argument(args, kwargs, 1, "request")
    headers = getattr(request, "trace_headers", None)
    state = args[0].request_states.get(request.request_id) if headers else None
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


_ENGINE: Final = "vllm.v1.engine.async_llm"
_OUTPUT: Final = "vllm.v1.engine.output_processor"
HOOKS: Final = (
    Hook.wrapping(_ENGINE, "AsyncLLM.__init__", _prepare, "VERL_OTEL_ENGINE_TRACES has no effect on vLLM"),
    Hook.wrapping(
        _ENGINE,
        "AsyncLLM.generate",
        surround("vllm headers", _send_headers),
        "vLLM's spans are outside of the trajectories",
    ),
    Hook.wrapping(
        _OUTPUT,
        "OutputProcessor.add_request",
        surround("vllm request", _keep_headers),
        "vLLM's spans of aborted requests have no parents",
    ),
    Hook.wrapping(
        _OUTPUT,
        "OutputProcessor.do_tracing",
        _trace_safely,
        "vLLM's tracing needs rollout.disable_log_stats=False, or the engine dies",
    ),
)


def install() -> None:
    """Register the hooks of vLLM."""
    register(HOOKS)
