# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""aiohttp: HTTP calls of rewards carry ``traceparent`` and are client spans, by OpenTelemetry's own instrumentation with restrictions.

It is switched on only in processes that make such calls, by the code that makes them.

* A call without a current span creates no span and no header: only rewards are of interest.
* It records no metrics: they are not in the catalogue.
* It records no query string, and no exception message unless content is captured: they may hold prompts, answers and keys.

verl's own reward router forwards the headers that it receives. Its own client spans would replace them, so the caller's context is extracted
and made current around each request.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations import server_spans
from verl_otel.integrations.patch import Hook, add_callbacks, register
from verl_otel.integrations.propagation import open_provider
from verl_otel.recording.state import RECORDER

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

        from verl_otel.integrations.guest_tracer import GuestProvider
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


_SWITCH_ON: Final = add_callbacks("aiohttp", before=lambda *_: switch_on())
_ROUTER: Final = "verl.experimental.reward_loop.router.naive_router"
HOOKS: Final = (
    Hook.wrapping(
        "verl.experimental.reward_loop.reward_loop",
        "RewardLoopWorker._init_reward_fn",  # each worker calls it in its constructor, and it may create a session
        _SWITCH_ON,
        "HTTP calls of rewards carry no trace context",
    ),
    Hook.wrapping(_ROUTER, "NaiveRouter.__init__", _SWITCH_ON, "no HTTP calls of the reward router", since="verl 0.8"),
    Hook.wrapping(
        _ROUTER,
        "NaiveRouter._make_async_request",
        _resume,
        "HTTP calls of the reward router are outside of the trajectories",
        since="verl 0.8",
    ),
)


def install() -> None:
    """Register the hooks. Nothing is imported before the first hook runs."""
    register(HOOKS)
    server_spans.register_opener("compute_score", watch_call)


def uninstall() -> None:
    """Stop instrumenting new sessions; existing sessions create no more spans."""
    switch_off()
