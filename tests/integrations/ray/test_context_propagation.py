# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The context of a caller in Ray's calls, with modules of Ray that are made up here; a call runs in another thread."""

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace

import verl_otel
from verl_otel._internal import error_boundary
from verl_otel.integrations import spans
from verl_otel.integrations.ray import context_propagation


class RemoteFunction:
    """Reads the signature at the first call, and runs the function elsewhere."""

    def __init__(self, function):
        self._function, self._function_signature = function, None
        self._is_cross_language, self._inject_lock = False, threading.Lock()

    def _remote(self, args=None, kwargs=None):
        with self._inject_lock:
            if self._function_signature is None:
                self._function_signature = list(inspect.signature(self._function).parameters.values())
        inspect.Signature(self._function_signature).bind(*args, **kwargs)
        return elsewhere(lambda: run(self._function(*args, **kwargs)))


def elsewhere(call):
    """Run a call in a thread, which has no context."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def run(result):
    """Return the items of a generator, or the result itself."""
    if inspect.isasyncgen(result):
        return asyncio.run(collect(result))
    return list(result) if inspect.isgenerator(result) else result


async def collect(stream):
    return [item async for item in stream]


@pytest.fixture
def ray(monkeypatch):
    """Ray's modules, hooked, in a process that loads telemetry first."""
    made = types.ModuleType("ray")
    made.__file__ = __file__  # where its methods are from: nothing else wraps them
    made.helper = types.ModuleType("helper")
    made.helper._is_tracing_enabled = made.helper._get_opentelemetry = bool
    made.helper._opentelemetry = made.helper._global_is_tracing_enabled = None
    made.helper._actor_hydrate_span_args = made.helper._function_hydrate_span_args = None
    made.actor = types.ModuleType("ray.actor")
    made.actor.ActorMethod = type("ActorMethod", (), {"_remote": lambda self: None, "_bind": lambda self: None})
    made.actor.ActorClass = type("ActorClass", (), {"_remote": lambda self: None})
    made.actor._inject_tracing_into_class = lambda cls: cls
    made.remote_function = types.ModuleType("ray.remote_function")
    made.remote_function.RemoteFunction = type("RemoteFunction", (RemoteFunction,), {"_remote": RemoteFunction._remote})
    made.remote_function._inject_tracing_into_function = None
    made._private = types.ModuleType("ray._private")
    made._private.function_manager = types.ModuleType("ray._private.function_manager")
    hook = types.ModuleType("ray._private.auto_init_hook")
    hook.wrap_auto_init = functools.partial
    for module in (made, made.actor, made.remote_function, made._private, made._private.function_manager, hook):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(context_propagation.Propagation, "state", "off")
    context_propagation.silence_ray(made.helper)
    assert context_propagation.Propagation.state == "on"
    context_propagation.patch_actors(made.actor)
    return made


def seen():
    """The trace that is current."""
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


def function(*words, **more):
    return [seen()] if (words, more) == (("a",), {"b": "c"}) else [words, more]


def generator(*_words, **_more):
    yield seen()
    yield seen()


@pytest.mark.parametrize("called", [function, generator])
def test_a_task_has_the_context_of_its_caller(ray, recorded, called):
    """Also where it was called before, outside of every span."""
    task = ray.remote_function.RemoteFunction(called)
    assert set(task._remote(("a",), {"b": "c"})) == {f"{0:032x}"}
    with verl_otel.step(1) as step:
        found = task._remote(("a",), {"b": "c"})
        assert set(found) == {f"{step.resolve().trace_id:032x}"}


def test_a_task_that_was_called_before_telemetry_goes_on(ray, recorded):
    """Its signature is known to Ray, and has no place for a context."""
    task = ray.remote_function.RemoteFunction(function)
    RemoteFunction._remote(task, ("a",), {"b": "c"})
    with verl_otel.step(1):
        assert task._remote(("a",), {"b": "c"}) == [f"{0:032x}"]


class Actor:
    def stream(self):
        yield seen()

    async def stream_async(self):
        yield seen()

    @staticmethod
    def helper():
        yield "static"


@pytest.mark.parametrize("name", ["stream", "stream_async"])
def test_the_generators_of_an_actor_take_a_context(ray, recorded, name):
    """However often Ray prepares the class; a method that is called without one, or is no method, stays as it was."""
    cls = type("Prepared", (Actor,), {})
    for _ in range(2):
        ray.actor._inject_tracing_into_class(cls)
    method = getattr(cls(), name)
    assert context_propagation.KEYWORD in inspect.signature(inspect.unwrap(getattr(cls, name))).parameters
    with verl_otel.step(1) as step:
        carrier = context_propagation._make_carrier()
        expected = f"{step.resolve().trace_id:032x}"
    assert elsewhere(lambda: run(method(_ray_trace_ctx=carrier))) == [expected]
    assert elsewhere(lambda: run(method())) == [f"{0:032x}"]
    assert list(cls.helper()) == ["static"]


@contextlib.contextmanager
def no_entry():
    """A span that cannot be entered."""
    raise RuntimeError("no entry")
    yield


@pytest.mark.usefixtures("recorded")
def test_a_span_that_cannot_be_entered_does_not_reach_the_call(ray, monkeypatch):
    """The method of the actor runs, without a span."""
    monkeypatch.delenv(error_boundary.RAISE_INTERNAL_ERRORS, raising=False)
    monkeypatch.setitem(spans.OPENERS, "generate", lambda _: no_entry())
    tracer = ray.helper._opentelemetry.trace.get_tracer("ray")
    with tracer.start_as_current_span("Server.generate ray.remote_worker"):
        answer = 42
    assert answer == 42
