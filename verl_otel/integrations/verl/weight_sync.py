# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank does in a weight sync: how many bytes it hands over, and how long it gathers, sends, receives and loads them.

verl passes weights through a generator, whose producer and consumer are methods of objects of the worker. These objects
are patched, and not their classes, of which each backend and engine has its own. Seconds are those of the host: what a
device still computes when a call returns is not in them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import PATCHED
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.series import gauge
from verl_otel.recording.span import Span, clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

METHOD: Final = "update_weights"
"""The method of a worker that takes part in a sync."""


class _Role(NamedTuple):
    """A method that produces or consumes weights: where its object is in a worker, its name, and the part of the sync that it is."""

    owner: str
    method: str
    part: str


_SENDER: Final = (
    _Role("actor.engine", "get_per_tensor_param", "gather"),
    _Role("rollout", METHOD, "load"),
    _Role("checkpoint_engine", "send_weights", "send"),
)
_RECEIVER: Final = (_Role("checkpoint_engine", "receive_weights", "receive"), _Role("server_adapter", METHOD, "load"))
"""The producer first, then consumers, of which a sync has one: without a checkpoint engine a rank loads into the engine
of its own device."""


_ATTRIBUTES: Final = {
    "gather": attr.SYNC_GATHER_SECONDS,
    "send": attr.SYNC_SEND_SECONDS,
    "receive": attr.SYNC_RECEIVE_SECONDS,
    "load": attr.SYNC_LOAD_SECONDS,
}


class Parts:
    """What a rank has done since its last sync began."""

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds: dict[str, float] = {}
        """By part; that of a consumer includes the producer's, for which it waits."""

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def add_weight(self, item: Any) -> None:
        """Add a weight that was produced: name and tensor."""
        with error_boundary.suppress_errors("weight sync"):
            self.bytes += int(item[1].nbytes)

    def record(self, span: Span) -> None:
        """Record what was done on the span of the rank, and as metrics of rank 0; nothing if no weights passed through."""
        if not self.bytes:
            return
        producer, *_ = self.seconds
        is_first = not span.attributes.get(attr.RANK)
        span.set_attribute(attr.BYTES, self.bytes)
        if is_first:
            gauge(metric_names.WEIGHT_SYNC_SIZE).set(self.bytes)
        for part, seconds in self.seconds.items():
            own = seconds if part == producer else max(0.0, seconds - self.seconds[producer])
            span.set_attribute(_ATTRIBUTES[part], own)
            if is_first:
                gauge(metric_names.WEIGHT_SYNC_PART_DURATION, ((attr.PART, part),)).set(own)


_parts: Final[WeakKeyDictionary[Any, Parts]] = WeakKeyDictionary()


def begin(worker: Any) -> Parts | None:
    """Return what counts a sync that a worker begins; None, with a note, if our own code fails."""
    with error_boundary.suppress_errors("weight sync"):
        parts = _parts.setdefault(worker, Parts())
        roles = _RECEIVER if hasattr(worker, "server_adapter") else _SENDER
        parts.bytes, parts.seconds = 0, {roles[0].part: 0.0}
        for number, role in enumerate(roles):
            owner = _find(worker, role.owner)
            method = getattr(owner, role.method, None)
            if method is not None and not getattr(method, PATCHED, False):
                wrapper = (
                    _wrap_producer(method, parts, role.part)
                    if number == 0
                    else _wrap_consumer(method, parts, role.part)
                )
                setattr(wrapper, PATCHED, True)
                setattr(owner, role.method, wrapper)
        return parts
    return None


def _find(worker: Any, path: str) -> Any:
    try:
        return attrgetter(path)(worker)
    except AttributeError:
        return None


def _wrap_consumer(method: Callable[..., Any], parts: Parts, part: str) -> Any:
    def measure(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
        begun = clock()
        try:
            yield
        finally:
            parts.add(part, clock() - begun)

    return surround("weight sync", measure)(method)


def _wrap_producer(method: Callable[..., Any], parts: Parts, part: str) -> Any:
    @functools.wraps(method)
    def produce(*args: Any, **kwargs: Any) -> Any:
        begun = clock()
        result = method(*args, **kwargs)
        parts.add(part, clock() - begun)
        if not RECORDER.on:
            return result
        if inspect.isasyncgen(result):
            return _count_async(result, parts, part)
        if isinstance(result, tuple) and result and inspect.isgenerator(result[0]):
            return (_count(result[0], parts, part), *result[1:])
        return result

    return produce


def _count(weights: Any, parts: Parts, part: str) -> Iterator[Any]:
    """Yield the weights of a generator, and count them and how long it takes to make them."""
    try:
        while True:
            begun = clock()
            try:
                item = next(weights)
            except StopIteration:
                return
            finally:
                parts.add(part, clock() - begun)
            parts.add_weight(item)
            yield item
    finally:
        weights.close()


async def _count_async(weights: Any, parts: Parts, part: str) -> AsyncIterator[Any]:
    try:
        while True:
            begun = clock()
            try:
                item = await anext(weights)
            except StopAsyncIteration:
                return
            finally:
                parts.add(part, clock() - begun)
            parts.add_weight(item)
            yield item
    finally:
        await weights.aclose()
