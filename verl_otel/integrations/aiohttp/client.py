# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The client: OpenTelemetry's own instrumentation of aiohttp, with restrictions.

* A call without a current span creates no span and no header: only rewards are of interest.
* It records no metrics: they are not in the catalogue.
* It records no query string, and no exception message unless content is captured: they may hold prompts, answers and keys.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.api import RECORDER
from verl_otel.integrations.patch import add_callbacks, replace
from verl_otel.integrations.propagation import open_provider

_WORKERS: Final = ("RewardLoopWorker", "RewardComputeWorker")
"""Actors of verl that compute rewards. The second one is pickled by value and cannot be patched."""


class Client:
    """State of the instrumentation in this process."""

    on = False
    tried = False
    instrumentor: Any = None
    """OpenTelemetry's instrumentor, if this module switched it on."""


def watch_call(class_name: str) -> None:
    """Switch the instrumentation on if this actor computes rewards. An opener of `server_spans`, called at each ``compute_score``."""
    if not Client.tried and class_name in _WORKERS:
        switch_on()


@error_boundary.never_raises("aiohttp")
def switch_on() -> None:
    """Instrument new sessions; does nothing without the package, or if the user has instrumented aiohttp."""
    if Client.tried or not RECORDER.on:
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
        tracer_provider=GuestProvider(lambda: Client.on and RECORDER.on),
        meter_provider=NoOpMeterProvider(),
        url_filter=_shorten,
    )
    Client.instrumentor = instrumentor


@error_boundary.never_raises("aiohttp")
def switch_off() -> None:
    """Undo `switch_on`."""
    instrumentor, Client.instrumentor = Client.instrumentor, None
    Client.on = Client.tried = False
    if instrumentor is not None:
        instrumentor.uninstrument()


def _shorten(url: Any) -> str:
    """Return a URL without user, password, query and fragment, which may be secret."""
    try:
        return str(url.with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # aiohttp raises for a URL that is not absolute
        return ""


def patch_worker(module: ModuleType) -> None:
    """Switch the instrumentation on in the processes of reward workers."""
    # Each worker calls it in its constructor, and it may create a session.
    replace(module.RewardLoopWorker, "_init_reward_fn", add_callbacks("aiohttp", before=lambda *_: switch_on()))
