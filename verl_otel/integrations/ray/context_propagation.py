# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Propagate the trace context over Ray's calls of actors and tasks.

Every actor method takes the hidden keyword ``_ray_trace_ctx`` and resumes the context in it. Ray's own way to fill it,
``_enable_tracing()``, breaks streaming generators and remote functions that were called before (seen on 2.60), and creates two
spans per call. So the keyword is added to a call only if the signature has it; generators and functions, which Ray leaves out or
breaks, take it by a layer of ours. Ray's spans are replaced by the span of a registered opener (`spans.OPENERS`), or by none.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import assign, replace
from verl_otel.integrations.spans import OPENERS, current_span_context
from verl_otel.recording.context import context_access
from verl_otel.recording.state import RECORDER

KEYWORD: Final = "_ray_trace_ctx"


class Propagation:
    """State of the propagation in this process."""

    state = "off"
    """``on``, ``off``, ``user`` (the user has enabled Ray's tracing, which stays unchanged), or why it is not possible."""
    early = False
    """Whether verl-otel was loaded before any actor class could be exported from this process; set by the setup hook, too."""
    by_client = False
    """Whether this process calls actors by Ray Client (``ray://``), and the server that calls them for it passes the context on."""


class _ServerTracer:
    """Replaces the tracer of Ray's helper: opens the span of a registered opener, and none of Ray's."""

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, *_args: Any, **_kwargs: Any) -> Iterator[Any]:
        class_name, _, method = name.partition(" ")[0].rpartition(".")
        opener = OPENERS.get(method)
        with contextlib.ExitStack() as entered:
            with error_boundary.suppress_errors("ray call"):
                span = opener(class_name) if opener is not None and RECORDER.on else None
                if span is not None:
                    entered.enter_context(span)
            yield context_access().invalid


def _make_opentelemetry() -> Any:
    from opentelemetry import context, propagate, trace

    tracer = _ServerTracer()
    trace_module = SimpleNamespace(SpanKind=trace.SpanKind, get_tracer=lambda *_, **__: tracer)
    return SimpleNamespace(trace=trace_module, context=context, propagate=propagate, Context=context.Context)


def _are_wrapped_by_others(folder: str) -> bool:
    """Return whether a layer that is not Ray's is around the methods that lose Ray's tracing: it would be lost with it.

    Args:
        folder: Ray's package.
    """
    for path in (
        "actor.ActorMethod._remote",
        "actor.ActorMethod._bind",
        "actor.ActorClass._remote",
        "remote_function.RemoteFunction._remote",
    ):
        module, name, attribute = path.split(".")
        layer: Any = getattr(getattr(sys.modules.get(f"ray.{module}"), name, None), attribute, None)
        while layer is not None:  # None at first: Ray imports these modules only now
            if not str(getattr(getattr(layer, "__code__", None), "co_filename", "")).startswith(folder):
                return True
            layer = getattr(layer, "__wrapped__", None)
    return False


def silence_ray(helper: ModuleType) -> None:
    """Enable the receiving side of Ray's tracing, with a replacement of OpenTelemetry. Skipped if the user has enabled tracing."""
    if helper._is_tracing_enabled():
        Propagation.state = "user"
        return
    if _are_wrapped_by_others(str(Path(str(sys.modules["ray"].__file__)).parent)):
        Propagation.state = "another library has wrapped the methods of Ray's actors"
        return
    if not hasattr(helper, "_get_opentelemetry") and not Propagation.early:
        # Before that function existed (2.41), an actor class exported earlier fails on every call that carries context.
        Propagation.state = "Ray was started before verl-otel was loaded, which this version of Ray does not allow"
        return
    assign(helper, "_opentelemetry", _make_opentelemetry())
    assign(helper, "_global_is_tracing_enabled", True)
    assign(helper, "_actor_hydrate_span_args", lambda *_: None)
    assign(helper, "_function_hydrate_span_args", lambda *_: None)
    Propagation.state = "on"


def patch_actors(actor: ModuleType) -> None:
    """Add the context to calls of actors and tasks, and remove Ray's own tracing from every other call."""
    if Propagation.state != "on":
        return
    from ray import remote_function
    from ray._private import function_manager

    replace(actor.ActorMethod, "_remote", _send_context)
    replace(actor.ActorMethod, "_bind", _untraced)
    replace(actor.ActorClass, "_remote", _untraced)
    replace(remote_function.RemoteFunction, "_remote", _send_context)
    assign(remote_function, "_inject_tracing_into_function", lambda function: function)
    for module in (actor, function_manager):
        if hasattr(module, "_inject_tracing_into_class"):  # older versions do not do it again where a class arrives
            replace(module, "_inject_tracing_into_class", _prepare_streams)


# -- The receiving side of generators and functions. A layer is pickled by value and refers to nothing of this package: a
# process without telemetry runs it, too --


@contextlib.contextmanager
def resume(carrier: Any) -> Iterator[None]:
    """Resume the context of a caller."""
    from opentelemetry import context, propagate

    token = None
    with error_boundary.suppress_errors("ray call"):
        token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        if token is not None:
            context.detach(token)


def _prepare_streams(inject: Any) -> Any:
    """Let the generators of an actor's class take a context, too: Ray leaves them out."""

    def inject_into_class(cls: Any) -> Any:
        result = inject(cls)
        with error_boundary.suppress_errors("ray carrier"):
            for name, method in inspect.getmembers(cls, _is_stream):
                if inspect.isfunction(inspect.getattr_static(cls, name)):
                    layer = _take_context(method)
                    setattr(cls, name, layer)
                    inspect.unwrap(layer).__signature__ = inspect.signature(layer)  # type: ignore[attr-defined]  # Ray reads it there
        return result

    return inject_into_class


def _is_stream(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _take_context(function: Any) -> Any:
    """Return a function that resumes the context in `KEYWORD`, which its signature has; one that has such a layer stays.

    Raises:
        ValueError, TypeError: The function has no signature.
    """
    if getattr(function, _LAYER, False):
        layer = function
    elif inspect.isgeneratorfunction(function):
        layer = _stream_in_context(function)
    elif inspect.isasyncgenfunction(function):
        layer = _stream_in_context_async(function)
    else:
        layer = _call_in_context(function)
    setattr(layer, _LAYER, True)
    own = inspect.signature(function)
    others = [parameter for parameter in own.parameters.values() if parameter.name != KEYWORD]
    place = len(others) - (bool(others) and others[-1].kind is inspect.Parameter.VAR_KEYWORD)
    others.insert(place, inspect.Parameter(KEYWORD, inspect.Parameter.KEYWORD_ONLY, default=None))
    layer.__signature__ = own.replace(parameters=others)
    return layer


_LAYER: Final = "__verl_otel_layer__"


def _call_in_context(function: Any) -> Any:
    @functools.wraps(function)
    def layer(*args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        import sys

        ours = sys.modules.get("verl_otel.integrations.ray.context_propagation")
        if _ray_trace_ctx is None or ours is None:
            return function(*args, **kwargs)
        with ours.resume(_ray_trace_ctx):
            return function(*args, **kwargs)

    return layer


def _stream_in_context(function: Any) -> Any:
    @functools.wraps(function)
    def layer(*args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        import sys

        ours = sys.modules.get("verl_otel.integrations.ray.context_propagation")
        if _ray_trace_ctx is None or ours is None:
            return (yield from function(*args, **kwargs))
        with ours.resume(_ray_trace_ctx):
            return (yield from function(*args, **kwargs))

    return layer


def _stream_in_context_async(function: Any) -> Any:
    @functools.wraps(function)
    async def layer(*args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        import contextlib
        import sys

        ours = sys.modules.get("verl_otel.integrations.ray.context_propagation")
        resumed = contextlib.nullcontext() if _ray_trace_ctx is None or ours is None else ours.resume(_ray_trace_ctx)
        with resumed:
            async with contextlib.aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item

    return layer


# -- the sending side --


def _untraced(method: Any) -> Any:
    """Return a method of Ray without its tracing layer, with its automatic ``ray.init``."""
    from ray._private.auto_init_hook import wrap_auto_init

    inner = method
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    replacement = wrap_auto_init(inner)
    replacement.__wrapped__ = inner
    return replacement


def _send_context(method: Any) -> Any:
    inner = _untraced(method)

    def _remote(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        if RECORDER.on or (kwargs and KEYWORD in kwargs):
            try:
                kwargs = _with_context(self, kwargs)
            except Exception as error:
                error_boundary.record_internal_error("ray carrier", error)
        return inner(self, args, kwargs, *rest, **options)

    _remote.__wrapped__ = inner.__wrapped__  # type: ignore[attr-defined]  # Ray unwraps its methods
    return _remote


def _with_context(called: Any, kwargs: Any) -> Any:
    takes = _takes_context(called)
    if kwargs and KEYWORD in kwargs:  # of a client
        return kwargs if takes else {key: kwargs[key] for key in kwargs if key != KEYWORD}
    if not takes or not current_span_context().is_valid:
        return kwargs
    return {**(kwargs or {}), KEYWORD: _make_carrier()}


def _make_carrier() -> dict[str, str]:
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def patch_client(worker: ModuleType) -> None:
    """Add the context to the actor method calls of Ray Client, which a server in the cluster makes for this process."""
    replace(worker.Worker, "call_remote", _send_by_client)


def _send_by_client(method: Any) -> Any:
    @functools.wraps(method)
    def call_remote(self: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        if RECORDER.on and Propagation.by_client:
            try:
                stub = getattr(instance, "_remote_stub", instance)  # within its options
                if (
                    type(stub).__name__ in ("ClientRemoteMethod", "ClientRemoteFunc")
                    and current_span_context().is_valid
                ):
                    kwargs = {**kwargs, KEYWORD: _make_carrier()}
            except Exception as error:
                error_boundary.record_internal_error("ray carrier", error)
        return method(self, instance, *args, **kwargs)

    return call_remote


def _takes_context(called: Any) -> bool:
    """Return whether the signature of an actor's method or of a remote function has the keyword."""
    if hasattr(called, "_inject_lock"):
        return _function_takes_context(called)
    actor = getattr(called, "_actor", None)
    if actor is None and hasattr(called, "_actor_ref"):
        actor = called._actor_ref()  # Ray 2.41 holds it weakly
    if actor is None or getattr(actor, "_ray_is_cross_language", False):
        return False
    signature = getattr(called, "_signature", None)
    if signature is None:
        signature = (getattr(actor, "_ray_method_signatures", None) or {}).get(called._method_name, ())
    return any(parameter.name == KEYWORD for parameter in signature)


def _function_takes_context(called: Any) -> bool:
    """Return the same of a remote function; one that is called for the first time is given the layer, before Ray reads its signature."""
    with called._inject_lock:
        if called._function_signature is None:
            if called._is_cross_language or not inspect.isfunction(called._function):
                return False
            called._function = _take_context(called._function)
            return True
        return any(parameter.name == KEYWORD for parameter in called._function_signature)
