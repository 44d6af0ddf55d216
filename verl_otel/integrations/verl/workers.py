# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's workers: one CLIENT span per call of a worker group, one SERVER span per method on each rank.

Both wrappers are generated without references to this package in their globals: Ray pickles a class of a user's script by value, and a worker
without verl-otel must be able to load and run it.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel.integrations.open_spans import find_enclosing
from verl_otel.integrations.patch import Hook
from verl_otel.integrations.verl import batch_lineage, gpu_time
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.call_attributes import extract_batch
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import HOOKED, find_callsite
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

IGNORED_CALLS: Final = ("_query_dispatch_info", "_query_collect_info", "_set_dispatch_info", "_set_collect_info")
"""Suffixes of the names of internal calls."""

_METHOD: Final = """
def make(function, name, state):
    {async_}def method(self, *args, **kwargs):
        if state["superseded"]:
            return {await_}function(self, *args, **kwargs)
        try:
            from verl_otel.integrations.verl.workers import begin_method, end_method
        except ImportError:
            return {await_}function(self, *args, **kwargs)
        span = begin_method(self, name)
        try:
            result = {await_}function(self, *args, **kwargs)
        except BaseException as error:
            end_method(span, args, kwargs, None, error)
            raise
        end_method(span, args, kwargs, result, None)
        return result
    return method
"""
_CALL: Final = """
def make(inner, group, name, blocking):
    class Functor:
        def __call__(this, *args, **kwargs):
            try:
                from verl_otel.integrations.verl.workers import begin_call, end_call
            except ImportError:
                return inner(*args, **kwargs)
            span = begin_call(group, name, blocking, *args[:1], *kwargs.values())
            try:
                result = inner(*args, **kwargs)
            except BaseException as error:
                end_call(span, error)
                raise
            end_call(span, None)
            return result
    return type(name, (Functor,), {})()
"""

_CALL_PREFIX: Final = SPANS["call"].name
_prefixed: dict[str, tuple[str, str]] = {}
"""Role and method of the ``<role>_<method>`` of a colocated worker class."""
_sites: dict[tuple[str, str], CallSite] = {}


class Started(NamedTuple):
    """A running worker method."""

    span: Span
    cpu: float | None
    """CPU time of its thread at the start, in seconds; None for a coroutine, whose thread runs other tasks in between."""


def begin_method(worker: Any, name: str) -> Started | None:
    """Begin the SERVER span of a worker method; None when off, for an ignored call, or if our own code fails."""
    if not RECORDER.on or name.endswith(IGNORED_CALLS):
        return None
    try:
        attributes: dict[str, AttributeValue] = {attr.WORKER_NESTED: find_enclosing("worker") is not None}
        rank = to_number(getattr(worker, "_rank", None))
        if rank is not None:
            attributes[attr.RANK] = int(rank)
        cpu = None if _is_coroutine(worker.__class__, name) else time.thread_time()
        return Started(Span(_site("worker", f"{type(worker).__name__}.{name}", name), attributes).__enter__(), cpu)
    except Exception as error:
        error_boundary.record_internal_error("worker", error)
        return None


def end_method(started: Started | None, args: Any, kwargs: Any, result: Any, error: BaseException | None) -> None:
    """End the span of a worker method; a batch among its arguments gives size and tokens."""
    if started is None:
        return
    span = started.span
    if started.cpu is not None:
        with error_boundary.suppress_errors("worker"):
            span.set_attribute(attr.CPU_SECONDS, time.thread_time() - started.cpu)
    if error is None:
        with error_boundary.suppress_errors("worker"):
            batch = kwargs.get("data", kwargs.get("batch", args[0] if args else None))
            attributes = extract_batch({"batch": batch}, result)
            tags = getattr(batch, "tags", None)  # a KVBatchMeta: it holds the token counts in its tags, and no data
            if tags and attributes[attr.BATCH_TOKENS] is None:
                attributes[attr.BATCH_TOKENS] = sum(int(tag.get("seq_len") or 0) for tag in tags)
            span.set_attributes({key: value for key, value in attributes.items() if value is not None})
    span.close(error)


def begin_call(group: Any, name: str, blocking: Any, batch: Any = None, *_: Any) -> Span | None:
    """Begin the CLIENT span of a worker group's call; None when off or when our own code fails."""
    if not RECORDER.on:
        return None
    try:
        role, method = _prefixed.get(name, ("", name))
        if method in gpu_time.UPDATES:
            with error_boundary.suppress_errors("trained rows"):
                batch_lineage.note_update(batch)
        role = role or str(getattr(group, "sub_cls_name", "") or getattr(group, "name_prefix", "") or "")
        attributes: dict[str, AttributeValue] = {
            attr.WORLD_SIZE: int(to_number(getattr(group, "world_size", 0)) or 0),
            attr.CALL_BLOCKING: bool(blocking),
        }
        if role:
            attributes[attr.WORKER_GROUP] = role
        return Span(_site("call", method, method), attributes).__enter__()
    except Exception as error:
        error_boundary.record_internal_error("worker call", error)
        return None


def end_call(span: Span | None, error: BaseException | None) -> None:
    """End the span of a worker group's call."""
    if span is not None:
        span.close(error)
        gpu_time.note_call(span.site.name.removeprefix(_CALL_PREFIX), span.start, span.stop)


def _site(verb: str, label: str, method: str) -> CallSite:
    site = _sites.get((verb, label))
    if site is None:
        attributes = {attr.WORKER_METHOD: method}
        site = _sites[(verb, label)] = CallSite(verb, SPANS[verb].name + label, attributes=attributes, hook=True)
    return site


@functools.lru_cache(maxsize=1024)
def _is_coroutine(owner: type, name: str) -> bool:
    return inspect.iscoroutinefunction(getattr(owner, name, None))


def _make(template: str, function: Any, *values: Any) -> Any:
    is_async = inspect.iscoroutinefunction(function)
    words = {"{async_}": "async " if is_async else "", "{await_}": "await " if is_async else ""}
    source = functools.reduce(lambda text, word: text.replace(word, words[word]), words, template)
    namespace: dict[str, Any] = {"__name__": getattr(function, "__module__", "__main__")}
    exec(compile(source, "<verl_otel worker hook>", "exec"), namespace)  # noqa: S102 - the templates above
    return namespace["make"](function, *values)


def _wrap_register(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        decorate = original(*args, **kwargs)

        def decorator(function: Any) -> Any:
            registered = decorate(function)
            if find_callsite(function) is not None:
                return registered  # decorated by the user
            state = {"superseded": False}
            wrapper = functools.wraps(registered)(_make(_METHOD, registered, function.__name__, state))
            setattr(wrapper, HOOKED, state)
            return wrapper

        return decorator

    return register


def _wrap_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def func_generator(self: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
        inner = original(self, method_name, *args, **kwargs)
        if method_name.endswith(IGNORED_CALLS):
            return inner
        blocking = kwargs.get("blocking", args[3] if len(args) > 3 else True)  # noqa: PLR2004 - the last of verl's five parameters
        return _make(_CALL, inner, self, method_name, blocking)

    return func_generator


def _wrap_bind(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bind(cls: Any, key: str, user_defined_cls: Any, *args: Any, **kwargs: Any) -> Any:
        with error_boundary.suppress_errors("worker prefix"):
            _prefixed.update(
                {f"{key}_{name}": (key, name) for name in dir(user_defined_cls) if not name.startswith("__")}
            )
        return original(cls, key, user_defined_cls, *args, **kwargs)

    return bind


HOOKS: Final = (
    Hook.wrapping("verl.single_controller.base.decorator", "register", _wrap_register, "no spans of worker methods"),
    Hook.wrapping(
        "verl.single_controller.ray.base",
        "func_generator",
        _wrap_generator,
        "no spans of worker group calls",
        others={"_bind_workers_method_to_parent": _wrap_bind},
    ),
)
