# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's trace functions: states and operations of users as spans of the current trace.

States that verl itself reports (worker methods, ``generate`` of a server) are not recorded, because hooks record their spans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import add_callbacks
from verl_otel.recording.attribute_values import coerce_attribute, to_text
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import context_access as otel_context
from verl_otel.recording.span import Span, local_span
from verl_otel.recording.span import current as current_span
from verl_otel.recording.state import RECORDER
from verl_otel.recording.state import keep as keep_span

HOOKED: Final = {
    "rank_": frozenset(
        {"train_batch", "ref_compute_log_prob", "actor_compute_log_prob", "actor_update", "forward_backward"}
    ),
    "replica_": frozenset({"vllm_generate", "sglang_generate"}),
}
"""verl's own states by the prefix of their lane: those of ``DistProfiler.annotate`` and of the servers, as of 0.9.1."""
_NO_SPAN: Final = contextlib.nullcontext()


def trace_state(state_name: str, *, state_lane_id: str | None = None, **labels: Any) -> AbstractContextManager[Any]:
    """Record a state as a span; a state of verl itself is not recorded.

    Unlike in RL-Insight, overlapping states of one lane are all recorded.
    """
    if not RECORDER.on or _is_hooked(state_name, state_lane_id):
        return _NO_SPAN
    try:
        lane = {} if state_lane_id is None else {"state_lane_id": state_lane_id}
        return Span(CallSite("span", to_text(state_name)), _clean({**labels, **lane}))
    except Exception as error:
        error_boundary.record_internal_error("rl_insight", error)
        return _NO_SPAN


def _is_hooked(name: str, lane: object) -> bool:
    begin, mark, _ = lane.partition("_") if isinstance(lane, str) else ("", "", "")
    return name in HOOKED.get(begin + mark, ())


def trace_span(*, name: str, start_time_ns: int, end_time_ns: int, attributes: Mapping[str, Any]) -> None:
    """Record an ended span with the given times (Unix time, nanoseconds).

    Its parent is the innermost open span that began before it; without one it is a root.
    """
    if not RECORDER.on:
        return
    with error_boundary.suppress_errors("rl_insight"):
        span = Span(CallSite("span", to_text(name)), _clean(attributes))
        outer: Any = current_span() or otel_context().get()
        parent = local_span(outer)
        while parent is not None and parent.start_ns > start_time_ns:
            outer = None if parent.site.spec.root else parent.outer  # the submitter of a trajectory does not enclose it
            parent = local_span(outer)
        span.outer = outer
        offset = span.resolve().offset_ns
        span.start = (int(start_time_ns) - offset) / 1e9
        span.stop = (max(int(start_time_ns), int(end_time_ns)) - offset) / 1e9
        keep_span(span)


def trace_op(
    name: str | None = None, *, extra_labels: Callable[[Any], Mapping[str, Any]] | None = None, **static_labels: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function, sync or async: each call is a span. ``extra_labels`` is called with the first argument."""

    def decorator(func: Callable[..., Any]) -> Callable[..., Any]:
        site = CallSite("span", name or "", attributes=_clean(static_labels))
        if extra_labels is not None:
            func = add_callbacks("extra_labels", before=lambda args, _: _add_labels(args, extra_labels))(func)
        return Span(site)(func)

    return decorator


def _add_labels(args: tuple[Any, ...], extra_labels: Callable[[Any], Mapping[str, Any]]) -> None:
    """Add a user's labels to the span of this call. Errors of the user's function do not reach the call."""
    span = current_span()
    if span is None or not args:
        return
    try:
        span.set_attributes(_clean(extra_labels(args[0])))
    except Exception as error:
        error_boundary.may_propagate(error)
        error_boundary.warn_once(
            f"extra_labels {span.name}", "verl-otel: extra_labels of %s failed: %r (logged once)", span.name, error
        )


def _clean(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): coerce_attribute(value) for key, value in values.items() if value is not None}
