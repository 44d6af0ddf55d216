# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""aiohttp: HTTP calls of rewards carry ``traceparent`` and are client spans, by OpenTelemetry's own instrumentation with restrictions.

It is switched on only in processes that make such calls, by the code that makes them; with ``VERL_OTEL_AIOHTTP=all`` by
the first session of a process, for the calls of tools and agent loops.

* A call without a current span creates no span and no header: what belongs to no trace is of no interest.
* It records no metrics: they are not in the catalogue.
* It records no query string, and no exception message unless content is captured: they may hold prompts, answers and keys.

verl's own reward router forwards the headers that it receives. Its own client spans would replace them, so the caller's
context is extracted and made current around each request.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.masking import hide_url
from verl_otel.integrations.patch import Hook, argument, register
from verl_otel.integrations.spans import OPENERS, open_provider
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.state import RECORDER
from verl_otel.session import current_session

_WORKERS: Final = ("RewardLoopWorker", "RewardComputeWorker")
"""Actors of verl that compute rewards. The second one is pickled by value and cannot be patched."""


class Client:
    """State of the instrumentation in this process."""

    on = False
    tried = False
    instrumentor: Any = None
    """OpenTelemetry's instrumentor, if this module switched it on."""


def watch_call(class_name: str) -> None:
    """Switch the instrumentation on if this actor computes rewards. An opener of `spans.OPENERS`, called at each ``compute_score``."""
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
    except ImportError:
        return
    instrumentor = AioHttpClientInstrumentor()
    if instrumentor.is_instrumented_by_opentelemetry:
        return
    open_provider()
    Client.on = True
    instrumentor.instrument(
        tracer_provider=_GuestProvider(),
        meter_provider=NoOpMeterProvider(),
        url_filter=lambda url: hide_url(str(url)),
    )
    Client.instrumentor = instrumentor


@error_boundary.never_raises("aiohttp")
def uninstall() -> None:
    """Stop instrumenting new sessions; existing sessions create no more spans."""
    instrumentor, Client.instrumentor = Client.instrumentor, None
    Client.on = Client.tried = False
    if instrumentor is not None:
        instrumentor.uninstrument()


class _GuestProvider:
    """A tracer provider for the instrumentation: its tracers are those of the global one, with restrictions."""

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        from opentelemetry import trace

        return _GuestTracer(trace.get_tracer_provider().get_tracer(*args, **kwargs))


class _GuestTracer:
    """Creates spans only below a current span, and does not record messages of exceptions."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Begin a span; a non-recording one when off or without a parent."""
        from opentelemetry import trace

        is_below = trace.get_current_span(context).get_span_context().is_valid
        if not Client.on or not RECORDER.on or not is_below:
            return trace.INVALID_SPAN
        span = self._tracer.start_span(name, context, *args, **kwargs)
        if not RECORDER.capture_content:
            span.record_exception = lambda *_, **__: None  # the message may hold a prompt
        return span


def _resume(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Make the context of a request's caller current, unless FastAPI (newer releases) or the user's instrumentation has done so."""
    if not Client.on:
        return
    from opentelemetry import context, propagate, trace

    if trace.get_current_span().get_span_context().is_valid:
        return
    token = context.attach(propagate.extract(argument(args, kwargs, 1, "request").headers))
    try:
        yield
    finally:
        context.detach(token)


def _switch_on_first(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    switch_on()
    yield


_SWITCH_ON: Final = surround("aiohttp", _switch_on_first)
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
        surround("reward router", _resume),
        "HTTP calls of the reward router are outside of the trajectories",
        since="verl 0.8",
    ),
)


def _switch_on_at_first(original: Callable[..., None]) -> Callable[..., None]:
    """Return ``ClientSession.__init__`` that switches the instrumentation on, also for the session that is being made."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        was_on = Client.on
        switch_on()
        if Client.on and not was_on:  # the instrumentation has replaced the method around this one
            sys.modules["aiohttp"].ClientSession.__init__(self, *args, **kwargs)
        else:
            original(self, *args, **kwargs)

    return init


SESSIONS: Final = (
    Hook.wrapping("aiohttp", "ClientSession.__init__", _switch_on_at_first, "HTTP calls carry no trace context"),
)


def install() -> None:
    """Register the hooks. Nothing is imported before the first hook runs."""
    register(HOOKS)
    OPENERS["compute_score"] = watch_call
    current = current_session()
    if current is not None and current.config.aiohttp == "all":
        register(SESSIONS)
