# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Carry the trace context over Ray's actor calls.

Every actor method takes the hidden keyword ``_ray_trace_ctx`` and resumes the context in it. Ray's own way to fill it,
``_enable_tracing()``, breaks streaming generators and remote functions that were called before (seen on 2.60), and opens two
spans of its own per call. So the keyword is put into actor method calls only, only where the method's signature has it, and
Ray's spans are replaced by nothing, or by the span that an integration asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations import calls
from verl_otel.integrations.patch import assign, enter, leave, replace
from verl_otel.recording.context import kernel
from verl_otel.recording.store import Store

KEYWORD: Final = "_ray_trace_ctx"


class Carrier:
    """What became of the carrier in this process."""

    state = "off"
    """``on``, ``off``, ``user``: the user has Ray's tracing on and it is left alone, or why it could not be used."""
    early = False
    """Whether we were loaded before any actor class could have been exported from this process; our setup hook says so, too."""


class _Tracer:
    """Stands in for the tracer of Ray's helper: opens what was asked for, and nothing of Ray's."""

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, *_args: Any, **_kwargs: Any) -> Iterator[Any]:
        class_name, _, method = name.partition(" ")[0].rpartition(".")
        opener = calls.find_opener(method)
        span = None
        if opener is not None:
            span = enter("ray call", lambda *_: opener(class_name), None, (), {})
        try:
            yield kernel().invalid
        except BaseException as error:
            leave(span, error)
            raise
        leave(span)


def _stand_in() -> Any:
    from opentelemetry import context, propagate, trace

    tracer = _Tracer()
    shown = SimpleNamespace(SpanKind=trace.SpanKind, get_tracer=lambda *_, **__: tracer)
    return SimpleNamespace(trace=shown, context=context, propagate=propagate, Context=context.Context)


def silence_ray(helper: ModuleType) -> None:
    """Switch Ray's resuming side on, with our stand-in for OpenTelemetry. Skipped where the user has tracing on."""
    if helper._is_tracing_enabled():
        Carrier.state = "user"
        return
    if not hasattr(helper, "_get_opentelemetry") and not Carrier.early:
        # Before that function existed (2.41), an actor class exported earlier fails on every call that carries context.
        Carrier.state = "Ray was started before verl-otel was loaded, which this version of Ray does not allow"
        return
    assign(helper, "_opentelemetry", _stand_in())
    assign(helper, "_global_is_tracing_enabled", True)
    assign(helper, "_actor_hydrate_span_args", lambda *_: None)
    assign(helper, "_function_hydrate_span_args", lambda *_: None)
    Carrier.state = "on"


def patch_actors(actor: ModuleType) -> None:
    """Put the context into actor method calls, and take Ray's own tracing out of every other call."""
    if Carrier.state != "on":
        return
    from ray import remote_function

    replace(actor.ActorMethod, "_remote", _carry)
    replace(actor.ActorMethod, "_bind", _untraced)
    replace(actor.ActorClass, "_remote", _untraced)
    replace(remote_function.RemoteFunction, "_remote", _untraced)
    assign(remote_function, "_inject_tracing_into_function", lambda function: function)


def _untraced(method: Any) -> Any:
    """Return a method of Ray without its tracing layer, with its automatic ``ray.init``."""
    from ray._private.auto_init_hook import wrap_auto_init

    inner = method
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    made = wrap_auto_init(inner)
    made.__wrapped__ = inner
    return made


def _carry(method: Any) -> Any:
    inner = _untraced(method)

    def _remote(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        if Store.on:
            try:
                kwargs = _with_context(self, kwargs)
            except Exception as error:
                _guard.report("ray carrier", error)
        return inner(self, args, kwargs, *rest, **options)

    _remote.__wrapped__ = inner.__wrapped__  # type: ignore[attr-defined]  # Ray unwraps its methods
    return _remote


def _with_context(method: Any, kwargs: Any) -> Any:
    now = kernel()
    if not now.span_of(now.get()).get_span_context().is_valid or not _takes_context(method):
        return kwargs
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {**(kwargs or {}), KEYWORD: carrier}


def _takes_context(method: Any) -> bool:
    actor = getattr(method, "_actor", None)
    if actor is None and hasattr(method, "_actor_ref"):
        actor = method._actor_ref()  # Ray 2.41 holds it weakly
    if actor is None or getattr(actor, "_ray_is_cross_language", False):
        return False
    signature = getattr(method, "_signature", None)
    if signature is None:
        signature = (getattr(actor, "_ray_method_signatures", None) or {}).get(method._method_name, ())
    return any(parameter.name == KEYWORD for parameter in signature)
