# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: its tracing is switched on where the user asks for it, and cannot kill it.

Two ways lead to ``llm_request`` spans. The user gives vLLM an endpoint of its own (``otlp_traces_endpoint``): that is his, and all
that is done is to turn on the statistics that the spans are made of. Or he sets ``VERL_OTEL_ENGINE_TRACES``: then the engine
makes its spans without an endpoint, by the global provider, and they leave with ours, wherever ours go. Neither vLLM's exporter
nor its child processes take part in that, so no second destination has to be configured and reachable.
"""

from __future__ import annotations

import copy
import functools
import os
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.integrations.bridge import open_provider
from verl_otel.integrations.patch import argument, replace
from verl_otel.recording.store import Store

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_NO_ENDPOINT: Final = "verl_otel"
_STATS: Final = 2
"""Place of ``log_stats`` among the engine's arguments."""


def is_asked_for() -> bool:
    """Return whether the user wants the engine's spans among ours."""
    current = session.current()
    return Store.on and current is not None and current.config.engine_traces


def is_tracing(engine: Any) -> bool:
    """Return whether an engine makes spans; True where that cannot be told."""
    return bool(getattr(getattr(engine, "output_processor", None), "tracing_enabled", True))


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own, ours = None, False
        inherited = os.environ.get(ENDPOINT)
        with _guard.swallowed("vllm engine"):
            own = argument(args, kwargs, 0, "vllm_config").observability_config.otlp_traces_endpoint
            ours = own is None and is_asked_for()
            if ours:
                open_provider()
            if ours or own is not None:
                args, kwargs = _with_stats(args, kwargs)
        original(self, *args, **kwargs)
        if own is not None:
            _restore(inherited)
        if ours:
            with _guard.swallowed("vllm engine"):
                _switch_on(self)

    return init


def _switch_on(engine: Any) -> None:
    """Have a finished engine make spans.

    Where it has no endpoint it drops the trace headers of its callers, so its own copy of the configuration names one. Nobody reads
    it any more: the exporter that it is for would have been made by the constructor.
    """
    config = copy.copy(engine.observability_config)
    config.otlp_traces_endpoint = _NO_ENDPOINT
    engine.observability_config = config
    engine.output_processor.tracing_enabled = True


def _with_stats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn the engine's statistics on, which verl turns off: vLLM's spans are made of them.

    With an endpoint and without statistics the first request that ends would fail an assertion and take the engine down
    (vLLM issue 25352). This is vLLM's default, so nothing about it is unusual; ``vllm:*`` metrics appear with it.
    """
    if len(args) > _STATS:
        return (*args[:_STATS], True, *args[_STATS + 1 :]), kwargs
    return args, {**kwargs, "log_stats": True}


def _restore(inherited: str | None) -> None:
    """Put back the variable in which vLLM tells its children, which have started by now, where its traces go.

    Our exporter, and every other OpenTelemetry in this process, may not have read it yet, and it is the user's word to them.
    """
    if inherited is not None:
        os.environ[ENDPOINT] = inherited
    else:
        os.environ.pop(ENDPOINT, None)


def patch_init(module: ModuleType) -> None:
    """Wrap the engine's constructor: every way to make one leads there."""
    replace(module.AsyncLLM, "__init__", _prepare)
