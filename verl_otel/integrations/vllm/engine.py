# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: its tracing is enabled on request, and cannot crash it.

There are two ways to get ``llm_request`` spans. If the user sets vLLM's own endpoint (``otlp_traces_endpoint``), only the statistics that
the spans need are enabled. With ``VERL_OTEL_ENGINE_TRACES`` the engine creates its spans with the global provider and without an endpoint,
and they are exported together with those of verl-otel. vLLM's exporter and its child processes are not involved, so no second destination
has to be configured and reachable.
"""

from __future__ import annotations

import copy
import functools
import os
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.api import RECORDER, current_session
from verl_otel.integrations.patch import argument, replace
from verl_otel.integrations.propagation import open_provider

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_NO_ENDPOINT: Final = "verl_otel"
_STATS: Final = 2
"""Position of ``log_stats`` among the engine's arguments."""


def is_requested() -> bool:
    """Return whether the engine's spans are to be exported by verl-otel."""
    current = current_session()
    return RECORDER.on and current is not None and current.config.engine_traces


def is_tracing(engine: Any) -> bool:
    """Return whether an engine creates spans; True if that is unknown."""
    return bool(getattr(getattr(engine, "output_processor", None), "tracing_enabled", True))


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        endpoint, use_global_provider = None, False
        inherited = os.environ.get(ENDPOINT)
        with error_boundary.suppress_errors("vllm engine"):
            endpoint = argument(args, kwargs, 0, "vllm_config").observability_config.otlp_traces_endpoint
            use_global_provider = endpoint is None and is_requested()
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


def patch_init(module: ModuleType) -> None:
    """Wrap the engine's constructor, which every way to create an engine calls."""
    replace(module.AsyncLLM, "__init__", _prepare)
