# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's workers: one CLIENT span per call of a worker group, one SERVER span per method on each rank.

Both wrappers refer to this package in function bodies only: Ray pickles a class of a user's script by value, and a worker without verl-otel
must be able to load and run it.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, argument
from verl_otel.integrations.spans import describe, find_enclosing
from verl_otel.integrations.verl import batch_lineage, gpu_time, weight_sync
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.call_attributes import extract_batch
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import HOOKED, Call, Steps, find_callsite, make_wrapper, surround
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

IGNORED_CALLS: Final = ("_query_dispatch_info", "_query_collect_info", "_set_dispatch_info", "_set_collect_info")
"""Suffixes of the names of internal calls."""
_prefixed: dict[str, tuple[str, str]] = {}
"""Role and method of the ``<role>_<method>`` of a colocated worker class."""


def open_call(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], *facts: Any) -> Call:
    """Return one call of a worker method or of a worker group; see `_wrap`."""
    around: Callable[..., Steps] = _run_method if kind == "worker" else _call_group
    return Call(kind, functools.partial(around, *facts), args, kwargs)


def _run_method(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Record a worker method; a batch among its arguments gives size and tokens."""
    if not RECORDER.on or name.endswith(IGNORED_CALLS):
        return
    worker, *rest = args
    attributes: dict[str, AttributeValue] = {attr.WORKER_NESTED: find_enclosing("worker") is not None}
    rank = to_number(getattr(worker, "_rank", None))
    if rank is not None:
        attributes[attr.RANK] = int(rank)
    # The thread of a coroutine runs other tasks in between.
    cpu = None if _is_coroutine(worker.__class__, name) else time.thread_time()
    parts = weight_sync.begin(worker) if name == weight_sync.METHOD else None
    with Span(_site("worker", f"{type(worker).__name__}.{name}", name), attributes) as span:
        try:
            result = yield
        finally:
            if cpu is not None:
                with error_boundary.suppress_errors("worker"):
                    span.set_attribute(attr.CPU_SECONDS, time.thread_time() - cpu)
        with error_boundary.suppress_errors("worker"):
            batch = kwargs.get("data", kwargs.get("batch", rest[0] if rest else None))
            values = extract_batch({"batch": batch}, result)
            tags = getattr(batch, "tags", None)  # a KVBatchMeta: it holds the token counts in its tags, and no data
            if tags and values[attr.BATCH_TOKENS] is None:
                values[attr.BATCH_TOKENS] = sum(int(tag.get("seq_len") or 0) for tag in tags)
            describe(span, values)
            if parts is not None:
                parts.record(span)


def _call_group(group: Any, name: str, blocking: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Record a call of a worker group."""
    if not RECORDER.on:
        return
    role, method = _prefixed.get(name, ("", name))
    if method in gpu_time.UPDATES:
        with error_boundary.suppress_errors("trained rows"):
            batch_lineage.note_update(next(iter((*args[1:], *kwargs.values())), None))
    role = role or str(getattr(group, "sub_cls_name", "") or getattr(group, "name_prefix", "") or "")
    attributes: dict[str, AttributeValue] = {
        attr.WORLD_SIZE: int(to_number(getattr(group, "world_size", 0)) or 0),
        attr.CALL_BLOCKING: bool(blocking),
    }
    if role:
        attributes[attr.WORKER_GROUP] = role
    span = Span(_site("call", method, method), attributes)
    try:
        with span:
            yield
    finally:
        gpu_time.note_call(method, span.start, span.stop, blocking=bool(blocking))


@functools.lru_cache(maxsize=4096)
def _site(verb: str, label: str, method: str) -> CallSite:
    return CallSite(verb, SPANS[verb].name + label, attributes={attr.WORKER_METHOD: method}, hook=True)


@functools.lru_cache(maxsize=1024)
def _is_coroutine(owner: type, name: str) -> bool:
    return inspect.iscoroutinefunction(getattr(owner, name, None))


def _wrap(function: Any, kind: str, *facts: Any) -> Any:
    """Return a wrapper that records calls of a function, unless verl-otel is missing where it runs or a decorator has superseded it."""
    state = {"superseded": False}

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if not state["superseded"]:
                from verl_otel.integrations.verl.workers import open_call

                return open_call(kind, args, kwargs, *facts)
        except ImportError:
            pass
        import contextlib
        import types

        return contextlib.nullcontext(types.SimpleNamespace())

    wrapper = make_wrapper(function, begin)
    setattr(wrapper, HOOKED, state)
    return wrapper


def _wrap_register(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        decorate = original(*args, **kwargs)

        def decorator(function: Any) -> Any:
            registered = decorate(function)
            is_decorated = find_callsite(function) is not None  # by the user
            return registered if is_decorated else _wrap(registered, "worker", function.__name__)

        return decorator

    return register


def _wrap_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def func_generator(self: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
        inner = original(self, method_name, *args, **kwargs)
        if method_name.endswith(IGNORED_CALLS):
            return inner
        blocking = kwargs.get("blocking", args[3] if len(args) > 3 else True)  # noqa: PLR2004 - the last of verl's five parameters

        def call(_functor: Any, *args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        call = _wrap(call, "worker call", self, method_name, blocking)
        return type(method_name, (), {"__call__": call})()

    return func_generator


def _note_prefix(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    key, worker_class = argument(args, kwargs, 1, "key"), argument(args, kwargs, 2, "user_defined_cls")
    names = (name for name in dir(worker_class) if not name.startswith("__"))
    _prefixed.update({f"{key}_{name}": (key, name) for name in names})
    yield


HOOKS: Final = (
    Hook.wrapping("verl.single_controller.base.decorator", "register", _wrap_register, "no spans of worker methods"),
    Hook.wrapping(
        "verl.single_controller.ray.base",
        "func_generator",
        _wrap_generator,
        "no spans of worker group calls",
        others={"_bind_workers_method_to_parent": surround("worker prefix", _note_prefix)},
    ),
)
