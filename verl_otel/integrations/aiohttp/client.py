# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The client: OpenTelemetry's own instrumentation of aiohttp, on in this process, within our rules.

* A call without a current span makes no span and no header: rewards are what this is about.
* No metric of its own: it would be in no catalogue.
* No query and no exception message, which may hold prompts, answers and keys, unless the user keeps content.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.bridge import open_provider
from verl_otel.integrations.patch import replace
from verl_otel.recording.store import Store

_WORKERS: Final = ("RewardLoopWorker", "RewardComputeWorker")
"""Actors of verl that compute rewards; the second, of the remote manager, reaches other processes by value and cannot be patched."""


class Client:
    """The instrumentation in this process."""

    on = False
    tried = False
    instrumentor: Any = None
    """OpenTelemetry's, if it was us who switched it on."""


def watch_call(class_name: str) -> None:
    """Switch the instrumentation on if this actor computes rewards. Asked by Ray's carrier at each ``compute_score``."""
    if not Client.tried and class_name in _WORKERS:
        switch_on()


@_guard.guarded("aiohttp")
def switch_on() -> None:
    """Instrument the sessions that are made from now on. Nothing happens without the package, or where the user did it."""
    if Client.tried or not Store.on:
        return
    Client.tried = True
    try:
        from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
        from opentelemetry.metrics import NoOpMeterProvider

        from verl_otel.integrations.aiohttp.tracer import GuestProvider
    except ImportError:
        return
    instrumentor = AioHttpClientInstrumentor()
    if instrumentor.is_instrumented_by_opentelemetry:
        return
    open_provider()
    Client.on = True
    instrumentor.instrument(
        tracer_provider=GuestProvider(lambda: Client.on and Store.on),
        meter_provider=NoOpMeterProvider(),
        url_filter=_shorten,
    )
    Client.instrumentor = instrumentor


@_guard.guarded("aiohttp")
def switch_off() -> None:
    """Undo `switch_on`."""
    instrumentor, Client.instrumentor = Client.instrumentor, None
    Client.on = Client.tried = False
    if instrumentor is not None:
        instrumentor.uninstrument()


def _shorten(url: Any) -> str:
    """Return a URL without what may be secret in it: user, password, query and fragment."""
    try:
        return str(url.with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # aiohttp asks for an absolute URL and will say so itself
        return ""


def _wrap_init(original: Any) -> Any:
    """Wrap what loads the reward function, in the constructor of each worker: a session may be made there already."""

    @functools.wraps(original)
    def init_reward_fn(self: Any, *args: Any, **kwargs: Any) -> Any:
        switch_on()
        return original(self, *args, **kwargs)

    return init_reward_fn


def patch_worker(module: ModuleType) -> None:
    """Switch it on in the processes of reward workers."""
    replace(module.RewardLoopWorker, "_init_reward_fn", _wrap_init)
