# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's trace functions: a user's own states and operations as spans in the trace that they happen in.

What verl itself reports as a state (worker methods, ``generate`` of a server) is a span of our hooks already: nothing is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from verl_otel import _guard
from verl_otel.recording.context import kernel
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span, current, local_span
from verl_otel.recording.store import Store, keep
from verl_otel.recording.values import clean, to_text

HOOKED: Final = {
    "rank_": frozenset(
        {"train_batch", "ref_compute_log_prob", "actor_compute_log_prob", "actor_update", "forward_backward"}
    ),
    "replica_": frozenset({"vllm_generate", "sglang_generate"}),
}
"""verl's own states, by the beginning of their lane: what ``DistProfiler.annotate`` and the servers report, as of 0.9.1."""
_NOTHING: Final = contextlib.nullcontext()


def trace_state(state_name: str, *, state_lane_id: str | None = None, **labels: Any) -> AbstractContextManager[Any]:
    """Record a state as a span; one that verl reports itself is nothing.

    Unlike RL-Insight's, states of one lane that overlap are all recorded: each has its place in its trace.
    """
    if not Store.on or _is_hooked(state_name, state_lane_id):
        return _NOTHING
    try:
        lane = {} if state_lane_id is None else {"state_lane_id": state_lane_id}
        return Span(Site("span", to_text(state_name)), _clean({**labels, **lane}))
    except Exception as error:
        _guard.report("rl_insight", error)
        return _NOTHING


def _is_hooked(name: str, lane: object) -> bool:
    begin, mark, _ = lane.partition("_") if isinstance(lane, str) else ("", "", "")
    return name in HOOKED.get(begin + mark, ())


def trace_span(*, name: str, start_time_ns: int, end_time_ns: int, attributes: Mapping[str, Any]) -> None:
    """Record a span that has ended, with the times that are given (Unix time, nanoseconds).

    Its parent is the innermost open span that had begun before it; a span before all of them is a trace of its own.
    """
    if not Store.on:
        return
    with _guard.swallowed("rl_insight"):
        span = Span(Site("span", to_text(name)), _clean(attributes))
        outer: Any = current() or kernel().get()
        around = local_span(outer)
        while around is not None and around.start_ns > start_time_ns:
            outer = None if around.site.spec.root else around.outer  # what submitted a trajectory is not around it
            around = local_span(outer)
        span.outer = outer
        offset = span.resolve().offset_ns
        span.start = (int(start_time_ns) - offset) / 1e9
        span.stop = (max(int(start_time_ns), int(end_time_ns)) - offset) / 1e9
        keep(span)


def trace_op(
    name: str | None = None, *, extra_labels: Callable[[Any], Mapping[str, Any]] | None = None, **static_labels: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function, sync or async: each call is a span. ``extra_labels`` is called with the first argument."""

    def decorator(func: Callable[..., Any]) -> Callable[..., Any]:
        site = Site("span", name or "", attributes=_clean(static_labels))
        return Span(site)(func if extra_labels is None else _label(func, extra_labels))

    return decorator


def _label(function: Callable[..., Any], extra_labels: Callable[[Any], Mapping[str, Any]]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_labelled(*args: Any, **kwargs: Any) -> Any:
            _say_labels(args, extra_labels)
            return await function(*args, **kwargs)

        return async_labelled

    @functools.wraps(function)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        _say_labels(args, extra_labels)
        return function(*args, **kwargs)

    return labelled


def _say_labels(args: tuple[Any, ...], extra_labels: Callable[[Any], Mapping[str, Any]]) -> None:
    """Put a user's labels on the span of this call; his function may fail, the call may not."""
    span = current()
    if span is None or not args:
        return
    try:
        span.set_attributes(_clean(extra_labels(args[0])))
    except Exception as error:
        _guard.say(
            f"extra_labels {span.name}", "verl-otel: extra_labels of %s failed: %r (said once)", span.name, error
        )


def _clean(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): clean(value) for key, value in values.items() if value is not None}
